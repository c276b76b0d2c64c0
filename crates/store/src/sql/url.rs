//! The URL of a database: its checks, and its form in the log.

use super::statements::Dialect;
use crate::error::Error;

/// Returns the dialect for the database of this URL. It is an error if support for that database is not
/// compiled in.
pub fn dialect_of(url: &str) -> Result<Dialect, Error> {
    let (dialect, feature, is_built_in) = match url.split(':').next().unwrap_or_default() {
        "sqlite" => (Dialect::Sqlite, "sqlite", cfg!(feature = "sqlite")),
        "postgres" | "postgresql" => (Dialect::Postgres, "postgres", cfg!(feature = "postgres")),
        "mysql" | "mariadb" => (Dialect::MySql, "mysql", cfg!(feature = "mysql")),
        _ => {
            return Err(refused(
                url,
                "write `sqlite://site.db` for a file in the current folder, `sqlite:///var/lib/site.db` for one with an absolute path, \
                 `postgres://user:password@host/database`, or `mysql://user:password@host/database`, for MariaDB too",
            ));
        }
    };
    if is_built_in {
        Ok(dialect)
    } else {
        Err(refused(
            url,
            &format!("enable perennial's feature `{feature}` in Cargo.toml"),
        ))
    }
}

fn refused(url: &str, why: &str) -> Error {
    let url = without_password(url);
    Error::invalid(format!("the database URL {url:?} cannot be used: {why}"))
}

/// Refuses a URL that sqlx would misread, or for which sqlx would return an unhelpful error.
pub(super) fn check_url(url: &str) -> Result<(), Error> {
    if url.starts_with("sqlite:") {
        return Ok(());
    }
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let host = address.split_once("://").map_or("", |(_, rest)| rest);
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = host.split('/').next().unwrap_or_default();
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    let several = host.contains(',')
        || parameters.any(|(name, value)| match &*name {
            "host" | "hostaddr" | "port" => value.contains(','),
            "target_session_attrs" | "load_balance_hosts" => true,
            _ => false,
        });
    if several {
        return Err(refused(
            url,
            "it names several hosts, or which of them is wanted (`target_session_attrs`), and sqlx connects to one; write the address of a \
             proxy in front of them that leads to the primary, as docs/scale.md shows",
        ));
    }
    Ok(())
}

/// Returns the URL without the credentials before the `@` and the text after a `?`, for the log.
pub fn without_password(url: &str) -> String {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let scheme = address.find("://").map_or("", |at| &address[..at + 3]);
    match address.rsplit_once('@') {
        // The `?` may be a part of the password.
        _ if query.contains('@') => format!("{scheme}…"),
        Some((_, host)) => format!("{scheme}…@{host}"),
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn password_is_never_shown() {
        for (url, shown) in [
            (
                "postgres://me:a@b:c@host/site?password=x",
                "postgres://…@host/site",
            ),
            ("postgres://me:se?cret@host/site", "postgres://…"),
            ("postgres:me:secret@host/site", "…@host/site"),
            ("sqlite://site.db", "sqlite://site.db"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
