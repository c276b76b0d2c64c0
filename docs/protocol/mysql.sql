-- The statements of the protocol on MySQL and MariaDB. A program writes ? for each argument, and binds them in the order in which a
-- statement names them.
-- Times are in microseconds. ../protocol.md says what the answers mean.

-- Acquire: $1 kind, $2 name, $3 owner, $4 length, $5 -1 or the fence that was seen
/*M!100300 SET STATEMENT innodb_lock_wait_timeout = 0, sql_mode = '' FOR */
    INSERT INTO perennial_lock (kind, name, owner, fence, acquired_at, expires_at)
    VALUES ($1, $2, $3, LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $4)
    ON DUPLICATE KEY UPDATE
        owner = IF(owner = $3 OR (expires_at <= VALUES(acquired_at) AND ($5 < 0 OR fence = $5)), $3, owner),
        fence = IF(owner = $3, LAST_INSERT_ID(IF(expires_at <= VALUES(acquired_at),
            GREATEST(fence + 1, VALUES(fence)), fence)), fence + LAST_INSERT_ID(0)),
        expires_at = IF(owner = $3, VALUES(expires_at), expires_at),
        acquired_at = IF(owner = $3, VALUES(acquired_at), acquired_at);

-- Extend: $1 kind, $2 name, $3 owner, $4 fence, $5 length from now
UPDATE perennial_lock SET expires_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $5
    WHERE kind = $1 AND name = $2 AND owner = $3 AND fence = $4 AND expires_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

-- Release: $1 kind, $2 name, $3 owner, $4 fence, $5 cooldown or 0
UPDATE perennial_lock SET failures = CASE WHEN $5 = 0 THEN 0 WHEN owner IS NULL THEN failures ELSE failures + 1 END,
        owner = NULL, expires_at = CASE WHEN $5 = 0 THEN 0 ELSE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $5 END
    WHERE kind = $1 AND name = $2 AND fence = $4 AND (owner = $3 OR owner IS NULL);

-- Inspect: $1 kind, $2 name
SELECT l.kind, l.name, l.owner, l.fence, n.at - l.acquired_at, l.expires_at - n.at
    FROM (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS at) n JOIN perennial_lock l ON l.kind = $1 AND l.name = $2;

-- Break: $1 kind, $2 name, $3 the fence that was inspected
UPDATE perennial_lock SET owner = NULL, fence = fence + 1, expires_at = 0
    WHERE kind = $1 AND name = $2 AND fence = $3;

-- Invalidate: $1 name
INSERT INTO perennial_invalidation (name, epoch) VALUES ('*', LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))), ($1, LAST_INSERT_ID())
    ON DUPLICATE KEY UPDATE epoch = IF(name = '*', LAST_INSERT_ID(GREATEST(epoch + 1, VALUES(epoch))),
        IF(name LIKE 'revision:%', epoch, LAST_INSERT_ID()));

-- Invalidate in a transaction: $1 a new id, $2 name
INSERT INTO perennial_outbox (id, name) VALUES ($1, $2);

-- Publish: $1 'page', $2 name, $3 owner, $4 fence, $5 epoch, $6 interval, $7 retention, $8 metadata,
-- $9 line of the history, $10 size of headers, body and metadata,
-- $11 1 (0 for a response that says that there is nothing), $12 status, $13 headers, $14 body
INSERT INTO perennial_entry (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, history, status, headers, `body`)
    SELECT $2, LAST_INSERT_ID(l.fence), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $6, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $7, $5, $10, $8, coalesce($9, x''), $12, coalesce($13, x''), coalesce($14, x'')
    FROM perennial_lock l WHERE l.kind = $1 AND l.name = $2 AND l.owner = $3 AND l.fence = $4 FOR UPDATE
    ON DUPLICATE KEY UPDATE
        generated_at = IF(perennial_entry.fence < VALUES(fence), VALUES(generated_at), generated_at),
        regenerated = IF(perennial_entry.fence < VALUES(fence), $11, regenerated),
        stale_at = IF(perennial_entry.fence < VALUES(fence), VALUES(stale_at), stale_at),
        retain_until = IF(perennial_entry.fence < VALUES(fence), VALUES(retain_until), retain_until),
        epoch = IF(perennial_entry.fence < VALUES(fence), VALUES(epoch), epoch),
        bytes = IF(perennial_entry.fence < VALUES(fence), VALUES(bytes), bytes),
        metadata = IF(perennial_entry.fence < VALUES(fence), VALUES(metadata), metadata),
        history = IF(perennial_entry.fence < VALUES(fence), CONCAT(VALUES(history), LEFT(history, 2400)), history),
        status = IF(perennial_entry.fence < VALUES(fence), VALUES(status), status),
        headers = IF(perennial_entry.fence < VALUES(fence), VALUES(headers), headers),
        `body` = IF(perennial_entry.fence < VALUES(fence), VALUES(`body`), `body`),
        fence = IF(perennial_entry.fence < VALUES(fence), LAST_INSERT_ID(VALUES(fence)), perennial_entry.fence + LAST_INSERT_ID(0));

-- Begin a request: $1 name, $2 owner, $3 fingerprint, $4 length, $5 retention
INSERT INTO perennial_request (name, owner, fingerprint, begun_at, expires_at, retain_until)
    VALUES ($1, $2, $3, LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $4, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $5)
    ON DUPLICATE KEY UPDATE begun_at = perennial_request.begun_at + LAST_INSERT_ID(0);

-- Read a request: $1 name, $2 fingerprint, $3 the age from which it runs again, or -1
SELECT r.owner, r.fingerprint, r.expires_at - n.at,
        CASE WHEN r.retain_until <= n.at THEN 1
            WHEN r.status IS NULL AND r.fingerprint = $2 AND $3 >= 0 AND r.begun_at + $3 <= n.at THEN 1
            ELSE 0 END,
        r.status, r.headers, r.`body`
    FROM (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS at) n JOIN perennial_request r ON r.name = $1;

-- Take a request over: $1 to $5 as to begin, $6 as $3 of the reading, $7 the owner that was read
UPDATE perennial_request SET owner = $2, fingerprint = $3, begun_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), expires_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $4,
        retain_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $5, status = NULL, headers = NULL, `body` = NULL
    WHERE name = $1 AND owner = $7 AND (retain_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        OR (status IS NULL AND fingerprint = $3 AND $6 >= 0 AND begun_at + $6 <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))));

-- Finish a request: $1 name, $2 owner, $3 retention, $4 status, $5 headers, $6 body
UPDATE perennial_request SET status = $4, headers = $5, `body` = $6, retain_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + $3
    WHERE name = $1 AND owner = $2 AND status IS NULL;

-- Forget a request: $1 name, $2 owner, or '*' for anybody's
DELETE FROM perennial_request WHERE name = $1 AND (owner = $2 OR $2 = '*') AND status IS NULL;

-- Prune requests: $1 number of rows
DELETE FROM perennial_request WHERE retain_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY retain_until LIMIT $1;

-- Mark work as done: $1 name, $2 retention
INSERT INTO perennial_lock (kind, name, owner, fence, acquired_at, expires_at)
    SELECT 'once', $1, NULL, LAST_INSERT_ID(n.at), n.at, n.at + $2 FROM (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS at) n
    ON DUPLICATE KEY UPDATE
        owner = IF(expires_at <= VALUES(acquired_at), NULL, owner),
        fence = IF(expires_at <= VALUES(acquired_at), LAST_INSERT_ID(GREATEST(fence + 1, VALUES(fence))), fence + LAST_INSERT_ID(0)),
        acquired_at = IF(expires_at <= VALUES(acquired_at), VALUES(acquired_at), acquired_at),
        expires_at = IF(expires_at <= VALUES(acquired_at), VALUES(expires_at), expires_at);

-- Mark work as done if other work is done: $1 name, $2 retention, $3 name of the other work
INSERT INTO perennial_lock (kind, name, owner, fence, acquired_at, expires_at)
    SELECT 'once', $1, NULL, LAST_INSERT_ID(n.at), n.at, n.at + $2 FROM (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS at) n
    WHERE EXISTS (SELECT 1 FROM perennial_lock a WHERE a.kind = 'once' AND a.name = $3 AND a.owner IS NULL AND a.expires_at > n.at LOCK IN SHARE MODE)
    ON DUPLICATE KEY UPDATE
        owner = IF(expires_at <= VALUES(acquired_at), NULL, owner),
        fence = IF(expires_at <= VALUES(acquired_at), LAST_INSERT_ID(GREATEST(fence + 1, VALUES(fence))), fence + LAST_INSERT_ID(0)),
        acquired_at = IF(expires_at <= VALUES(acquired_at), VALUES(acquired_at), acquired_at),
        expires_at = IF(expires_at <= VALUES(acquired_at), VALUES(expires_at), expires_at);

-- Claim rows: $1 lock id, $2 number of rows. ../protocol.md has the texts in braces.
UPDATE {table} t JOIN (
        SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
    ) c ON t.{id} = c.{id} SET {claimed};
