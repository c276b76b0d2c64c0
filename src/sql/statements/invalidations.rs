//! The statements on invalidations.

use super::Sides;

/// Invalidations queue for one row, so that a reader who sees an epoch sees all smaller epochs. A
/// revision keeps its first epoch.
///
/// name -> the new epoch
pub(in crate::sql) const INVALIDATE: Sides = Sides {
    // There is one writer at a time, so the counter cannot change between the read and the write.
    sqlite: "INSERT INTO {p}invalidation AS i (name, epoch)
        SELECT n.name, max(coalesce((SELECT epoch + 1 FROM {p}invalidation WHERE name = '*'), 0), {now})
        FROM (SELECT '*' AS name UNION ALL SELECT $1) n WHERE true
        ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
        RETURNING epoch",
    // The row with the counter is in the table `schema`, as for CockroachDB and YugabyteDB.
    postgres: "WITH n AS (
            INSERT INTO {p}schema AS s (id, version) VALUES (2, {now})
            ON CONFLICT (id) DO UPDATE SET version = greatest(s.version + 1, excluded.version)
            RETURNING s.version AS epoch
        ), i AS (
            INSERT INTO {p}invalidation AS i (name, epoch) SELECT $1, n.epoch FROM n
            ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
            RETURNING i.epoch
        )
        SELECT epoch, pg_notify('{p}invalidation', '')::text FROM i",
    // Without a notification.
    relative: Some(
        "WITH n AS (
            INSERT INTO {p}schema AS s (id, version) VALUES (2, {now})
            ON CONFLICT (id) DO UPDATE SET version = greatest(s.version + 1, excluded.version)
            RETURNING s.version AS epoch
        )
        INSERT INTO {p}invalidation AS i (name, epoch) SELECT $1, n.epoch FROM n
        ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
        RETURNING i.epoch",
    ),
    // Row by row, in their order.
    mysql: "INSERT INTO {p}invalidation (name, epoch) VALUES ('*', LAST_INSERT_ID({now})), ($1, LAST_INSERT_ID())
        ON DUPLICATE KEY UPDATE epoch = IF(name = '*', LAST_INSERT_ID(GREATEST(epoch + 1, VALUES(epoch))),
            IF(name LIKE 'revision:%', epoch, LAST_INSERT_ID()))",
};

/// known epoch, number -> name, epoch, in the order of epochs
pub(in crate::sql) const INVALIDATED: Sides = Sides::same(
    "{waits}SELECT name, epoch FROM {p}invalidation
    WHERE epoch > $1 AND name <> '*' ORDER BY epoch LIMIT $2",
);

/// last name, number -> name, epoch: the invalidation of everything, and in the order of names
/// purges and revisions
pub(in crate::sql) const INVALIDATED_FOR_LONG: Sides = Sides::same(
    "{waits}SELECT name, epoch FROM {p}invalidation WHERE name = 'prefix:'
    UNION ALL SELECT n.name, n.epoch FROM (
        SELECT name, epoch FROM {p}invalidation WHERE name > $1 AND name < 'revision;'
        ORDER BY name LIMIT $2
    ) n ORDER BY name",
);

/// last epoch -> the last one of the next few
pub(in crate::sql) const NEXT: Sides = Sides::same(
    "SELECT max(n.epoch) FROM (
        SELECT epoch FROM {p}invalidation WHERE epoch > $1 ORDER BY epoch LIMIT 10000
    ) n",
);

/// Deletes invalidations that an invalidation of everything replaces, and purges that are older
/// than `$4` and than every stored entry. Keeps revisions.
///
/// last epoch, the last one of the next few, epoch of the invalidation of everything, the time for
/// which a purge is remembered, the smallest epoch of an entry
pub(in crate::sql) const PRUNE: Sides = Sides::same(
    "DELETE FROM {p}invalidation WHERE epoch > $1 AND epoch <= $2
    AND CASE WHEN substr(name, 1, 6) = 'purged' THEN epoch < {now} - $4 AND epoch <= $5
        ELSE epoch < $3 AND substr(name, 1, 9) <> 'revision:' END",
);
