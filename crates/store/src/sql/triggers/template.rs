//! Templates of tags: fixed text, and columns in braces, as `format!` has them.

use crate::{error::Error, name::PLAIN};

/// A template of a tag.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Template<'a> {
    pub(super) parts: Vec<Part<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(String),
    Column(&'a str),
}

/// The smallest length of a template's fixed beginning, in characters. If tags cannot be invalidated one by
/// one, all tags with this beginning are, and a shorter one might stand for most pages.
const FEWEST: usize = 3;

impl<'a> Template<'a> {
    pub(super) fn parse(template: &'a str) -> Result<Self, Error> {
        let refused =
            |why: &str| Error::invalid(format!("the template {template:?} cannot be used: {why}"));
        check_text(template)?;
        let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), template);
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if let Some(after) = after.strip_prefix(brace) {
                text.push_str(brace);
                rest = after;
                continue;
            }
            let column = (brace == "{").then(|| after.split_once('}')).flatten();
            let Some((column, after)) = column else {
                return Err(refused(
                    "write a column as `{id}`, and a brace as `{{` or `}}`",
                ));
            };
            if column.is_empty() || column.contains(['{', ':']) {
                return Err(refused(
                    "between `{` and `}` stands the name of a column, without a format",
                ));
            }
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Column(column));
            rest = after;
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        let template = Self { parts };
        if template.columns().next().is_none() {
            return Err(refused("it has no column; a tag without one is a list tag"));
        }
        let beginning = template.beginning();
        if beginning.chars().count() < FEWEST || beginning.len() > PLAIN {
            return Err(refused(
                "begin it with a text of three characters or more, as in \"product-{id}\": after a change of many rows, all tags that \
                 begin so are invalidated",
            ));
        }
        Ok(template)
    }

    /// Returns the columns, in their order.
    pub(super) fn columns(&self) -> impl Iterator<Item = &'a str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Column(column) => Some(*column),
        })
    }

    pub(super) fn beginning(&self) -> &str {
        match self.parts.first() {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    /// Returns the name that stands for each tag of the template.
    pub(super) fn coarse(&self) -> String {
        format!("tag_prefix:{}", self.beginning())
    }
}

/// Refuses characters that would have to be written differently depending on the database's mode.
pub(super) fn check_text(text: &str) -> Result<(), Error> {
    // `$` could end the quotes of a function on PostgreSQL.
    if text.contains(['\\', '$']) || text.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "{text:?} cannot stand in a trigger: write it without `\\`, `$` and control characters"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_read_as_format_reads_them() {
        let text = |text: &str| Part::Text(text.to_owned());
        for (template, parts) in [
            ("product-{id}", vec![text("product-"), Part::Column("id")]),
            (
                "shop {{{shop}}}-{id}!",
                vec![
                    text("shop {"),
                    Part::Column("shop"),
                    text("}-"),
                    Part::Column("id"),
                    text("!"),
                ],
            ),
            (
                "abc{a}{b}",
                vec![text("abc"), Part::Column("a"), Part::Column("b")],
            ),
            (
                "caf\u{e9}'s {Id of it}",
                vec![text("caf\u{e9}'s "), Part::Column("Id of it")],
            ),
        ] {
            assert_eq!(Template::parse(template).expect(template).parts, parts);
        }
    }

    #[test]
    fn what_is_no_template_is_refused_with_the_reason() {
        for (template, why) in [
            ("products", "no column"),
            ("", "no column"),
            ("p-{id}", "three characters"),
            ("{id}", "three characters"),
            ("product-{}", "the name of a column"),
            ("product-{id:?}", "without a format"),
            ("product-{id", "a brace as"),
            ("product-id}", "a brace as"),
            ("product-\\{id}", "without `\\`"),
            ("product-$1{id}", "without `\\`"),
            ("product\n{id}", "control characters"),
        ] {
            let error = Template::parse(template).expect_err(template).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
