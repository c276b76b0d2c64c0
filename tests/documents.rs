//! The documents: each link leads to a file and a heading that are there, each document is a chapter of the book, and
//! what the troubleshooting chapter quotes is said somewhere in the code.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files below a folder that have this extension, without those that builds make.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("is read") {
        let path = entry.expect("is read").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if path.is_dir() {
            if !["target", "node_modules"].contains(&name) && !name.starts_with('.') {
                found.extend(files(&path, extension));
            }
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found
}

/// Returns a document without its listings.
fn prose(document: &str) -> String {
    let mut is_listing = false;
    let lines = document.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_listing ^= is_fence;
        !is_listing && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the anchors of the headings, as GitHub and mdBook make them.
fn anchors(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    let anchors = headings.map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    anchors.collect()
}

/// Returns the targets of the links: `[text](target)`, and `[name]: target` in a line of its own.
fn targets(prose: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for part in prose.split("](").skip(1) {
        let target = part.split([')', ' ', '\n']).next().unwrap_or_default();
        targets.push(target.to_owned());
    }
    for line in prose.lines() {
        let definition = line
            .strip_prefix('[')
            .and_then(|line| line.split_once("]: "));
        targets.extend(definition.map(|(_, target)| target.trim().to_owned()));
    }
    targets
}

#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let mut documents = files(&root().join("docs"), "md");
    documents.extend(files(&root().join("examples"), "md"));
    for entry in fs::read_dir(root()).expect("is read") {
        let path = entry.expect("is read").path();
        if path.extension().is_some_and(|it| it == "md") {
            documents.push(path);
        }
    }
    assert!(documents.len() > 50, "{}", documents.len());
    let mut broken = Vec::new();
    for file in &documents {
        let document = fs::read_to_string(file).expect("is read");
        for target in targets(&prose(&document)) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&*target, ""));
            let folder = file.parent().expect("has one");
            let leads_to = if path.is_empty() {
                file.clone()
            } else {
                folder.join(path)
            };
            let is_heading = || {
                let document = fs::read_to_string(&leads_to).unwrap_or_default();
                anchor.is_empty() || anchors(&prose(&document)).contains(anchor)
            };
            if !leads_to.exists() || !is_heading() {
                broken.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn each_document_is_a_chapter_of_the_book() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).expect("is read");
    for file in files(&docs, "md") {
        let chapter = file
            .strip_prefix(&docs)
            .expect("is below")
            .display()
            .to_string();
        let is_listed = chapter == "SUMMARY.md" || summary.contains(&format!("({chapter})"));
        assert!(is_listed, "docs/SUMMARY.md lacks {chapter}");
    }
}

/// What a heading of the troubleshooting chapter quotes is what a user sees, so that a search finds it.
#[test]
fn quotes_of_the_troubleshooting_chapter_stand_in_the_code() {
    let chapter = fs::read_to_string(root().join("docs/troubleshooting.md")).expect("is read");
    let mut sources = String::new();
    for folder in ["src", "crates"] {
        for file in files(&root().join(folder), "rs") {
            sources += &fs::read_to_string(file).expect("is read");
        }
    }
    // A string literal may continue on the next line.
    let words = |text: &str| {
        let text = text.replace("\\\n", " ").replace("\\\"", "\"");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let sources = words(&sources);
    let mut quotes = 0;
    for heading in chapter.lines().filter(|line| line.starts_with("### ")) {
        for quote in heading.split('"').skip(1).step_by(2) {
            assert!(sources.contains(&words(quote)), "no code says: {quote}");
            quotes += 1;
        }
    }
    assert!(quotes > 20, "{quotes} quotes");
}

/// The chapter of errors is made of what the code says about each kind. `PERENNIAL_UPDATE=1` writes it.
#[test]
fn chapter_of_errors_says_what_the_code_says() {
    let code = fs::read_to_string(root().join("crates/store/src/error.rs")).expect("is read");
    let (_, kinds) = code.split_once("pub enum ErrorKind").expect("is there");
    let mut chapter = "# Errors\n\n\
        Every operation returns the same type, `perennial::Error`. A program matches on its `kind()`, and a person reads its \
        message: `{error}` is the message alone, and `{error:#}` adds the causes. This table is generated from the code.\n\n\
        | `ErrorKind` | in logs and metrics | meaning, and what to do |\n|---|---|---|\n"
        .to_owned();
    let (mut meaning, mut count) = (Vec::new(), 0);
    for line in kinds.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            meaning.push(text);
        } else if let Some((kind, word)) = line.split_once(" => ") {
            let word = word.trim_matches(['"', ',']);
            chapter += &format!("| `{kind}` | `{word}` | {} |\n", meaning.join(" "));
            meaning.clear();
            count += 1;
        } else if line == "}" {
            break;
        }
    }
    assert!(count > 8, "{count} kinds");
    chapter += "\n[Troubleshooting](../troubleshooting.md) lists messages. [Is my page cached?](is-my-page-cached.md) lists the \
        answers that visitors get.\n";
    let file = root().join("docs/guide/errors.md");
    if std::env::var_os("PERENNIAL_UPDATE").is_some() {
        fs::write(&file, &chapter).expect("is written");
    }
    let present = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        present,
        chapter,
        "PERENNIAL_UPDATE=1 writes {}",
        file.display()
    );
}

/// What the chapter on operating removes is what the first start makes.
#[cfg(feature = "sqlite")]
#[test]
fn uninstalling_removes_each_table() {
    let chapter = fs::read_to_string(root().join("docs/guide/operating.md")).expect("is read");
    let dropped = chapter.split("DROP TABLE ").skip(1);
    let dropped: BTreeSet<_> = dropped.filter_map(|it| it.split(';').next()).collect();
    let ddl = perennial::Perennial::builder().ddl("sqlite://site.db");
    let ddl = ddl.expect("is known");
    let made = ddl.split("CREATE TABLE IF NOT EXISTS ").skip(1);
    let made: BTreeSet<_> = made.filter_map(|it| it.split([' ', '(']).next()).collect();
    assert_eq!(dropped, made);
}
