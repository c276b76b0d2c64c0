//! The crate's rooms stand one above the other: no two rooms use each other, also through others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Returns the code of a source without comments and without its test modules.
fn code(source: &str) -> String {
    let (mut code, mut lines) = (String::new(), source.lines());
    while let Some(line) = lines.next() {
        if line.starts_with("#[cfg(") && line.contains("test") {
            let is_inline = lines.next().is_some_and(|line| line.ends_with('{'));
            if is_inline {
                lines.by_ref().find(|line| *line == "}");
            }
        } else if !line.trim().is_empty() && !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// Returns the path of each leaf of a use tree such as `a::{b, c::d}`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((root, inner)) = tree.split_once('{') else {
        return vec![tree.trim().to_owned()];
    };
    let inner = inner.trim_end().trim_end_matches('}');
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    let nested = parts.flat_map(leaves);
    nested
        .map(|leaf| format!("{}{leaf}", root.trim_start()))
        .collect()
}

/// Returns the paths behind each `crate::` of some code.
fn uses(code: &str) -> Vec<String> {
    let ends = |rest: &str| {
        let mut depth = 0;
        let end = rest.find(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && !(c.is_alphanumeric() || "_:{}".contains(c)) || depth < 0
        });
        end.unwrap_or(rest.len())
    };
    let rests = code.split("crate::").skip(1);
    rests.flat_map(|rest| leaves(&rest[..ends(rest)])).collect()
}

/// Returns the rooms that each room uses. `sources` are paths below `src` and their texts.
fn arrows<'a>(lib: &str, sources: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Arrows {
    let lib = code(lib);
    let exports = lib.split("pub use ").skip(1);
    let exports: BTreeMap<_, _> = exports
        .flat_map(|rest| leaves(rest.split(';').next().unwrap_or_default()))
        .filter_map(|path| {
            let (room, _) = path.split_once("::")?;
            let (_, name) = path.rsplit_once("::")?;
            Some((name.to_owned(), room.to_owned()))
        })
        .collect();
    let mut arrows = Arrows::new();
    for (path, source) in sources {
        let first = path.iter().next().expect("has a name");
        let room = Path::new(first).file_stem().expect("has a name");
        let to = arrows
            .entry(room.to_string_lossy().into_owned())
            .or_default();
        for path in uses(&code(source)) {
            let first = path.split("::").next().unwrap_or_default().to_owned();
            to.insert(exports.get(&first).cloned().unwrap_or(first));
        }
    }
    for (room, to) in &mut arrows {
        to.remove(room);
    }
    arrows
}

/// Removes each room that uses no other one, again and again. The rooms that stay are on a cycle,
/// or use one.
fn in_cycles(mut arrows: Arrows) -> Arrows {
    loop {
        let rooms: BTreeSet<_> = arrows.keys().cloned().collect();
        for to in arrows.values_mut() {
            to.retain(|room| rooms.contains(room));
        }
        let before = arrows.len();
        arrows.retain(|_, to| !to.is_empty());
        if arrows.len() == before {
            return arrows;
        }
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("is a folder") {
        let path = entry.expect("is read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn crate_sources() -> Vec<(PathBuf, String)> {
    sources_in(Path::new("src"))
}

fn sources_in(folder: &Path) -> Vec<(PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    sources(&src, &mut found);
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("is read");
        (path.strip_prefix(&src).expect("is in src").to_owned(), text)
    };
    found.into_iter().map(read).collect()
}

#[test]
fn rooms_use_only_rooms_below_them() {
    let all = crate_sources();
    let (lib, rooms): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|(path, _)| path == Path::new("lib.rs"));
    let arrows = arrows(
        &lib[0].1,
        rooms
            .iter()
            .map(|(path, text)| (path.as_path(), text.as_str())),
    );
    // A scan without any result would find no cycle either.
    assert!(arrows["site"].contains("layer"), "{arrows:?}");
    let cycles = in_cycles(arrows);
    assert!(
        cycles.is_empty(),
        "these rooms use each other, or use such: {cycles:#?}"
    );
}

#[test]
fn files_have_at_most_300_lines_of_code() {
    let crates = ["perennial-admin", "perennial-cli"];
    let folders = crates.map(|it| format!("crates/{it}/src"));
    let others = folders.iter().flat_map(|it| sources_in(Path::new(it)));
    for (path, text) in crate_sources().into_iter().chain(others) {
        let lines = code(&text).lines().count();
        assert!(lines <= 300, "{path:?}: {lines}");
    }
}

#[test]
fn cycle_is_found_through_nested_imports_and_names_of_the_root() {
    let lib = "pub use upper::Tree;";
    let upper = "use crate::{\n    middle::{a, b},\n    other,\n};";
    let (middle, harmless) = (
        "fn f() -> crate::Tree {}",
        "// crate::upper\nuse std::mem;\n",
    );
    let cycles = |lower: &str| {
        let sources = [
            ("upper.rs", upper),
            ("middle/deep.rs", middle),
            ("other.rs", lower),
        ];
        in_cycles(arrows(
            lib,
            sources.map(|(path, text)| (Path::new(path), text)),
        ))
    };
    let rooms: Vec<_> = cycles(harmless).into_keys().collect();
    assert_eq!(rooms, ["middle", "upper"]);
    assert!(cycles("use crate::{upper::x};").contains_key("other"));
}

/// Without an order, tokio polls the branches of `select!` in a random one, and a seed does not
/// repeat.
#[test]
fn every_select_polls_its_branches_in_their_order() {
    let mut folders = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut found = 0;
    while let Some(folder) = folders.pop() {
        for file in fs::read_dir(folder).expect("is a folder") {
            let path = file.expect("is read").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("is text");
            for (_, branches) in text
                .match_indices("select! {")
                .map(|(at, it)| text.split_at(at + it.len()))
            {
                found += 1;
                let ordered = branches.trim_start().starts_with("biased;");
                assert!(ordered, "{}: a select! without `biased;`", path.display());
            }
        }
    }
    assert!(found > 0);
}
