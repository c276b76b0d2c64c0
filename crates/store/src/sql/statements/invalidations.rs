//! The statements on the invalidation list and the outbox. All epochs come from one row. A statement that
//! raises the epoch keeps that row locked until it is committed, and so epochs become visible in order.

use super::PerDialect;

/// Invalidations queue for one row, so that a reader who sees an epoch sees all smaller epochs. A
/// revision keeps its first epoch.
///
/// names -> the new epoch
pub(crate) const INVALIDATE: PerDialect = PerDialect {
    // There is one writer at a time, so the counter cannot change between the read and the write.
    sqlite: "INSERT INTO {p}invalidation AS i (name, epoch)
        SELECT n.name, max(coalesce((SELECT epoch + 1 FROM {p}invalidation WHERE name = '*'), 0), {now})
        FROM (SELECT column1 AS name FROM (VALUES ('*'), {rows})) n WHERE true
        ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
        RETURNING epoch",
    // The counter in the table `schema` is raised first, because the rows get its new value as their epoch.
    postgres: "WITH n AS (
            INSERT INTO {p}schema AS s (id, version) VALUES (2, {now})
            ON CONFLICT (id) DO UPDATE SET version = greatest(s.version + 1, excluded.version)
            RETURNING s.version AS epoch
        )
        INSERT INTO {p}invalidation AS i (name, epoch) SELECT DISTINCT v.name, n.epoch FROM n, (VALUES {rows}) v (name)
        ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
        RETURNING i.epoch{notify}",
    // Row by row, in their order.
    mysql: "INSERT INTO {p}invalidation (name, epoch) VALUES ('*', LAST_INSERT_ID({now})), {rows_with_epoch}
        ON DUPLICATE KEY UPDATE epoch = IF(name = '*', LAST_INSERT_ID(GREATEST(epoch + 1, VALUES(epoch))),
            IF(name LIKE 'revision:%', epoch, LAST_INSERT_ID()))",
};

/// Names that were invalidated together have one epoch, and are all in the answer or none of them is.
///
/// known epoch, number -> name, epoch, -1, nothing: may return more rows than the number, to complete the last
/// epoch
pub(crate) const INVALIDATED: &str = "{waits}SELECT n.name, n.epoch, -1, '' FROM {p}invalidation n
    WHERE n.epoch > $1 AND n.name <> '*' AND n.epoch <= coalesce((
        SELECT epoch FROM {p}invalidation WHERE epoch > $1 AND name <> '*' ORDER BY epoch LIMIT 1 OFFSET $2
    ), 9223372036854775807)";

/// The rest of [`INVALIDATED`] for awaited keys.
///
/// names -> name, fence of the entry or 0, time until the lease expires or 0, nothing
pub(crate) const PEER_LEASES: &str = " UNION ALL
    SELECT l.name, coalesce(e.fence, 0), CASE WHEN l.owner IS NULL OR l.expires_at < n.at THEN 0 ELSE l.expires_at - n.at END, ''
    FROM (SELECT {now} AS at) n JOIN {p}lock l ON l.kind = 'page' AND l.name IN ({names}) LEFT JOIN {p}entry e ON e.name = l.name";

/// The rest of [`INVALIDATED`] for invalidations that transactions have committed, after the id `$3`.
///
/// -> name, 0, -2, id
pub(crate) const COMMITTED: &str = " UNION ALL SELECT o.name, 0, -2, o.id FROM (
        SELECT id, name FROM {p}outbox WHERE id > $3 ORDER BY id LIMIT $2
    ) o";

/// Writes an invalidation in the application's transaction. Two transactions never wait for each other,
/// as ids are random.
///
/// id, name
pub(crate) const WRITE: &str = "INSERT INTO {p}outbox (id, name) VALUES ($1, $2)";

/// Gives epochs to invalidations of the outbox and removes their rows. Rows that somebody has locked are
/// skipped: another process may be doing the same, or a program may be waiting. On the other databases,
/// [`TAKE`] returns the rows, [`INVALIDATE`] gives them epochs, and [`REMOVE`] removes them.
///
/// ids -> id, name, epoch
pub(crate) const NUMBER: &str = "WITH o AS (
        DELETE FROM {p}outbox WHERE id IN (SELECT id FROM {p}outbox WHERE id IN ({names}) FOR UPDATE SKIP LOCKED) RETURNING id, name
    ), n AS (
        INSERT INTO {p}schema AS s (id, version) SELECT 2, {now} WHERE EXISTS (SELECT 1 FROM o)
        ON CONFLICT (id) DO UPDATE SET version = greatest(s.version + 1, excluded.version)
        RETURNING s.version AS epoch
    ), i AS (
        INSERT INTO {p}invalidation AS i (name, epoch) SELECT DISTINCT o.name, n.epoch FROM o, n
        ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
        RETURNING i.name, i.epoch{notify}
    )
    SELECT o.id, i.name, i.epoch FROM o JOIN i ON i.name = o.name";

/// ids -> id, name
pub(crate) const TAKE: &str = "{waits}SELECT id, name FROM {p}outbox WHERE id IN ({names})";

/// ids
pub(crate) const REMOVE: &str = "{at_once}DELETE FROM {p}outbox WHERE id IN ({names})";

/// -> the latest epoch
pub(crate) const LATEST_EPOCH: &str = "{waits}SELECT coalesce(max(epoch), 0) FROM {p}invalidation";

/// -> the epoch of the latest purge of everything
pub(crate) const PURGED_UNTIL: &str =
    "{waits}SELECT coalesce(max(epoch), 0) FROM {p}invalidation WHERE name = 'purged_prefix:'";

/// The latest names of a list from before an epoch. Names of one epoch are all in the answer, or none of
/// them is.
///
/// kind, epoch, number -> name, epoch: may return more rows than the number, to complete the last epoch
pub(crate) const LATEST_NAMES: &str = "{waits}SELECT n.name, n.epoch FROM {p}invalidation n
    WHERE n.kind = $1 AND n.epoch < $2 AND n.epoch >= coalesce((
        SELECT epoch FROM {p}invalidation WHERE kind = $1 AND epoch < $2 ORDER BY epoch DESC LIMIT 1 OFFSET $3
    ), 0)";

/// last epoch, the smallest epoch of an entry, the least age -> the greatest of the next 10,000
/// epochs
pub(crate) const NEXT: PerDialect = PerDialect::same(
    "SELECT max(n.epoch) FROM (
        SELECT epoch FROM {p}invalidation
        WHERE epoch > $1 AND epoch <= $2 AND epoch < {now} - $3 AND name <> '*' ORDER BY epoch LIMIT 10000
    ) n",
);

/// Purges everything from before an epoch.
///
/// epoch
pub(crate) const PURGE_ALL: PerDialect = PerDialect {
    mysql: "INSERT INTO {p}invalidation (name, epoch) VALUES ('purged_prefix:', $1)
        ON DUPLICATE KEY UPDATE epoch = GREATEST(epoch, VALUES(epoch))",
    ..PerDialect::same(
        "INSERT INTO {p}invalidation AS i (name, epoch) VALUES ('purged_prefix:', $1)
        ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.epoch < excluded.epoch THEN excluded.epoch ELSE i.epoch END",
    )
};

/// last epoch of the previous step, last epoch of this step
pub(crate) const PRUNE: PerDialect = PerDialect::same(
    "DELETE FROM {p}invalidation WHERE epoch > $1 AND epoch <= $2
    AND name NOT IN ('*', 'purged_prefix:') AND substr(name, 1, 9) <> 'revision:'",
);
