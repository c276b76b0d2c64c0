//! The names of the types of extensions. Some types cannot be named in code, so they are recognised by the text
//! that `Debug` of `http::Extensions` prints. If a release of `http` prints something else, a name is not
//! found. The request then bypasses the cache, which is the safe choice.

#[cfg(any(feature = "axum", test))]
use std::fmt::{self, Write};

use http::Extensions;

/// Returns the names of all types.
pub(super) fn all(extensions: &Extensions) -> Vec<String> {
    let text = format!("{extensions:#?}");
    // One name a line, between braces.
    let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
    let names = lines.map(|line| line.trim_end_matches(',').to_owned());
    let names: Vec<_> = names.collect();
    if names.len() == extensions.len() {
        names
    } else {
        Vec::new()
    }
}

/// Returns true if there is an extension of the type with this name. Allocates nothing.
#[cfg(any(feature = "axum", test))]
pub(super) fn has(extensions: &Extensions, name: &'static str) -> bool {
    struct Search {
        name: &'static str,
        found: bool,
    }

    impl Write for Search {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.found |= part == self.name;
            Ok(())
        }
    }

    let mut search = Search { name, found: false };
    // The search itself never fails.
    let _ = write!(search, "{extensions:?}");
    search.found
}

#[cfg(test)]
mod tests {
    use std::{any::type_name, collections::HashMap};

    use super::*;

    #[test]
    fn types_are_known_by_their_names() {
        let mut extensions = Extensions::new();
        assert!(all(&extensions).is_empty());
        extensions.insert(1_u8);
        extensions.insert(HashMap::<String, Vec<(u8, u16)>>::new());
        let mut names = all(&extensions);
        names.sort();
        let map = type_name::<HashMap<String, Vec<(u8, u16)>>>();
        assert_eq!(names, [map, "u8"]);
        assert!(has(&extensions, "u8") && has(&extensions, map));
        assert!(!has(&extensions, "u16") && !has(&extensions, ""));
    }
}
