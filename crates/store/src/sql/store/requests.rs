//! The operations of `calls.rs` on idempotent requests. The beginning of a request is not repeated
//! automatically: if the reply is lost, the caller is told so, and decides whether to repeat.

use bytes::Bytes;
use http::{Response, StatusCode};

use super::{SqlResult, SqlStore};
use crate::{
    calls::{Begin, Finish, Forget, PruneRequests},
    clock::{FOREVER, micros},
    driver::{Row, Rows},
    name::bounded,
    rows::{Begun, RequestProgress},
    sql::{
        run::{Arg, Cells, is_contended, number},
        statements::{PerDialect, requests},
        wire,
    },
};

/// The status in the row of a request whose response is not stored.
const NOT_STORED: i64 = 0;

/// Stands in the place of an owner, and means any owner of the row.
const ANY: &str = "*";

impl SqlStore {
    pub(crate) async fn begin(&self, call: &Begin) -> SqlResult<Begun> {
        let name = bounded(&call.name);
        let (name, owner) = (Arg::Text(&name), Arg::Text(&call.owner));
        let fingerprint = Arg::Text(&call.fingerprint);
        let times = [call.length, call.retention].map(|time| Arg::Int(micros(time.min(FOREVER))));
        let again = Arg::Int(call.again.map_or(-1, |time| micros(time.min(FOREVER))));
        let row = [name, owner, fingerprint, times[0], times[1]];
        loop {
            // A caller whose reply was lost knows that it was lost, and repeats the call itself.
            let inserted = self.run_once(&requests::BEGIN, &row).await?;
            if number(&inserted)?.is_some() {
                return Ok(Begun::Own);
            }
            let key = [name, fingerprint, again];
            let done = self.run(&requests::READ, &key).await?;
            // The row was removed in between.
            let Some(row_read) = done.rows.first() else {
                continue;
            };
            let current = row_read.name(0)?;
            if row_read.number(3)? == 0 {
                return found(row_read, current == call.owner);
            }
            let arguments = [&row[..], &[again, Arg::Text(&current)]].concat();
            if self.run_once(&requests::TAKE, &arguments).await?.changed > 0 {
                return Ok(Begun::Own);
            }
        }
    }

    /// Runs a statement, and does not repeat it if its connection breaks.
    async fn run_once(&self, sql: &PerDialect, arguments: &[Arg<'_>]) -> SqlResult<Rows> {
        let statement = self.statement(sql).await?;
        let done = self
            .connections
            .run_while(is_contended, &statement, arguments);
        Ok(done.await?)
    }

    pub(crate) async fn finish(&self, call: &Finish) -> SqlResult<bool> {
        let name = bounded(&call.name);
        let of = [Arg::Text(&name), Arg::Text(&call.owner)];
        let response = call.response.as_ref();
        let status = response.map_or(NOT_STORED, |it| it.status().as_u16().into());
        let headers = response.map_or_else(Vec::new, |it| wire::encode(it.headers()));
        let body = response.map_or(&b""[..], |it| it.body());
        let retention = micros(call.retention.min(FOREVER));
        let row = [
            Arg::Int(retention),
            Arg::Int(status),
            Arg::Bytes(&headers),
            Arg::Bytes(body),
        ];
        let done = self
            .run(&requests::FINISH, &[&of[..], &row].concat())
            .await?;
        if done.changed > 0 {
            return Ok(true);
        }
        // An earlier call may have finished the request, and its reply may have been lost.
        let done = self.run(&requests::FINISHED, &of).await?;
        Ok(number(&done)?.is_some_and(|rows| rows > 0))
    }

    pub(crate) async fn forget(&self, call: &Forget) -> SqlResult<bool> {
        let name = bounded(&call.name);
        let of = [&name, call.owner.as_deref().unwrap_or(ANY)].map(Arg::Text);
        Ok(self.run(&requests::FORGET, &of).await?.changed > 0)
    }

    pub(crate) async fn prune_requests(&self, call: &PruneRequests) -> SqlResult<u64> {
        let done = self
            .run(&requests::PRUNE, &[Arg::Int(call.limit.into())])
            .await?;
        Ok(done.changed)
    }
}

/// Reads a row in the columns of [`requests::READ`]. `is_own` says whether the row is the caller's.
fn found(row: &Row, is_own: bool) -> SqlResult<Begun> {
    let progress = match row.int(4)? {
        None if is_own => return Ok(Begun::Own),
        None if row.number(2)? > 0 => RequestProgress::Running,
        None => RequestProgress::Unknown,
        Some(NOT_STORED) => RequestProgress::Done(None),
        Some(status) => {
            let response = response(row, status);
            if let Err(error) = &response {
                tracing::warn!(%error, "the stored response to a request cannot be read");
            }
            RequestProgress::Done(response.ok())
        }
    };
    let fingerprint = row.name(1)?;
    Ok(Begun::Other {
        fingerprint,
        progress,
    })
}

fn response(row: &Row, status: i64) -> SqlResult<Response<Bytes>> {
    let mut response = Response::new(row.bytes(6)?.unwrap_or_default());
    *response.status_mut() = StatusCode::from_u16(u16::try_from(status)?)?;
    *response.headers_mut() = wire::decode(&row.bytes(5)?.unwrap_or_default())?;
    Ok(response)
}
