-- The statements of the protocol on PostgreSQL.
-- Times are in microseconds. ../protocol.md says what the answers mean.

-- Acquire: $1 kind, $2 name, $3 owner, $4 length, $5 -1 or the fence that was seen
WITH n AS (
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at, set_config('lock_timeout', '50ms', true)
    ), c AS (
        SELECT l.kind, l.name FROM perennial_lock l, n
        WHERE l.kind = $1 AND l.name = $2 AND (l.owner = $3 OR (l.expires_at <= n.at AND ($5 < 0 OR l.fence = $5)))
        FOR UPDATE OF l SKIP LOCKED
    ), u AS (
        UPDATE perennial_lock l
        SET owner = $3, fence = CASE WHEN l.owner = $3 THEN l.fence ELSE greatest(l.fence + 1, n.at) END, acquired_at = n.at, expires_at = n.at + $4
        FROM c, n WHERE l.kind = c.kind AND l.name = c.name
        RETURNING l.fence
    ), i AS (
        INSERT INTO perennial_lock (kind, name, owner, fence, acquired_at, expires_at)
        SELECT $1, $2, $3, n.at, n.at, n.at + $4 FROM n WHERE NOT EXISTS (SELECT 1 FROM perennial_lock WHERE kind = $1 AND name = $2)
        ON CONFLICT (kind, name) DO NOTHING
        RETURNING fence
    )
    SELECT fence FROM u UNION ALL SELECT fence FROM i;

-- Extend: $1 kind, $2 name, $3 owner, $4 fence, $5 length from now
UPDATE perennial_lock SET expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $5
    WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 AND expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- Release: $1 kind, $2 name, $3 owner, $4 fence, $5 cooldown or 0
UPDATE perennial_lock SET failures = CASE WHEN $5 = 0 THEN 0 WHEN owner IS NULL THEN failures ELSE failures + 1 END,
        owner = NULL, expires_at = CASE WHEN $5 = 0 THEN 0 ELSE (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $5 END
    WHERE kind = $1 AND name = $2 AND fence = $4 AND (owner = $3 OR owner IS NULL);

-- Inspect: $1 kind, $2 name
SELECT l.kind, l.name, l.owner, l.fence, n.at - l.acquired_at, l.expires_at - n.at
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at) n JOIN perennial_lock l ON l.kind = $1 AND l.name = $2;

-- Break: $1 kind, $2 name, $3 the fence that was inspected
UPDATE perennial_lock SET owner = NULL, fence = fence + 1, expires_at = 0
    WHERE kind = $1 AND name = $2 AND fence = $3;

-- Invalidate: $1 name
WITH n AS (
        INSERT INTO perennial_schema AS s (id, version) VALUES (2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        ON CONFLICT (id) DO UPDATE SET version = greatest(s.version + 1, excluded.version)
        RETURNING s.version AS epoch
    )
    INSERT INTO perennial_invalidation AS i (name, epoch) SELECT DISTINCT v.name, n.epoch FROM n, (VALUES ($1)) v (name)
    ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
    RETURNING i.epoch, pg_notify('perennial_invalidation', '')::text;

-- Invalidate in a transaction: $1 a new id, $2 name
INSERT INTO perennial_outbox (id, name) VALUES ($1, $2);

-- Publish: $1 'page', $2 name, $3 owner, $4 fence, $5 epoch, $6 interval, $7 retention, $8 metadata,
-- $9 line of the history, $10 size of headers, body and metadata,
-- $11 1 (0 for a response that says that there is nothing), $12 status, $13 headers, $14 body
WITH l AS (
        SELECT fence AS held, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at FROM perennial_lock WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 FOR SHARE
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
    SELECT $1, $2, $3, n.at, n.at + $4, n.at + $5 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at) n WHERE true
    ON CONFLICT (name) DO NOTHING
    RETURNING begun_at;

-- Read a request: $1 name, $2 fingerprint, $3 the age from which it runs again, or -1
SELECT r.owner, r.fingerprint, r.expires_at - n.at,
        CASE WHEN r.retain_until <= n.at THEN 1
            WHEN r.status IS NULL AND r.fingerprint = $2 AND $3 >= 0 AND r.begun_at + $3 <= n.at THEN 1
            ELSE 0 END,
        r.status, r.headers, r.body
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at, set_config('bytea_output', 'hex', true)) n JOIN perennial_request r ON r.name = $1;

-- Take a request over: $1 to $5 as to begin, $6 as $3 of the reading, $7 the owner that was read
UPDATE perennial_request SET owner = $2, fingerprint = $3, begun_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $4,
        retain_until = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $5, status = NULL, headers = NULL, body = NULL
    WHERE name = $1 AND owner = $7 AND (retain_until <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        OR (status IS NULL AND fingerprint = $3 AND $6 >= 0 AND begun_at + $6 <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint));

-- Finish a request: $1 name, $2 owner, $3 retention, $4 status, $5 headers, $6 body
UPDATE perennial_request SET status = $4, headers = $5, body = $6, retain_until = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $3
    WHERE name = $1 AND owner = $2 AND status IS NULL;

-- Forget a request: $1 name, $2 owner, or '*' for anybody's
DELETE FROM perennial_request WHERE name = $1 AND (owner = $2 OR $2 = '*') AND status IS NULL;

-- Prune requests: $1 number of rows
DELETE FROM perennial_request WHERE retain_until <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AND name = ANY (ARRAY(
        SELECT name FROM perennial_request WHERE retain_until <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) ORDER BY retain_until LIMIT $1
    ));

-- Mark work as done: $1 name, $2 retention
INSERT INTO perennial_lock AS l (kind, name, owner, fence, acquired_at, expires_at)
    SELECT 'once', $1, NULL, n.at, n.at, n.at + $2 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at) n
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
    SELECT 'once', $1, NULL, n.at, n.at, n.at + $2 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at) n
    WHERE EXISTS (SELECT 1 FROM perennial_lock a WHERE a.kind = 'once' AND a.name = $3 AND a.owner IS NULL AND a.expires_at > n.at)
    ON CONFLICT (kind, name) DO UPDATE SET
        owner = NULL,
        fence = CASE WHEN l.fence < excluded.fence THEN excluded.fence ELSE l.fence + 1 END,
        acquired_at = excluded.acquired_at,
        expires_at = excluded.expires_at
    WHERE l.expires_at <= excluded.acquired_at
    RETURNING fence;

-- Claim rows: $1 lock id, $2 number of rows. ../protocol.md has the texts in braces.
WITH perennial_free AS MATERIALIZED (
        SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
    )
    UPDATE {table} t SET {claimed} FROM perennial_free f WHERE t.{id} = f.{id};
