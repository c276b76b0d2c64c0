-- The statements of the protocol on SQLite. A program writes ?1, ?2 … for $1, $2 …
-- Times are in microseconds. ../protocol.md says what the answers mean.

-- Acquire: $1 kind, $2 name, $3 owner, $4 length, $5 -1 or the fence that was seen
INSERT INTO perennial_lock AS l (kind, name, owner, fence, acquired_at, expires_at)
    SELECT $1, $2, $3, n.at, n.at, n.at + $4 FROM (SELECT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) AS at) n
    WHERE NOT EXISTS (SELECT 1 FROM perennial_lock h WHERE h.kind = $1 AND h.name = $2 AND h.expires_at > n.at AND h.owner <> $3)
    ON CONFLICT (kind, name) DO UPDATE SET
        owner = excluded.owner,
        fence = CASE WHEN l.owner = $3 THEN l.fence WHEN l.fence < excluded.fence THEN excluded.fence ELSE l.fence + 1 END,
        acquired_at = excluded.acquired_at,
        expires_at = excluded.expires_at
    WHERE l.owner = $3 OR l.expires_at <= excluded.acquired_at AND ($5 < 0 OR l.fence = $5)
    RETURNING fence;

-- Extend: $1 kind, $2 name, $3 owner, $4 fence, $5 length from now
UPDATE perennial_lock SET expires_at = (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) + $5
    WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 AND expires_at > (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000);

-- Release: $1 kind, $2 name, $3 owner, $4 fence, $5 cooldown or 0
UPDATE perennial_lock SET failures = CASE WHEN $5 = 0 THEN 0 WHEN owner IS NULL THEN failures ELSE failures + 1 END,
        owner = NULL, expires_at = CASE WHEN $5 = 0 THEN 0 ELSE (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) + $5 END
    WHERE kind = $1 AND name = $2 AND fence = $4 AND (owner = $3 OR owner IS NULL);

-- Inspect: $1 kind, $2 name
SELECT l.kind, l.name, l.owner, l.fence, n.at - l.acquired_at, l.expires_at - n.at
    FROM (SELECT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) AS at) n JOIN perennial_lock l ON l.kind = $1 AND l.name = $2;

-- Break: $1 kind, $2 name, $3 the fence that was inspected
UPDATE perennial_lock SET owner = NULL, fence = fence + 1, expires_at = 0
    WHERE kind = $1 AND name = $2 AND fence = $3;

-- Invalidate: $1 name
INSERT INTO perennial_invalidation AS i (name, epoch)
    SELECT n.name, max(coalesce((SELECT epoch + 1 FROM perennial_invalidation WHERE name = '*'), 0), (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000))
    FROM (SELECT column1 AS name FROM (VALUES ('*'), ($1))) n WHERE true
    ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
    RETURNING epoch;

-- Invalidate in a transaction: $1 a new id, $2 name
INSERT INTO perennial_outbox (id, name) VALUES ($1, $2);

-- Publish: $1 'page', $2 name, $3 owner, $4 fence, $5 epoch, $6 interval, $7 retention, $8 metadata,
-- $9 line of the history, $10 size of headers, body and metadata,
-- $11 1 (0 for a response that says that there is nothing), $12 status, $13 headers, $14 body
WITH l AS (
        SELECT fence AS held, (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) AS at FROM perennial_lock WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4
    )
    INSERT INTO perennial_entry AS e (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, history, status, headers, body)
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
    RETURNING fence;

-- Begin a request: $1 name, $2 owner, $3 fingerprint, $4 length, $5 retention
INSERT INTO perennial_request (name, owner, fingerprint, begun_at, expires_at, retain_until)
    SELECT $1, $2, $3, n.at, n.at + $4, n.at + $5 FROM (SELECT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) AS at) n WHERE true
    ON CONFLICT (name) DO NOTHING
    RETURNING begun_at;

-- Read a request: $1 name, $2 fingerprint, $3 the age from which it runs again, or -1
SELECT r.owner, r.fingerprint, r.expires_at - n.at,
        CASE WHEN r.retain_until <= n.at THEN 1
            WHEN r.status IS NULL AND r.fingerprint = $2 AND $3 >= 0 AND r.begun_at + $3 <= n.at THEN 1
            ELSE 0 END,
        r.status, r.headers, r.body
    FROM (SELECT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) AS at) n JOIN perennial_request r ON r.name = $1;

-- Take a request over: $1 to $5 as to begin, $6 as $3 of the reading, $7 the owner that was read
UPDATE perennial_request SET owner = $2, fingerprint = $3, begun_at = (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000), expires_at = (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) + $4,
        retain_until = (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) + $5, status = NULL, headers = NULL, body = NULL
    WHERE name = $1 AND owner = $7 AND (retain_until <= (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)
        OR (status IS NULL AND fingerprint = $3 AND $6 >= 0 AND begun_at + $6 <= (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)));

-- Finish a request: $1 name, $2 owner, $3 retention, $4 status, $5 headers, $6 body
UPDATE perennial_request SET status = $4, headers = $5, body = $6, retain_until = (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) + $3
    WHERE name = $1 AND owner = $2 AND status IS NULL;

-- Forget a request: $1 name, $2 owner, or '*' for anybody's
DELETE FROM perennial_request WHERE name = $1 AND (owner = $2 OR $2 = '*') AND status IS NULL;

-- Prune requests: $1 number of rows
DELETE FROM perennial_request WHERE retain_until <= (SELECT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)) AND name IN (
        SELECT name FROM perennial_request WHERE retain_until <= (SELECT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)) ORDER BY retain_until LIMIT $1
    );

-- Mark work as done: $1 name, $2 retention
INSERT INTO perennial_lock AS l (kind, name, owner, fence, acquired_at, expires_at)
    SELECT 'once', $1, NULL, n.at, n.at, n.at + $2 FROM (SELECT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) AS at) n
    WHERE true
    ON CONFLICT (kind, name) DO UPDATE SET
        owner = NULL,
        fence = CASE WHEN l.fence < excluded.fence THEN excluded.fence ELSE l.fence + 1 END,
        acquired_at = excluded.acquired_at,
        expires_at = excluded.expires_at
    WHERE l.expires_at <= excluded.acquired_at
    RETURNING fence;

-- Mark work as done if other work is done: $1 name, $2 retention, $3 name of the other work
INSERT INTO perennial_lock AS l (kind, name, owner, fence, acquired_at, expires_at)
    SELECT 'once', $1, NULL, n.at, n.at, n.at + $2 FROM (SELECT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) AS at) n
    WHERE EXISTS (SELECT 1 FROM perennial_lock a WHERE a.kind = 'once' AND a.name = $3 AND a.owner IS NULL AND a.expires_at > n.at)
    ON CONFLICT (kind, name) DO UPDATE SET
        owner = NULL,
        fence = CASE WHEN l.fence < excluded.fence THEN excluded.fence ELSE l.fence + 1 END,
        acquired_at = excluded.acquired_at,
        expires_at = excluded.expires_at
    WHERE l.expires_at <= excluded.acquired_at
    RETURNING fence;

-- Claim rows: $1 lock id, $2 number of rows. ../protocol.md has the texts in braces.
UPDATE {table} SET {claimed} WHERE {id} IN (SELECT {id} FROM {table} WHERE {free} LIMIT $2);
