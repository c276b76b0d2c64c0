//! What the databases do differently, side by side.
//!
//! In the statements `{p}` is the table prefix and `{now}` the database's clock in microseconds since 1970, UTC. Arguments
//! are numbered in the order of the comment above each.

/// The statements of one database.
pub(super) struct Dialect {
    /// The clock. Never that of the process.
    pub(super) now: &'static str,
    /// Begins the transaction in which the tables are made: no other process may be at it.
    pub(super) begin_schema: &'static str,
    /// The tables: each element leads from the version that is its index to the next one. None is ever edited after a release.
    pub(super) schema: &'static [&'static [&'static str]],
    /// key, lock name, known fence -> lock: fence, owned, remaining; entry: fence, age, status, headers, body
    pub(super) probe: &'static str,
    /// name, owner, length, seen fence or -1 -> fence
    pub(super) try_lock: &'static str,
    /// name, owner, fence, length
    pub(super) extend: &'static str,
    /// name, owner, fence, cooldown
    pub(super) release: &'static str,
    /// key, lock name, owner, fence, status, headers, body
    pub(super) publish: &'static str,
    /// key, lock name, owner, fence, known fence
    pub(super) renew: &'static str,
    /// key, lock name, owner, fence
    pub(super) remove: &'static str,
    /// key -> fence
    pub(super) fence_of: &'static str,
}

#[cfg(feature = "sqlite")]
pub(super) const SQLITE: Dialect = Dialect {
    // `unixepoch('subsec')` is NULL before SQLite 3.42, which another program on the same file may be.
    now: "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)",
    // Not DEFERRED: a transaction that reads before it writes is refused at once (SQLITE_BUSY), in spite of any busy timeout.
    begin_schema: "BEGIN IMMEDIATE",
    schema: &[&[
        "CREATE TABLE {p}lock (
            name TEXT NOT NULL PRIMARY KEY,
            owner TEXT,
            fence INTEGER NOT NULL,
            acquired_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL
        ) WITHOUT ROWID",
        "CREATE TABLE {p}entry (
            key TEXT NOT NULL PRIMARY KEY,
            fence INTEGER NOT NULL,
            started_at INTEGER NOT NULL,
            generated_at INTEGER NOT NULL,
            status INTEGER NOT NULL,
            headers BLOB NOT NULL,
            body BLOB NOT NULL
        )",
    ]],
    probe: "SELECT coalesce(l.fence, 0), CASE WHEN l.owner IS NULL THEN 0 ELSE 1 END, coalesce(l.expires_at - n.at, 0),
            e.fence, n.at - e.generated_at, e.status, e.headers, e.body
        FROM (SELECT {now} AS at) n
        LEFT JOIN {p}lock l ON l.name = $2
        LEFT JOIN {p}entry e ON e.key = $1 AND e.fence > $3",
    try_lock: "INSERT INTO {p}lock AS l (name, owner, fence, acquired_at, expires_at)
        SELECT $1, $2, n.at, n.at, n.at + $3 FROM (SELECT {now} AS at) n WHERE true
        ON CONFLICT (name) DO UPDATE SET
            owner = excluded.owner,
            fence = max(l.fence + 1, excluded.fence),
            acquired_at = excluded.acquired_at,
            expires_at = excluded.expires_at
        WHERE l.expires_at <= excluded.acquired_at AND ($4 < 0 OR l.fence = $4)
        RETURNING fence",
    extend: "UPDATE {p}lock SET expires_at = {now} + $4
        WHERE name = $1 AND owner = $2 AND fence = $3 AND expires_at > {now}",
    release: "UPDATE {p}lock SET owner = NULL, expires_at = CASE $4 WHEN 0 THEN 0 ELSE {now} + $4 END
        WHERE name = $1 AND owner = $2 AND fence = $3",
    publish: "INSERT INTO {p}entry (key, fence, started_at, generated_at, status, headers, body)
        SELECT $1, l.fence, l.acquired_at, {now}, $5, $6, $7
        FROM {p}lock l WHERE l.name = $2 AND l.owner = $3 AND l.fence = $4
        ON CONFLICT (key) DO UPDATE SET
            fence = excluded.fence,
            started_at = excluded.started_at,
            generated_at = excluded.generated_at,
            status = excluded.status,
            headers = excluded.headers,
            body = excluded.body
        WHERE {p}entry.fence < excluded.fence",
    renew: "UPDATE {p}entry SET fence = $4, generated_at = {now},
            started_at = (SELECT l.acquired_at FROM {p}lock l WHERE l.name = $2)
        WHERE key = $1 AND fence = $5 AND fence < $4
            AND EXISTS (SELECT 1 FROM {p}lock l WHERE l.name = $2 AND l.owner = $3 AND l.fence = $4)",
    remove: "DELETE FROM {p}entry WHERE key = $1
            AND EXISTS (SELECT 1 FROM {p}lock l WHERE l.name = $2 AND l.owner = $3 AND l.fence = $4)",
    fence_of: "SELECT fence FROM {p}entry WHERE key = $1",
};
