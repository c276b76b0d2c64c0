//! The statements on requests with an `Idempotency-Key`.
//!
//! A row without a status belongs to a request that has not finished. The status 0 means that the request was
//! done, and that its response is not stored.

use super::PerDialect;

/// Begins a request whose name has no row.
///
/// name, owner, fingerprint, length, retention -> a number, if the row was inserted
pub(crate) const BEGIN: PerDialect = PerDialect {
    mysql: "INSERT INTO {p}request (name, owner, fingerprint, begun_at, expires_at, retain_until)
        VALUES ($1, $2, $3, LAST_INSERT_ID({now}), {now} + $4, {now} + $5)
        ON DUPLICATE KEY UPDATE begun_at = {p}request.begun_at + LAST_INSERT_ID(0)",
    ..PerDialect::same(
        "INSERT INTO {p}request (name, owner, fingerprint, begun_at, expires_at, retain_until)
        SELECT $1, $2, $3, n.at, n.at + $4, n.at + $5 FROM (SELECT {now} AS at) n WHERE true
        ON CONFLICT (name) DO NOTHING
        RETURNING begun_at",
    )
};

/// name, fingerprint, the time after which a request runs again or -1 -> owner, fingerprint,
/// remaining, 1 if the row may be taken from its owner, status, headers, body
pub(crate) const READ: PerDialect = PerDialect::same(
    "{waits}SELECT r.owner, r.fingerprint, r.expires_at - n.at,
        CASE WHEN r.retain_until <= n.at THEN 1
            WHEN r.status IS NULL AND r.fingerprint = $2 AND $3 >= 0 AND r.begun_at + $3 <= n.at THEN 1
            ELSE 0 END,
        r.status, r.headers, r.{body}
    FROM (SELECT {now} AS at{hex}) n JOIN {p}request r ON r.name = $1",
);

/// Takes the row from the owner that was read, if the row may still be taken.
///
/// name, owner, fingerprint, length, retention, the time after which a request runs again or -1,
/// owner that was read -> one row changed, if the row was taken
pub(crate) const TAKE: PerDialect = PerDialect::same(
    "{waits}UPDATE {p}request SET owner = $2, fingerprint = $3, begun_at = {now}, expires_at = {now} + $4,
        retain_until = {now} + $5, status = NULL, headers = NULL, {body} = NULL
    WHERE name = $1 AND owner = $7 AND (retain_until <= {now}
        OR (status IS NULL AND fingerprint = $3 AND $6 >= 0 AND begun_at + $6 <= {now}))",
);

/// The first response that is stored stays.
///
/// name, owner, retention, status, headers, body -> one row changed, if the owner has begun the
/// request and it has not finished
pub(crate) const FINISH: PerDialect = PerDialect::same(
    "{waits}UPDATE {p}request SET status = $4, headers = $5, {body} = $6, retain_until = {now} + $3
    WHERE name = $1 AND owner = $2 AND status IS NULL",
);

/// name, owner -> 1, if the owner's request has finished
pub(crate) const FINISHED: PerDialect = PerDialect::same(
    "{waits}SELECT count(*) FROM {p}request WHERE name = $1 AND owner = $2 AND status IS NOT NULL",
);

/// name, owner, or `*` for any -> one row changed, if the owner's request had not finished
pub(crate) const FORGET: PerDialect = PerDialect::same(
    "{waits}DELETE FROM {p}request WHERE name = $1 AND (owner = $2 OR $2 = '*') AND status IS NULL",
);

/// The clock is read once: an index cannot look up an expression that may differ in each row. The
/// outer condition is tested again on a row that a `TAKE` has changed in the meantime.
///
/// number of rows
pub(crate) const PRUNE: PerDialect = PerDialect {
    // With `IN`, the server may read the whole table for a join.
    postgres: "DELETE FROM {p}request WHERE retain_until <= (SELECT {now}) AND name = ANY (ARRAY(
            SELECT name FROM {p}request WHERE retain_until <= (SELECT {now}) ORDER BY retain_until LIMIT $1
        ))",
    mysql: "DELETE FROM {p}request WHERE retain_until <= {now} ORDER BY retain_until LIMIT $1",
    ..PerDialect::same(
        "DELETE FROM {p}request WHERE retain_until <= (SELECT {now}) AND name IN (
            SELECT name FROM {p}request WHERE retain_until <= (SELECT {now}) ORDER BY retain_until LIMIT $1
        )",
    )
};
