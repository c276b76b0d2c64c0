//! The operations on idempotent requests, over a table in memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Response;

use super::memory::micros;
use perennial_store::{Begin, Begun, Finish, Forget, RequestProgress, name::bounded};

#[derive(Default)]
pub(super) struct Requests(BTreeMap<String, Request>);

struct Request {
    owner: String,
    fingerprint: String,
    begun: i64,
    expires: i64,
    retain_until: i64,
    /// `None` means that the request has not finished.
    done: Option<Option<Response<Bytes>>>,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn begin(&mut self, call: &Begin, now: i64) -> Begun {
        let name = bounded(&call.name).into_owned();
        let again = |request: &Request| {
            let since = call
                .again
                .map(|time| request.begun.saturating_add(micros(time)));
            request.done.is_none()
                && request.fingerprint == call.fingerprint
                && since.is_some_and(|since| since <= now)
        };
        let request = self.0.get(&name);
        let request = request.filter(|request| request.retain_until > now && !again(request));
        if let Some(request) = request {
            let progress = match &request.done {
                None if request.owner == call.owner => return Begun::Own,
                None if request.expires > now => RequestProgress::Running,
                None => RequestProgress::Unknown,
                Some(response) => RequestProgress::Done(response.clone()),
            };
            let fingerprint = request.fingerprint.clone();
            return Begun::Other {
                fingerprint,
                progress,
            };
        }
        let request = Request {
            owner: call.owner.clone(),
            fingerprint: call.fingerprint.clone(),
            begun: now,
            expires: now.saturating_add(micros(call.length)),
            retain_until: now.saturating_add(micros(call.retention)),
            done: None,
        };
        self.0.insert(name, request);
        Begun::Own
    }

    pub(super) fn finish(&mut self, call: &Finish, now: i64) -> bool {
        let request = self.0.get_mut(&*bounded(&call.name));
        let Some(request) = request.filter(|request| request.owner == call.owner) else {
            return false;
        };
        if request.done.is_none() {
            request.done = Some(call.response.clone());
            request.retain_until = now.saturating_add(micros(call.retention));
        }
        true
    }

    pub(super) fn forget(&mut self, call: &Forget) -> bool {
        let name = bounded(&call.name);
        let request = self.0.get(&*name);
        let forgets = request.is_some_and(|request| {
            let owner = call.owner.as_ref();
            request.done.is_none() && owner.is_none_or(|owner| *owner == request.owner)
        });
        forgets && self.0.remove(&*name).is_some()
    }

    pub(super) fn prune(&mut self, limit: u32, now: i64) -> u64 {
        let over = self.0.iter().filter(|(_, row)| row.retain_until <= now);
        let mut over: Vec<_> = over
            .map(|(name, row)| (row.retain_until, name.clone()))
            .collect();
        over.sort_unstable();
        over.truncate(limit as usize);
        for (_, name) in &over {
            self.0.remove(name);
        }
        over.len() as u64
    }
}
