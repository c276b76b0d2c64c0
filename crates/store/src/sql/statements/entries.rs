//! The statements on stored pages. A comment lists the arguments before the arrow, and the columns of the
//! answer after it.

use super::PerDialect;

/// kind, name, known fence -> entry: fence, age, time of the publish, epoch, status, headers, body,
/// metadata; lock: fence, fence of its holder or 0, remaining, failures; latest epoch
pub(crate) const PROBE: PerDialect = PerDialect::same(
    "{waits}SELECT e.fence, n.at - e.generated_at, e.generated_at, e.epoch, e.status, e.headers, e.{body}, e.metadata,
        coalesce(l.fence, 0), CASE WHEN l.owner IS NULL THEN 0 ELSE l.fence END, coalesce(l.expires_at - n.at, 0), coalesce(l.failures, 0),
        coalesce((SELECT max(epoch) FROM {p}invalidation), 0)
    FROM (SELECT {now} AS at{hex}) n
    LEFT JOIN {p}lock l ON l.kind = $1 AND l.name = $2
    LEFT JOIN {p}entry e ON e.name = $2 AND e.fence > $3",
);

/// Stores an entry under the lease, over an entry with a smaller fence.
///
/// kind, name, owner, fence, epoch, interval, retention, metadata, line of the history, size, 1 for an
/// entry that counts as regenerated when it replaces another one, status, headers, body -> fence, if the
/// entry was published
pub(crate) const PUBLISH: PerDialect = PerDialect {
    // FOR UPDATE: no process acquires the lock during the statement, whatever the isolation level.
    mysql: "{waits}INSERT INTO {p}entry (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, history, status, headers, `body`)
        SELECT $2, LAST_INSERT_ID(l.fence), {now}, {now} + $6, {now} + $7, $5, $10, $8, coalesce($9, x''), $12, coalesce($13, x''), coalesce($14, x'')
        FROM {p}lock l WHERE l.kind = $1 AND l.name = $2 AND l.owner = $3 AND l.fence = $4 FOR UPDATE
        ON DUPLICATE KEY UPDATE
            generated_at = IF({p}entry.fence < VALUES(fence), VALUES(generated_at), generated_at),
            regenerated = IF({p}entry.fence < VALUES(fence), $11, regenerated),
            stale_at = IF({p}entry.fence < VALUES(fence), VALUES(stale_at), stale_at),
            retain_until = IF({p}entry.fence < VALUES(fence), VALUES(retain_until), retain_until),
            epoch = IF({p}entry.fence < VALUES(fence), VALUES(epoch), epoch),
            bytes = IF({p}entry.fence < VALUES(fence), VALUES(bytes), bytes),
            metadata = IF({p}entry.fence < VALUES(fence), VALUES(metadata), metadata),
            history = IF({p}entry.fence < VALUES(fence), CONCAT(VALUES(history), LEFT(history, 2400)), history),
            status = IF({p}entry.fence < VALUES(fence), VALUES(status), status),
            headers = IF({p}entry.fence < VALUES(fence), VALUES(headers), headers),
            `body` = IF({p}entry.fence < VALUES(fence), VALUES(`body`), `body`),
            fence = IF({p}entry.fence < VALUES(fence), LAST_INSERT_ID(VALUES(fence)), {p}entry.fence + LAST_INSERT_ID(0))",
    ..PerDialect::same(
        "WITH l AS (
            SELECT fence AS held, {now} AS at FROM {p}lock WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4{share}
        )
        INSERT INTO {p}entry AS e (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, history, status, headers, body)
        SELECT $2, l.held, l.at, l.at + $6, l.at + $7, $5, $10, $8, $9, $12, $13, $14 FROM l WHERE true
        ON CONFLICT (name) DO UPDATE SET
            fence = excluded.fence,
            generated_at = excluded.generated_at,
            regenerated = $11,
            stale_at = excluded.stale_at,
            retain_until = excluded.retain_until,
            epoch = excluded.epoch,
            bytes = excluded.bytes,
            metadata = excluded.metadata,
            history = excluded.history || substr(e.history, 1, 2400),
            status = excluded.status,
            headers = excluded.headers,
            body = excluded.body
        WHERE e.fence < excluded.fence
        RETURNING fence",
    )
};

/// Renews the age of the entry with the known fence, under the lease.
///
/// kind, name, owner, fence, epoch, interval, retention, metadata, line of the history, size, 1 for
/// an entry that counts as regenerated, known fence -> fence, if the entry was renewed
pub(crate) const RENEW: PerDialect = PerDialect {
    // LIMIT makes MySQL compute the inner table before the join. The lock's row in that inner table is locked
    // at every isolation level.
    mysql: "{waits}UPDATE {p}entry e JOIN (
            SELECT fence FROM {p}lock WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 LIMIT 1 FOR UPDATE
        ) l SET e.fence = LAST_INSERT_ID(l.fence), e.generated_at = {now}, e.regenerated = $11, e.stale_at = {now} + $6, e.retain_until = {now} + $7,
            e.epoch = $5, e.bytes = $10, e.metadata = $8, e.history = CONCAT($9, LEFT(e.history, 2400))
        WHERE e.name = $2 AND e.fence = $12 AND e.fence < $4",
    ..PerDialect::same(
        "WITH l AS (
            SELECT fence AS held, {now} AS at FROM {p}lock WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4{share}
        )
        UPDATE {p}entry AS e SET fence = l.held, generated_at = l.at, regenerated = $11, stale_at = l.at + $6, retain_until = l.at + $7,
            epoch = $5, bytes = $10, metadata = $8, history = $9 || substr(e.history, 1, 2400)
        FROM l WHERE e.name = $2 AND e.fence = $12 AND e.fence < $4
        RETURNING fence",
    )
};

/// Removes an entry under the lease. Unlike a publish, the statement need not lock the lock's row
/// against a takeover that commits at the same time: the new holder's entry has a greater fence,
/// which the statement does not match.
///
/// kind, name, owner, fence -> one row changed, if an entry was stored and the lock still has this
/// owner and fence
pub(crate) const REMOVE: PerDialect = PerDialect::same(
    "{waits}DELETE FROM {p}entry WHERE name = $2 AND fence <= $4
    AND EXISTS (SELECT 1 FROM {p}lock l WHERE l.kind = $1 AND l.name = $2 AND l.owner = $3 AND l.fence = $4)",
);

/// name -> fence
pub(crate) const FENCE: PerDialect =
    PerDialect::same("{waits}SELECT fence FROM {p}entry WHERE name = $1");

/// name
pub(crate) const DELETE: PerDialect =
    PerDialect::same("{waits}DELETE FROM {p}entry WHERE name = $1");

/// the lower bound of the variants' names, the upper bound (excluded)
pub(crate) const DELETE_VARIANTS: PerDialect =
    PerDialect::same("{waits}DELETE FROM {p}entry WHERE {variants}");

/// The first pages from a name on, in the order of names, with their locks, and without content.
///
/// the first name, the number of pages -> name, fence, age, interval, epoch, status, size,
/// metadata, history; lock: owner, fence, remaining, age
pub(crate) const LIST: PerDialect = PerDialect::same(
    "SELECT e.name, e.fence, n.at - e.generated_at, e.stale_at - e.generated_at, e.epoch, e.status, e.bytes, e.metadata, e.history,
        l.owner, coalesce(l.fence, 0), coalesce(l.expires_at - n.at, 0), coalesce(n.at - l.acquired_at, 0)
    FROM (SELECT {now} AS at) n JOIN {p}entry e ON e.name >= $1
    LEFT JOIN {p}lock l ON l.kind = 'page' AND l.name = e.name
    ORDER BY e.name LIMIT $2",
);

/// The pages that were generated last, as [`LIST`] has them.
///
/// the number of pages -> as for [`LIST`]
pub(crate) const LATEST: PerDialect = PerDialect::same(
    "SELECT e.name, e.fence, n.at - e.generated_at, e.stale_at - e.generated_at, e.epoch, e.status, e.bytes, e.metadata, e.history,
        l.owner, coalesce(l.fence, 0), coalesce(l.expires_at - n.at, 0), coalesce(n.at - l.acquired_at, 0)
    FROM (SELECT {now} AS at) n JOIN {p}entry e ON e.generated_at >= 0
    LEFT JOIN {p}lock l ON l.kind = 'page' AND l.name = e.name
    ORDER BY e.generated_at DESC LIMIT $1",
);

/// -> the number of pages, the number of stale pages, the sum of all sizes
pub(crate) const COUNT: PerDialect = PerDialect::same(
    "SELECT count(*), count(CASE WHEN e.stale_at <= n.at THEN 1 END), CAST(coalesce(sum(e.bytes), 0) AS {int})
    FROM (SELECT {now} AS at) n JOIN {p}entry e ON e.regenerated >= 0",
);

/// A hundred pages that become stale within a span of time, the earliest first. Pages that are being
/// regenerated are left out. So are pages whose regeneration has failed lately, because the failure shows that
/// somebody asks for them.
///
/// 1 for pages that were regenerated, or else 0; start (excluded) and end of the span, relative to now; the
/// time after which a failure no longer counts -> name, size, fence
pub(crate) const EVICTABLE: PerDialect = PerDialect::same(
    // This is a count and not an EXISTS, for which MariaDB may first read the locks of all pages.
    "SELECT e.name, e.bytes, e.fence FROM {p}entry e
    WHERE e.regenerated = $1 AND e.stale_at > {now_once} + $2 AND e.stale_at <= {now_once} + $3
        AND 0 = (
            SELECT count(*) FROM {p}lock l WHERE l.kind = 'page' AND l.name = e.name
                AND (l.owner IS NOT NULL AND l.expires_at > {now} OR l.failures > 0 AND l.expires_at > {now} - $4)
        )
    ORDER BY e.stale_at LIMIT 100",
);

/// Removes pages that [`EVICTABLE`] has returned, unless they have been generated again since then: a later
/// generation has a greater fence than all of them. The statement has a list of names.
///
/// the greatest of their fences, names
pub(crate) const EVICT: &str = "DELETE FROM {p}entry WHERE fence <= $1 AND name IN ({names})";

/// name before -> the next hundred names, the epoch of each
pub(crate) const NEXT: PerDialect =
    PerDialect::same("SELECT name, epoch FROM {p}entry WHERE name > $1 ORDER BY name LIMIT 100");

/// last name of the previous step, last name of this step
pub(crate) const PRUNE: PerDialect = PerDialect::same(
    "DELETE FROM {p}entry WHERE name > $1 AND name <= $2 AND retain_until < {now}",
);
