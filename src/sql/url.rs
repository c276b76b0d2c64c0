//! The URL of a database: its checks, and its form in the log.

use crate::error::Error;

/// An example of a URL of each kind.
const EXAMPLES: &[&str] = &[
    #[cfg(feature = "sqlite")]
    "`sqlite://site.db` for a file in the current folder, `sqlite:///var/lib/site.db` for one with an absolute path",
    #[cfg(feature = "postgres")]
    "`postgres://user:password@host/database`",
    #[cfg(feature = "mysql")]
    "`mysql://user:password@host/database`, for MariaDB too",
];

/// Returns the error for a URL of an unknown kind.
pub(super) fn unknown(url: &str) -> Error {
    let scheme = url.split(':').next().unwrap_or_default();
    let missing = match scheme {
        "sqlite" => Some("sqlite"),
        "postgres" | "postgresql" => Some("postgres"),
        "mysql" | "mariadb" => Some("mysql"),
        _ => None,
    };
    if let Some(feature) = missing {
        return Error::invalid(format!(
            "the database URL {:?} cannot be used in this build: enable perennial's feature `{feature}` in Cargo.toml",
            without_password(url),
        ));
    }
    Error::invalid(format!(
        "the database URL {:?} cannot be used: write {}",
        without_password(url),
        EXAMPLES.join(", or "),
    ))
}

/// Refuses a URL that sqlx would misread, or for which sqlx would return an unhelpful error.
pub(super) fn check_url(url: &str) -> Result<(), Error> {
    let refused = |why: &str| {
        let url = without_password(url);
        Err(Error::invalid(format!(
            "the database URL {url:?} cannot be used: {why}"
        )))
    };
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
        return refused(
            "it names several hosts, or which of them is wanted (`target_session_attrs`), and sqlx connects to one; write the address of a \
             proxy in front of them that leads to the primary, as docs/scale.md shows",
        );
    }
    Ok(())
}

/// Returns the URL without the credentials before the `@` and the text behind a `?`, for the log.
pub(super) fn without_password(url: &str) -> String {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    match (address.split_once("://"), address.rsplit_once('@')) {
        // The `?` may be a part of the password.
        (Some((scheme, _)), _) if query.contains('@') => format!("{scheme}://…"),
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => address.to_owned(),
    }
}
