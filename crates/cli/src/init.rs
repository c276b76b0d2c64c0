//! `perennial init` prints what a new site needs, for the user to copy. It writes nothing, and connects to
//! nothing.

use crate::{Failure, Result, open::Source, print};

#[derive(Clone, Copy, Debug)]
enum Engine {
    Sqlite,
    Postgres,
    MySql,
}

pub(crate) fn print(source: &Source) -> Result {
    let url = source.url().unwrap_or("sqlite://site.db");
    let engine = match url.split(':').next() {
        Some("sqlite") => Engine::Sqlite,
        Some("postgres" | "postgresql") => Engine::Postgres,
        Some("mysql" | "mariadb") => Engine::MySql,
        _ => {
            return Err(Failure::Usage(format!(
                "{} is no URL of a database: write sqlite://site.db, postgres://user:password@host/site or mysql://user:password@host/site",
                perennial_store::sql::without_password(url)
            )));
        }
    };
    print::line(&text(engine));
    Ok(())
}

/// The line of `Cargo.toml`, as in the guide's quick start.
fn dependency(engine: Engine) -> &'static str {
    match engine {
        Engine::Sqlite => r#"perennial = "0.1""#,
        Engine::Postgres => {
            r#"perennial = { version = "0.1", default-features = false, features = ["axum", "postgres"] }"#
        }
        Engine::MySql => {
            r#"perennial = { version = "0.1", default-features = false, features = ["axum", "mysql"] }"#
        }
    }
}

fn text(engine: Engine) -> String {
    let (dependency, tls) = (
        dependency(engine),
        match engine {
            Engine::Sqlite => "",
            Engine::Postgres | Engine::MySql => {
                "\n# If the database is on another machine, add the feature \"tls-rustls\"."
            }
        },
    );
    let open = match engine {
        Engine::Sqlite => r#"Perennial::open("sqlite://site.db").await?"#,
        Engine::Postgres | Engine::MySql => {
            r#"Perennial::open(&std::env::var("DATABASE_URL")?).await?"#
        }
    };
    format!(
        r#"# Cargo.toml
{dependency}{tls}

// Where the application starts. `Perennial::with_pool(pool)` uses the pool that the application has.
let site = {open};

// Wrap a slow page: visitors get the old version while one request regenerates it.
let page = get(page).layer(site.layer(Refresh::every(Duration::from_secs(60))).tag("books"));

// Wrap a form that changes the page's data.
let form = post(change).layer(site.invalidate_on_success("books"));

// After the server has drained.
site.shutdown().await;

# The tables are made at the first start. Where migrations make them, by a role of their own:
#     perennial ddl --database URL             prints the statements
#     Perennial::builder().expect_tables()     makes none, and says so when they are missing
# Pages that follow the rows of a table, whoever changes them:
#     perennial triggers --database URL --table book --tag 'book-{{id}}' --list-tag books
# Then look at the settings of the database, and at a page:
#     perennial doctor --database URL
#     curl -si http://localhost:3000/ | grep -i cache-status"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_is_that_of_the_quick_start() {
        let quick_start = include_str!("../../../docs/guide/quick-start.md");
        for engine in [Engine::Sqlite, Engine::Postgres, Engine::MySql] {
            assert!(quick_start.contains(dependency(engine)), "{engine:?}");
            assert!(text(engine).contains(dependency(engine)));
        }
    }
}
