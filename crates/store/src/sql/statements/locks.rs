//! The statements on locks. Everything rests on `TRY`: in one statement, and without waiting for anybody, it
//! takes a free lock and raises its fence.

use super::PerDialect;

/// A held lock is not written.
///
/// kind, name, owner, length, seen fence or -1 -> fence, if the lock was taken, now or by an
/// earlier try of the same owner
pub(crate) const TRY: PerDialect = PerDialect {
    // The statement does not wait for a row that another transaction has locked (SKIP LOCKED). If
    // two statements insert the same name concurrently, the second one gives up after 50 ms.
    postgres: "WITH n AS (
            SELECT {now} AS at, set_config('lock_timeout', '50ms', true)
        ), c AS (
            SELECT l.kind, l.name FROM {p}lock l, n
            WHERE l.kind = $1 AND l.name = $2 AND (l.owner = $3 OR (l.expires_at <= n.at AND ($5 < 0 OR l.fence = $5)))
            FOR UPDATE OF l SKIP LOCKED
        ), u AS (
            UPDATE {p}lock l
            SET owner = $3, fence = CASE WHEN l.owner = $3 THEN l.fence ELSE greatest(l.fence + 1, n.at) END, acquired_at = n.at, expires_at = n.at + $4
            FROM c, n WHERE l.kind = c.kind AND l.name = c.name
            RETURNING l.fence
        ), i AS (
            INSERT INTO {p}lock (kind, name, owner, fence, acquired_at, expires_at)
            SELECT $1, $2, $3, n.at, n.at, n.at + $4 FROM n WHERE NOT EXISTS (SELECT 1 FROM {p}lock WHERE kind = $1 AND name = $2)
            ON CONFLICT (kind, name) DO NOTHING
            RETURNING fence
        )
        SELECT fence FROM u UNION ALL SELECT fence FROM i",
    // Assignments are carried out from left to right. The first one sets the owner, which no other acquisition
    // shares, and so the later ones can see whether this acquisition has taken the lock; the time would not do,
    // because two acquisitions may happen in the same microsecond. The fence is returned as the insert id,
    // because the number of affected rows does not show who has taken the lock.
    mysql: "{at_once}INSERT INTO {p}lock (kind, name, owner, fence, acquired_at, expires_at)
        VALUES ($1, $2, $3, LAST_INSERT_ID({now}), {now}, {now} + $4)
        ON DUPLICATE KEY UPDATE
            owner = IF(owner = $3 OR (expires_at <= VALUES(acquired_at) AND ($5 < 0 OR fence = $5)), $3, owner),
            fence = IF(owner = $3, LAST_INSERT_ID(IF(expires_at <= VALUES(acquired_at),
                GREATEST(fence + 1, VALUES(fence)), fence)), fence + LAST_INSERT_ID(0)),
            expires_at = IF(owner = $3, VALUES(expires_at), expires_at),
            acquired_at = IF(owner = $3, VALUES(acquired_at), acquired_at)",
    ..PerDialect::same(TRY_PLAIN)
};

const TRY_PLAIN: &str = "INSERT INTO {p}lock AS l (kind, name, owner, fence, acquired_at, expires_at)
    SELECT $1, $2, $3, n.at, n.at, n.at + $4 FROM (SELECT {now} AS at) n
    WHERE NOT EXISTS (SELECT 1 FROM {p}lock h WHERE h.kind = $1 AND h.name = $2 AND h.expires_at > n.at AND h.owner <> $3)
    ON CONFLICT (kind, name) DO UPDATE SET
        owner = excluded.owner,
        fence = CASE WHEN l.owner = $3 THEN l.fence WHEN l.fence < excluded.fence THEN excluded.fence ELSE l.fence + 1 END,
        acquired_at = excluded.acquired_at,
        expires_at = excluded.expires_at
    WHERE l.owner = $3 OR l.expires_at <= excluded.acquired_at AND ($5 < 0 OR l.fence = $5)
    RETURNING fence";

/// kind, name, owner, fence, length -> one row changed, if the owner has the lock
pub(crate) const EXTEND: PerDialect = PerDialect::same(
    "{waits}UPDATE {p}lock SET expires_at = {now} + $5
    WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 AND expires_at > {now}",
);

/// A cooldown counts as a failure, once for each lease. MySQL assigns in the order written.
///
/// kind, name, owner, fence, cooldown -> one row changed, if the owner has the lock, or no later
/// holder has acquired it since an earlier release
pub(crate) const RELEASE: PerDialect = PerDialect::same(
    "{waits}UPDATE {p}lock SET failures = CASE WHEN $5 = 0 THEN 0 WHEN owner IS NULL THEN failures ELSE failures + 1 END,
        owner = NULL, expires_at = CASE WHEN $5 = 0 THEN 0 ELSE {now} + $5 END
    WHERE kind = $1 AND name = $2 AND fence = $4 AND (owner = $3 OR owner IS NULL)",
);

/// Takes the lock from its holder with this fence, so that the holder cannot publish.
///
/// kind, name, fence
pub(crate) const BREAK: PerDialect = PerDialect::same(
    "{waits}UPDATE {p}lock SET owner = NULL, fence = fence + 1, expires_at = 0
    WHERE kind = $1 AND name = $2 AND fence = $3",
);

/// Takes the lock from the owner of an attempt whose reply was lost.
///
/// kind, name, owner
pub(crate) const REVOKE: PerDialect = PerDialect::same(
    "{waits}UPDATE {p}lock SET owner = NULL, fence = fence + 1, expires_at = 0
    WHERE kind = $1 AND name = $2 AND owner = $3",
);

/// Takes the locks of a page's variants from their holders. Where the primary key is ordered by
/// bytes, the rows are a range of it.
///
/// the lower bound of the variants' names, the upper bound (excluded)
pub(crate) const BREAK_VARIANTS: PerDialect = PerDialect::same(
    "{waits}UPDATE {p}lock SET owner = NULL, fence = fence + 1, expires_at = 0
    WHERE kind = 'page' AND {variants}",
);

/// Reads a lock.
///
/// Arguments: kind, name. Columns: kind, name, owner, fence, age, remaining time.
pub const INSPECT: PerDialect = PerDialect::same(
    "{waits}SELECT l.kind, l.name, l.owner, l.fence, n.at - l.acquired_at, l.expires_at - n.at
    FROM (SELECT {now} AS at) n JOIN {p}lock l ON l.kind = $1 AND l.name = $2",
);

/// Lists the locks as [`INSPECT`] does: those that have not expired, without the marks of completed
/// work.
pub(crate) const HELD: PerDialect = PerDialect::same(
    "SELECT l.kind, l.name, l.owner, l.fence, n.at - l.acquired_at, l.expires_at - n.at
    FROM (SELECT {now} AS at) n JOIN {p}lock l ON l.expires_at > n.at
    WHERE NOT (l.owner IS NULL AND l.kind = 'once') ORDER BY l.kind, l.name",
);

/// kind, last name -> the next hundred names
pub(crate) const NEXT: PerDialect = PerDialect::same(
    "SELECT name FROM {p}lock WHERE kind = $1 AND name > $2 ORDER BY name LIMIT 100",
);

/// kind; last name of the previous step; last of the next hundred names; and three times for which a lock may
/// be unused: one for a lock without an owner that has an entry, one for a lock with an owner, and one for a
/// lock with neither
pub(crate) const PRUNE: PerDialect = PerDialect::same(
    "DELETE FROM {p}lock WHERE kind = $1 AND name > $2 AND name <= $3
    AND CASE WHEN acquired_at < expires_at THEN expires_at ELSE acquired_at END
        < {now} - CASE WHEN owner IS NOT NULL THEN $5
            WHEN EXISTS (SELECT 1 FROM {p}entry e WHERE e.name = {p}lock.name) THEN $4 ELSE $6 END",
);
