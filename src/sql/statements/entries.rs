//! The statements on entries.

use super::Sides;

/// kind, name, known fence -> lock: fence, owned, remaining; epoch; entry: fence, age, status,
/// headers, body, metadata; lock: age; entry: time of the publish; lock: failures
pub(in crate::sql) const PROBE: Sides = Sides {
    // Another form of bytes may be the role's default.
    postgres: "WITH n AS (
            SELECT {now} AS at, set_config('bytea_output', 'hex', true)
        )
        SELECT coalesce(l.fence, 0), CASE WHEN l.owner IS NULL THEN 0 ELSE l.fence END, coalesce(l.expires_at - n.at, 0),
            coalesce((SELECT max(epoch) FROM {p}invalidation), 0),
            e.fence, n.at - e.generated_at, e.status, e.headers, e.body, e.metadata, n.at - l.acquired_at, e.generated_at,
            coalesce(l.failures, 0)
        FROM n
        LEFT JOIN {p}lock l ON l.kind = $1 AND l.name = $2
        LEFT JOIN {p}entry e ON e.kind = $1 AND e.name = $2 AND e.fence > $3",
    // A `set_config` within the statement has no effect on CockroachDB and YugabyteDB.
    relative: Some(PLAIN_PROBE),
    mysql: "{waits}SELECT coalesce(l.fence, 0), CASE WHEN l.owner IS NULL THEN 0 ELSE l.fence END, coalesce(l.expires_at - n.at, 0),
            LEAST(coalesce((SELECT max(epoch) FROM {p}invalidation), 0), {committed}),
            e.fence, n.at - e.generated_at, e.status, e.headers, e.body, e.metadata, n.at - l.acquired_at, e.generated_at,
            coalesce(l.failures, 0)
        FROM (SELECT {now} AS at) n
        LEFT JOIN {p}lock l ON l.kind = $1 AND l.name = $2
        LEFT JOIN {p}entry e ON e.kind = $1 AND e.name = $2 AND e.fence > $3",
    ..Sides::same(PLAIN_PROBE)
};

const PLAIN_PROBE: &str =
    "SELECT coalesce(l.fence, 0), CASE WHEN l.owner IS NULL THEN 0 ELSE l.fence END, coalesce(l.expires_at - n.at, 0),
        coalesce((SELECT max(epoch) FROM {p}invalidation), 0),
        e.fence, n.at - e.generated_at, e.status, e.headers, e.body, e.metadata, n.at - l.acquired_at, e.generated_at,
            coalesce(l.failures, 0)
    FROM (SELECT {now} AS at) n
    LEFT JOIN {p}lock l ON l.kind = $1 AND l.name = $2
    LEFT JOIN {p}entry e ON e.kind = $1 AND e.name = $2 AND e.fence > $3";

/// Stores an entry under the lease, over an entry with a smaller fence.
///
/// kind, name, owner, fence, metadata, retention, line of the history, status, headers, body -> fence, if the entry was
/// published
pub(in crate::sql) const PUBLISH: Sides = Sides {
    sqlite: "INSERT INTO {p}entry AS e (kind, name, fence, generated_at, retain_until, metadata, history, status, headers, body)
        SELECT $1, $2, l.fence, {now}, {now} + $6, $5, $7, $8, $9, $10
        FROM {p}lock l WHERE l.kind = $1 AND l.name = $2 AND l.owner = $3 AND l.fence = $4
        ON CONFLICT (kind, name) DO UPDATE SET
            fence = excluded.fence,
            generated_at = excluded.generated_at,
            retain_until = excluded.retain_until,
            metadata = excluded.metadata,
            history = excluded.history || substr(e.history, 1, 2400),
            status = excluded.status,
            headers = excluded.headers,
            body = excluded.body
        WHERE e.fence < excluded.fence
        RETURNING fence",
    // FOR SHARE: no process acquires the lock during the statement.
    postgres: "WITH l AS (
            SELECT fence FROM {p}lock WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 FOR SHARE
        )
        INSERT INTO {p}entry AS e (kind, name, fence, generated_at, retain_until, metadata, history, status, headers, body)
        SELECT $1, $2, l.fence, {now}, {now} + $6, $5, $7, $8, $9, $10 FROM l
        ON CONFLICT (kind, name) DO UPDATE SET
            fence = excluded.fence,
            generated_at = excluded.generated_at,
            retain_until = excluded.retain_until,
            metadata = excluded.metadata,
            history = excluded.history || substr(e.history, 1, 2400),
            status = excluded.status,
            headers = excluded.headers,
            body = excluded.body
        WHERE e.fence < excluded.fence
        RETURNING e.fence",
    relative: None,
    // FOR UPDATE: as above, whatever the isolation level.
    mysql: "{waits}INSERT INTO {p}entry (kind, name, fence, generated_at, retain_until, metadata, history, status, headers, `body`)
        SELECT $1, $2, LAST_INSERT_ID(l.fence), {now}, {now} + $6, $5, coalesce($7, x''), $8, coalesce($9, x''), coalesce($10, x'')
        FROM {p}lock l WHERE l.kind = $1 AND l.name = $2 AND l.owner = $3 AND l.fence = $4 FOR UPDATE
        ON DUPLICATE KEY UPDATE
            generated_at = IF({p}entry.fence < VALUES(fence), VALUES(generated_at), generated_at),
            retain_until = IF({p}entry.fence < VALUES(fence), VALUES(retain_until), retain_until),
            metadata = IF({p}entry.fence < VALUES(fence), VALUES(metadata), metadata),
            history = IF({p}entry.fence < VALUES(fence), CONCAT(VALUES(history), LEFT(history, 2400)), history),
            status = IF({p}entry.fence < VALUES(fence), VALUES(status), status),
            headers = IF({p}entry.fence < VALUES(fence), VALUES(headers), headers),
            `body` = IF({p}entry.fence < VALUES(fence), VALUES(`body`), `body`),
            fence = IF({p}entry.fence < VALUES(fence), LAST_INSERT_ID(VALUES(fence)), {p}entry.fence + LAST_INSERT_ID(0))",
};

/// Renews the age of the entry with the known fence, under the lease.
///
/// kind, name, owner, fence, metadata, retention, line of the history, known fence -> fence, if the entry was renewed
pub(in crate::sql) const RENEW: Sides = Sides {
    sqlite: "UPDATE {p}entry SET fence = l.fence, generated_at = {now}, retain_until = {now} + $6, metadata = $5,
            history = $7 || substr({p}entry.history, 1, 2400)
        FROM {p}lock l
        WHERE l.kind = $1 AND l.name = $2 AND l.owner = $3 AND l.fence = $4
            AND {p}entry.kind = $1 AND {p}entry.name = $2 AND {p}entry.fence = $8 AND {p}entry.fence < $4
        RETURNING fence",
    postgres: "WITH l AS (
            SELECT fence FROM {p}lock WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 FOR SHARE
        )
        UPDATE {p}entry e SET fence = l.fence, generated_at = {now}, retain_until = {now} + $6, metadata = $5,
            history = $7 || substr(e.history, 1, 2400)
        FROM l WHERE e.kind = $1 AND e.name = $2 AND e.fence = $8 AND e.fence < $4
        RETURNING e.fence",
    relative: None,
    // LIMIT makes the inner table before the join. The lock's row in it is locked at every
    // isolation level.
    mysql: "{waits}UPDATE {p}entry e JOIN (
            SELECT fence FROM {p}lock WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 LIMIT 1 FOR UPDATE
        ) l SET e.fence = LAST_INSERT_ID(l.fence), e.generated_at = {now}, e.retain_until = {now} + $6, e.metadata = $5,
            e.history = CONCAT($7, LEFT(e.history, 2400))
        WHERE e.kind = $1 AND e.name = $2 AND e.fence = $8 AND e.fence < $4",
};

/// Removes an entry under the lease. Unlike a publish, the statement need not lock the lock's row
/// against a takeover that commits at the same time: the new holder's entry has a greater fence,
/// which the statement does not match.
///
/// kind, name, owner, fence -> one row changed, if an entry was stored and the lock still has this
/// owner and fence
pub(in crate::sql) const REMOVE: Sides = Sides::same(
    "{waits}DELETE FROM {p}entry WHERE kind = $1 AND name = $2 AND fence <= $4
    AND EXISTS (SELECT 1 FROM {p}lock l WHERE l.kind = $1 AND l.name = $2 AND l.owner = $3 AND l.fence = $4)",
);

/// kind, name -> fence
pub(in crate::sql) const FENCE: Sides =
    Sides::same("{waits}SELECT fence FROM {p}entry WHERE kind = $1 AND name = $2");

/// kind, name
pub(in crate::sql) const DELETE: Sides =
    Sides::same("{waits}DELETE FROM {p}entry WHERE kind = $1 AND name = $2");

/// the lower bound of the variants' names, the upper bound (excluded)
pub(in crate::sql) const DELETE_VARIANTS: Sides = Sides {
    // Without the order of bytes.
    relative: Some("DELETE FROM {p}entry WHERE kind = 'page' AND substr(name, 1, length($1)) = $1"),
    ..Sides::same("{waits}DELETE FROM {p}entry WHERE kind = 'page' AND name >= $1 AND name < $2")
};

/// The first pages from a name on, in the order of names, with their locks, and without content.
///
/// the first name, the number of pages -> name, fence, age, status, size of the body, metadata,
/// history; lock: owner, fence, remaining, age
pub(in crate::sql) const LIST: Sides = Sides::same(
    "SELECT e.name, e.fence, n.at - e.generated_at, e.status, length(e.body), e.metadata, e.history,
        l.owner, coalesce(l.fence, 0), coalesce(l.expires_at - n.at, 0), coalesce(n.at - l.acquired_at, 0)
    FROM (SELECT {now} AS at) n JOIN {p}entry e ON e.kind = 'page' AND e.name >= $1
    LEFT JOIN {p}lock l ON l.kind = 'page' AND l.name = e.name
    ORDER BY e.name LIMIT $2",
);

/// kind, name before -> the greatest name of the next hundred rows, the smallest epoch in their
/// metadata
pub(in crate::sql) const NEXT: Sides = Sides::same(
    "SELECT max(name), min({epoch_of_metadata}) FROM (
        SELECT name, metadata FROM {p}entry WHERE kind = $1 AND name > $2 ORDER BY name LIMIT 100
    ) n",
);

/// kind, name before, the greatest name of the step
pub(in crate::sql) const PRUNE: Sides = Sides::same(
    "DELETE FROM {p}entry WHERE kind = $1 AND name > $2 AND name <= $3 AND retain_until < {now}",
);
