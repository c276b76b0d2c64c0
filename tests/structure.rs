//! The structure: modules, components of the cache and crates use only those below them, and each promise
//! has its judge.

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

/// Returns the names that the root of a tree of modules exports, with the module of each: by `pub use`, and
/// by types with another name.
fn exports(root: &str) -> BTreeMap<String, String> {
    let root = code(root).replace("pub(crate) ", "pub ");
    let imported = root.split("pub use ").skip(1);
    let imported = imported.flat_map(|rest| leaves(rest.split(';').next().unwrap_or_default()));
    let imported = imported.filter_map(|path| {
        let (module, _) = path.split_once("::")?;
        let (_, name) = path.rsplit_once("::")?;
        Some((name.to_owned(), module.to_owned()))
    });
    let renamed = root.split("type ").skip(1).filter_map(|rest| {
        let (name, path) = rest.split_once(" = ")?;
        let (module, _) = path.split_once("::")?;
        Some((name.to_owned(), module.to_owned()))
    });
    imported.chain(renamed).collect()
}

/// Returns the modules that each module uses. `root` is the text of the module that has the modules, `prefix`
/// its path, and `sources` are paths below its folder with their texts.
fn arrows<'a>(
    root: &str,
    prefix: &str,
    sources: impl IntoIterator<Item = (&'a Path, &'a str)>,
) -> Arrows {
    let exports = exports(root);
    let mut arrows = Arrows::new();
    for (path, source) in sources {
        let first = path.iter().next().expect("has a name");
        let module = Path::new(first).file_stem().expect("has a name");
        let to = arrows
            .entry(module.to_string_lossy().into_owned())
            .or_default();
        let uses = uses(&code(source));
        for path in uses.iter().filter_map(|path| path.strip_prefix(prefix)) {
            let first = path.split("::").next().unwrap_or_default().to_owned();
            to.insert(exports.get(&first).cloned().unwrap_or(first));
        }
    }
    for (module, to) in &mut arrows {
        to.remove(module);
    }
    arrows
}

/// Removes each module that uses no other one, again and again. The modules that stay are on a cycle,
/// or use one.
fn in_cycles(mut arrows: Arrows) -> Arrows {
    loop {
        let modules: BTreeSet<_> = arrows.keys().cloned().collect();
        for to in arrows.values_mut() {
            to.retain(|module| modules.contains(module));
        }
        let before = arrows.len();
        arrows.retain(|_, to| !to.is_empty());
        if arrows.len() == before {
            return arrows;
        }
    }
}

fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("is a folder") {
        let path = entry.expect("is read").path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

/// The crates, from the lowest one up.
const CRATES: [(&str, &str); 11] = [
    ("perennial-store", "crates/store/src"),
    ("perennial", "src"),
    ("perennial-jobs", "crates/jobs/src"),
    ("perennial-idempotency", "crates/idempotency/src"),
    ("perennial-calendar", "crates/calendar/src"),
    ("perennial-testing", "crates/testing/src"),
    ("perennial-admin", "crates/admin/src"),
    ("perennial-cli", "crates/cli/src"),
    ("perennial-driver-tests", "crates/driver-tests/src"),
    ("perennial-rusqlite", "crates/rusqlite/src"),
    ("perennial-tokio-postgres", "crates/tokio-postgres/src"),
];

/// The crates of ours that each crate may use, apart from its tests.
const USES: [(&str, &[&str]); 11] = [
    ("perennial-store", &[]),
    ("perennial", &["perennial-store"]),
    ("perennial-jobs", &["perennial-store"]),
    ("perennial-idempotency", &["perennial-store"]),
    ("perennial-calendar", &["perennial"]),
    ("perennial-testing", &["perennial", "perennial-store"]),
    ("perennial-admin", &["perennial", "perennial-store"]),
    (
        "perennial-cli",
        &["perennial", "perennial-admin", "perennial-store"],
    ),
    ("perennial-driver-tests", &["perennial-store"]),
    ("perennial-rusqlite", &["perennial"]),
    ("perennial-tokio-postgres", &["perennial"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources_in(folder: &str) -> Vec<(PathBuf, String)> {
    let src = root().join(folder);
    let mut found = Vec::new();
    files(&src, "rs", &mut found);
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("is read");
        (path.strip_prefix(&src).expect("is in src").to_owned(), text)
    };
    found.into_iter().map(read).collect()
}

#[test]
fn modules_use_only_modules_below_them() {
    for (krate, folder) in CRATES.into_iter().take(2) {
        let all = sources_in(folder);
        let (lib, modules): (Vec<_>, Vec<_>) = all
            .iter()
            .partition(|(path, _)| path == Path::new("lib.rs"));
        let modules = modules
            .iter()
            .map(|(path, text)| (path.as_path(), text.as_str()));
        let arrows = arrows(&lib[0].1, "", modules);
        let cycles = in_cycles(arrows);
        assert!(
            cycles.is_empty(),
            "{krate}: these modules use each other, or use such: {cycles:#?}"
        );
    }
}

/// Each component of the cache owns its state, and the others use its interface: `src/cache/mod.rs`.
#[test]
fn components_of_the_cache_use_only_components_below_them() {
    let all = sources_in("src/cache");
    let (root, modules): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|(path, _)| path == Path::new("mod.rs"));
    for (path, text) in &modules {
        let is_top = path.components().count() == 1 || path.ends_with("mod.rs");
        let is_component = path.components().count() <= 2;
        let has_super = text.lines().any(|line| line.starts_with("use super::"));
        assert!(
            !(is_top && is_component && has_super),
            "{}: name the component by its path from `crate::cache`",
            path.display()
        );
    }
    let modules = modules
        .iter()
        .map(|(path, text)| (path.as_path(), text.as_str()));
    let arrows = arrows(&root[0].1, "cache::", modules);
    let table = components_in(&root[0].1);
    const VALUES: [&str; 6] = [
        "content", "entry", "epochs", "failure", "history", "metadata",
    ];
    for module in arrows.keys().filter(|module| *module != "components") {
        let is_named = table.contains_key(module) || VALUES.contains(&module.as_str());
        assert!(is_named, "{module} has no row in src/cache/mod.rs");
    }
    for (component, uses) in &table {
        let used = arrows[component]
            .iter()
            .filter(|to| table.contains_key(*to) && *to != "environment");
        let used: BTreeSet<_> = used.cloned().collect();
        assert_eq!(used, *uses, "the row of {component} in src/cache/mod.rs");
    }
    let cycles = in_cycles(arrows);
    assert!(
        cycles.is_empty(),
        "these components use each other, or use such: {cycles:#?}"
    );
}

/// Returns the components in the table of `src/cache/mod.rs`, each with those that it uses.
fn components_in(root: &str) -> Arrows {
    let rows = root
        .lines()
        .filter_map(|line| line.strip_prefix("//! | [`"));
    let rows = rows.filter_map(|row| {
        let (component, _) = row.split_once('`')?;
        let uses = row.strip_suffix(" |")?.rsplit(" | ").next()?;
        let uses = uses.split(", ").filter(|name| *name != "–");
        Some((component.to_owned(), uses.map(str::to_owned).collect()))
    });
    rows.collect()
}

#[test]
fn crates_use_only_crates_below_them() {
    for ((krate, folder), (same, allowed)) in CRATES.into_iter().zip(USES) {
        assert_eq!(krate, same);
        let manifest = root().join(folder).join("../Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("is read");
        let (_, needs) = manifest.split_once("[dependencies]").expect("has some");
        let needs = needs.split("\n[").next().unwrap_or_default();
        let ours = needs.lines().filter(|line| line.starts_with("perennial"));
        for line in ours {
            let name = line.split(' ').next().unwrap_or_default();
            assert!(allowed.contains(&name), "{krate} uses {name}");
            assert!(line.contains("version = \"=0.1.0\""), "{krate}: pin {name}");
        }
    }
}

/// Returns the promises of the table with the file and the name of each one's judge.
fn promises(table: &str) -> Vec<(String, (String, String))> {
    let rows = table.lines().filter_map(|row| {
        let (row, judge) = row.strip_suffix("` |")?.rsplit_once(" | `")?;
        let (file, test) = judge.split_once("` `")?;
        let (promise, _level) = row.strip_prefix("| ")?.rsplit_once(" | ")?;
        Some((promise.to_owned(), (file.to_owned(), test.to_owned())))
    });
    rows.collect()
}

#[test]
fn each_promise_has_its_judge() {
    let table = fs::read_to_string(root().join("tests/promises.md")).expect("is read");
    let (table, _) = table.split_once(INDEX).expect("has an index");
    let promises = promises(table);
    for (_, (file, test)) in &promises {
        let text = fs::read_to_string(root().join(file));
        let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
        let is_there = text.contains(&format!("fn {test}("));
        assert!(
            is_there,
            "{file} has no test {test}, which tests/promises.md names"
        );
    }
    let rows = table.lines().filter(|line| line.contains(".rs` `"));
    assert_eq!(rows.count(), promises.len(), "a row has another form");
}

/// The heading of the second half of tests/promises.md.
const INDEX: &str = "\n# The promises of each test\n";

/// `PERENNIAL_UPDATE=1 cargo test --test structure promises_of_each_test` writes the index.
#[test]
fn promises_of_each_test_are_listed() {
    let file = root().join("tests/promises.md");
    let present = fs::read_to_string(&file).expect("is read");
    let (table, _) = present.split_once(INDEX).unwrap_or((&present, ""));
    let mut by_file = BTreeMap::<_, BTreeMap<_, Vec<_>>>::new();
    for (promise, (file, test)) in promises(table) {
        let tests = by_file.entry(file).or_default();
        tests.entry(test).or_default().push(promise);
    }
    let mut index = format!(
        "{table}{INDEX}\nGenerated from the tables above. A test that is not listed here exists for another reason than a promise.\n"
    );
    for (file, tests) in by_file {
        index += &format!("\n## {file}\n\n| test | the promise that it checks |\n|---|---|\n");
        for (test, promises) in tests {
            index += &format!("| `{test}` | {} |\n", promises.join("<br>"));
        }
    }
    if std::env::var_os("PERENNIAL_UPDATE").is_some() {
        fs::write(&file, &index).expect("is written");
        return;
    }
    assert_eq!(
        present, index,
        "PERENNIAL_UPDATE=1 writes tests/promises.md"
    );
}

/// Without an order, tokio polls the branches of `select!` in a random one, and a seed does not
/// repeat.
#[test]
fn every_select_polls_its_branches_in_their_order() {
    for (path, text) in CRATES.into_iter().flat_map(|(_, src)| sources_in(src)) {
        for branches in text.split("select! {").skip(1) {
            let ordered = branches.trim_start().starts_with("biased;");
            assert!(ordered, "{}: a select! without `biased;`", path.display());
        }
    }
}

/// A transaction that is open over an await holds its rows for as long as a thread computes, a process
/// is paused, or a network is silent (rule 2 of docs/protocol.md).
#[test]
fn only_the_making_of_the_tables_begins_a_transaction() {
    let begins = ["\"BEGIN", ".begin(connection", "pool.begin("];
    let mut places: Vec<_> = CRATES
        .into_iter()
        // Its transactions are an application's.
        .filter(|(krate, _)| *krate != "perennial-driver-tests")
        .flat_map(|(_, src)| sources_in(src))
        .filter(|(_, text)| begins.iter().any(|begin| code(text).contains(begin)))
        .map(|(path, _)| path.display().to_string())
        .collect();
    places.sort();
    // In `connection.rs` and `guard.rs`, the SQL text that has the BEGIN also ends the transaction.
    // `tables.rs` has the text of the transaction that makes the tables, and `schema.rs` is its
    // only caller.
    assert_eq!(
        places,
        [
            "sql/connection.rs",
            "sql/guard.rs",
            "sql/schema.rs",
            "sql/statements/tables.rs"
        ]
    );
}

/// Each invariant stands in docs/invariants.md once, with its judges, and each mutant belongs to one.
#[test]
fn each_invariant_has_its_number_its_judges_and_its_mutants() {
    let document = fs::read_to_string(root().join("docs/invariants.md")).expect("is read");
    let mut invariants = BTreeMap::new();
    for line in document.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, number, invariant, why, judges, mutants, _] = cells[..] else {
            continue;
        };
        if is_number(number) {
            let is_complete = ![invariant, why, judges, mutants].contains(&"");
            assert!(is_complete, "{number} has an empty cell");
            let row = (judges.to_owned(), mutants.to_owned());
            let earlier = invariants.insert(number.to_owned(), row);
            assert!(earlier.is_none(), "{number} stands there twice");
        }
    }
    for (judge, folder) in [
        ("check", "src/cache/regeneration/check"),
        ("simulation", "tests/sim"),
        ("requests", "crates/idempotency/src/check"),
    ] {
        let sources = sources_in(folder);
        let cited: BTreeSet<_> = sources
            .iter()
            .flat_map(|(_, text)| numbers_in_texts(text))
            .collect();
        assert!(!cited.is_empty(), "{folder} names no invariant");
        for number in &cited {
            let (judges, _) = invariants.get(number).unwrap_or_else(|| {
                panic!("{folder} names {number}, which docs/invariants.md lacks")
            });
            assert!(judges.contains(judge), "{number} is judged by {folder}");
        }
        // S16 is a property of the table of transitions. The test that compares this table checks it.
        let says_so = |number: &str| cited.contains(number) || number == "S16";
        for (number, (judges, _)) in &invariants {
            let is_judged = !judges.contains(judge) || says_so(number);
            assert!(is_judged, "{folder} does not name {number}");
        }
    }
    let mutants = [
        "src/cache/regeneration/check/setup.rs",
        "crates/idempotency/src/check/mod.rs",
    ]
    .map(|file| fs::read_to_string(root().join(file)).expect("is read"));
    let mutants = mutants.iter().flat_map(|text| {
        let (_, variants) = text.split_once("enum Mutant {").expect("is there");
        let variants = variants.split('}').next().unwrap_or_default();
        let names = variants
            .lines()
            .map(|line| line.trim().trim_end_matches(','));
        names.filter(|name| name.starts_with(char::is_uppercase))
    });
    let planted: BTreeSet<_> = mutants.collect();
    let named: BTreeSet<_> = invariants
        .values()
        .flat_map(|(_, mutants)| mutants.split('`').skip(1).step_by(2))
        .filter(|name| !name.contains(['.', '/']))
        .collect();
    assert_eq!(named, planted);
}

/// Returns true for the number of an invariant, such as `S12`.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['S', 'W', 'I', 'C']);
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit()))
}

/// Returns the numbers with which texts in the code begin, such as `"S12: …"`.
fn numbers_in_texts(code: &str) -> impl Iterator<Item = String> {
    code.split('"').filter_map(|text| {
        let number = text.split([':', ' ']).next()?;
        is_number(number).then(|| number.to_owned())
    })
}
