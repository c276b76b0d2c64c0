//! The guard of a request that may change the data of pages.
//!
//! Invariant: a change that may have happened is never without its invalidation. Where nobody learns the
//! outcome, because the client has left or the service has panicked, dropping the guard invalidates.

use std::sync::Arc;

use http::{Method, Response};
use perennial_store::Epoch;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    cache::{Cache, Target, record_writes},
    layer::own_writes::{self, Issuer},
};

/// The methods that the registry of HTTP methods calls safe (RFC 9110 §9.2.1 and §16.1.1).
const SAFE: [&str; 9] = [
    "GET", "HEAD", "OPTIONS", "PRI", "PROPFIND", "QUERY", "REPORT", "SEARCH", "TRACE",
];

/// Returns true for methods that change nothing. A method that is not registered may change
/// something (RFC 9111 §4.4).
pub(in crate::layer) fn is_safe(method: &Method) -> bool {
    SAFE.contains(&method.as_str())
}

/// Returns the invalidation names of tags.
pub(super) fn names(tags: &[String]) -> Vec<String> {
    let names = tags.iter().filter_map(|tag| Target::Tag(tag).name().ok());
    names.collect()
}

/// A request that may change the data behind these names. Dropping it before the outcome is known
/// invalidates the names.
pub(in crate::layer) struct Change {
    cache: Arc<Cache>,
    names: Vec<String>,
    /// The latest epoch that this process knew before the request.
    before: Epoch,
    /// While this is there, a shutdown waits. `None` means that the change is settled.
    token: Option<TaskTrackerToken>,
}

impl Change {
    pub(in crate::layer) fn of(cache: &Arc<Cache>, names: Vec<String>) -> Self {
        Self {
            before: cache.latest_epoch(),
            token: Some(cache.task_token()),
            cache: Arc::clone(cache),
            names,
        }
    }

    /// Awaits the response. A successful one (RFC 9111 §4.4) invalidates these names and the names
    /// that `named` finds in the response.
    pub(in crate::layer) async fn settle<B, E>(
        mut self,
        response: impl Future<Output = Result<Response<B>, E>>,
        named: impl FnOnce(&Response<B>) -> Vec<String>,
    ) -> Result<Response<B>, E> {
        let (mut response, written_epoch) = record_writes(response).await;
        let mut names = std::mem::take(&mut self.names);
        let token = self.token.take();
        if let Ok(answer) = &mut response
            && (answer.status().is_success() || answer.status().is_redirection())
        {
            names.extend(named(answer));
            let epoch = match token {
                Some(token) if !names.is_empty() => {
                    Some(self.cache.commands.invalidate_names(names, token).await)
                }
                _ => None,
            };
            let shows_author = self.cache.reads_own_writes();
            let triggered = match self.cache.settings().follows_triggers {
                true => {
                    let sync = self.cache.sync();
                    sync.apply_triggered(self.before, shows_author).await
                }
                false => None,
            };
            let epoch = epoch.max(written_epoch).max(triggered);
            if let Some(epoch) = epoch.filter(|_| shows_author) {
                own_writes::set_cookie(answer.headers_mut(), Issuer::of(&self.cache), epoch);
            }
        }
        response
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let names = std::mem::take(&mut self.names);
        if let Some(token) = self.token.take()
            && !names.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let cache = Arc::clone(&self.cache);
            runtime.spawn(async move { cache.commands.invalidate_names(names, token).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The registry as of 2026: https://www.iana.org/assignments/http-methods.
    #[test]
    fn registered_methods_are_safe_as_the_registry_says_and_others_are_not() {
        let unsafe_ones = [
            "ACL",
            "BASELINE-CONTROL",
            "BIND",
            "CHECKIN",
            "CHECKOUT",
            "CONNECT",
            "COPY",
            "DELETE",
            "LABEL",
            "LINK",
            "LOCK",
            "MERGE",
            "MKACTIVITY",
            "MKCALENDAR",
            "MKCOL",
            "MKREDIRECTREF",
            "MKWORKSPACE",
            "MOVE",
            "ORDERPATCH",
            "PATCH",
            "POST",
            "PROPPATCH",
            "PUT",
            "REBIND",
            "UNBIND",
            "UNCHECKOUT",
            "UNLINK",
            "UNLOCK",
            "UPDATE",
            "UPDATEREDIRECTREF",
            "VERSION-CONTROL",
            "*",
            "get",
            "Query",
            "OWN",
        ];
        for (names, expected) in [(&SAFE[..], true), (&unsafe_ones[..], false)] {
            for name in names {
                let method = Method::from_bytes(name.as_bytes()).expect("a method");
                assert_eq!(is_safe(&method), expected, "{name}");
            }
        }
    }
}
