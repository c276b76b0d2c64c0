//! Output: tables for people, JSON for programs. If a string from the database contains characters that a
//! terminal interprets, they are escaped. Output is coloured only on a terminal, and only if `NO_COLOR` is not
//! set.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use perennial::entries::visible;
pub(crate) use perennial_admin::time;
use perennial_store::name::acts;
use serde_json::{Value, json};

use crate::{Failure, Result};

/// The schema version of the JSON output. Adding a field does not change it; renaming or removing one would.
const SCHEMA: u32 = 1;

/// Returns a string without control characters that a terminal interprets. Line breaks are kept.
pub(crate) fn text(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(visible).collect();
    lines.join("\n")
}

/// Prints a line. Unlike `println!`, continues without a reader, as in `perennial entries | head`.
pub(crate) fn line(line: &str) {
    let _ = writeln!(anstream::stdout(), "{line}");
}

/// Prints what has gone wrong.
pub(crate) fn error(message: &str) {
    let name = coloured("perennial:", Some(Colour::Red));
    let _ = writeln!(anstream::stderr(), "{name} {}", text(message));
}

/// The colour of a word or a sign whose meaning is clear without it.
#[derive(Clone, Copy)]
pub(crate) enum Colour {
    Green,
    Yellow,
    Red,
}

/// Returns the text with the colour, which `line` leaves out where it is not wanted.
pub(crate) fn coloured(text: &str, colour: Option<Colour>) -> String {
    let Some(colour) = colour else {
        return text.to_owned();
    };
    let style = Style::new().fg_color(Some(match colour {
        Colour::Green => AnsiColor::Green.into(),
        Colour::Yellow => AnsiColor::Yellow.into(),
        Colour::Red => AnsiColor::Red.into(),
    }));
    format!("{style}{text}{style:#}")
}

/// Prints JSON with its schema.
pub(crate) fn json(mut value: Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.insert("schema".to_owned(), json!(SCHEMA));
    }
    line(&escaped(&value));
}

/// Returns JSON in which characters that a terminal acts upon are escaped.
fn escaped(value: &Value) -> String {
    let mut escaped = String::new();
    for c in format!("{value:#}").chars() {
        match c {
            // This line break is part of the JSON's own layout; line breaks inside strings are already escaped.
            '\n' => escaped.push(c),
            // Four hexadecimal digits are enough for each of these characters.
            _ if acts(c) => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Prints a table, as wide as the terminal.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(head.map(str::to_uppercase));
    if !io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    for row in rows {
        table.add_row(row.map(|cell| visible(&cell)));
    }
    for printed in table.lines() {
        line(printed.trim_end());
    }
}

/// Asks a question at the terminal. Without a terminal there is no question: the action is refused.
pub(crate) fn ask(question: &str, expected: &str, instead: &str) -> Result {
    let refused = |why: &str| Err(Failure::Refused(format!("{why}; nothing was done")));
    if !io::stdin().is_terminal() {
        return refused(&format!("not confirmed: repeat with {instead}"));
    }
    eprint!("{} ", text(question));
    let mut answer = String::new();
    match io::stdin().read_line(&mut answer) {
        Ok(_) if answer.trim() == expected => Ok(()),
        _ => refused("not confirmed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_character_that_a_terminal_acts_upon() {
        let value = json!({ "key": "a\u{1b}[31m\u{7f}\u{9b}\u{202e}\u{feff}ä😀\n" });
        let shown = escaped(&value);
        assert!(!shown.chars().any(|c| acts(c) && c != '\n'), "{shown:?}");
        let read: Value = serde_json::from_str(&shown).expect("is JSON");
        assert_eq!(read, value);
    }
}
