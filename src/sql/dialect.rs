//! What the databases do differently, side by side.
//!
//! In the statements `{p}` is the table prefix, `{now}` the database's clock in microseconds since 1970, UTC, and `$n` the
//! n-th argument, of those that [`Dialect`] lists. Each is one statement in autocommit, and one step of the protocol.

use super::session::Statements;
#[cfg(feature = "postgres")]
use crate::key::hex;

/// The statements of one database.
pub(super) struct Dialect {
    /// The clock. Never that of the process, and never that of a transaction's beginning.
    pub(super) now: &'static str,
    /// What encloses a name.
    pub(super) quote: char,
    /// A key `{key}` as it is read, and compared, as text.
    pub(super) text: &'static str,
    /// What a statement begins with that decides by a row that it only reads, for `{waits}`: on a node of a cluster, it first waits for all that other nodes
    /// have committed.
    pub(super) waits: &'static str,
    /// The bound of the epochs that are committed, for `{committed}`, where a statement may see others.
    pub(super) committed: &'static str,
    /// The codes of errors by which tables of the same names show that are not Perennial's.
    pub(super) foreign: &'static [&'static str],
    /// How `$n` reaches the database.
    pub(super) arguments: Arguments,
    /// A connection is a socket: one whose statement was not waited for, or that broke, is closed and not used again. (SQLite's goes
    /// on by itself, and a database in memory would be gone with it.)
    pub(super) socket: bool,
    /// Begins the transaction in which the tables are made.
    pub(super) begin: &'static str,
    /// What it begins with: the table of the tables' version is there, with a row, which is changed so that no other process can be at
    /// it, where the database undoes what is not committed.
    pub(super) schema_table: &'static [&'static str],
    /// The codes of errors by which others who make the tables at the same time get in the way.
    pub(super) raced: &'static [&'static str],
    /// The tables: each element leads from the version that is its index to the next one. None is ever edited after a release.
    pub(super) schema: &'static [&'static [&'static str]],
    /// key, lock name, known fence -> lock: fence, owned, remaining; epoch; entry: fence, age, status, headers, body, notes; lock: age
    pub(super) probe: &'static str,
    /// name, owner, length, seen fence or -1 -> fence, if it was taken; also if this owner has it already, who was not told so
    pub(super) try_lock: &'static str,
    /// name, time, name of what is to be done before or `*` -> fence, if it was noted that this is done, for so long; part of the application's
    /// own transaction
    pub(super) mark: &'static str,
    /// As [`INSPECT`], but of how it is now, whatever the transaction has seen before.
    pub(super) inspect_now: &'static str,
    /// Milliseconds: what has to be said before a mark, so that it waits no longer for another transaction, and after it, so that everything is
    /// as it was.
    pub(super) bounds: Option<[&'static str; 2]>,
    /// name, owner, fence, length -> one row changed, if it is ours
    pub(super) extend: &'static str,
    /// name, owner, fence, cooldown -> one row changed, if it is ours
    pub(super) release: &'static str,
    /// key, lock name, owner, fence, notes, keep, status, headers, body -> fence, if it was published
    pub(super) publish: &'static str,
    /// key, lock name, owner, fence, notes, keep, known fence -> fence, if it was renewed
    pub(super) renew: &'static str,
    /// key, lock name, owner, fence -> one row changed, if there was one and the lease holds
    pub(super) remove: &'static str,
    /// key -> fence
    pub(super) fence_of: &'static str,
    /// The first key, the first one behind the range -> keys
    pub(super) keys: &'static str,
    /// The first name, the first one behind the range -> names
    pub(super) locks: &'static str,
    /// The epoch in an entry's `notes`, for `{noted}`; NULL where the notes have none.
    pub(super) noted: &'static str,
    /// name -> the new epoch. They queue for one row, so that whoever sees an epoch sees all smaller ones. A revision keeps its first one.
    pub(super) invalidate: &'static str,
    /// known epoch, number -> name, epoch, in the order of epochs. Nothing that may yet be rolled back: its epoch would be another's afterwards.
    pub(super) invalidated: &'static str,
    /// last name, number -> name, epoch: the invalidation of everything, and in the order of names purges and revisions. Committed ones, as above.
    pub(super) invalidated_for_long: &'static str,
    /// lock id, number of rows, values of filters -> nothing; claims rows of `{table}`, of those that are `{free}`, in that order, by setting what says that they are `{claimed}`
    pub(super) claim: &'static str,
    /// Locks that a connection holds, where there are any.
    pub(super) session: Option<Statements>,
    /// The codes of errors by which the database resolves a contention: somebody else was faster, and nothing was done.
    pub(super) contended: &'static [&'static str],
    /// The codes of errors by which a server says that it is ending, or that it is not the primary (any more): the connection is closed.
    pub(super) gone: &'static [&'static str],
    /// The codes of errors with which a server that works refuses content: it is too large, or a constraint or a trigger of the administrator's forbids it.
    pub(super) unfit: &'static [&'static str],
    /// The codes of errors that say that the database may only be read.
    pub(super) readonly: &'static [&'static str],
    /// The codes of errors that say that this role may not make tables.
    pub(super) forbidden: &'static [&'static str],
}

/// How the arguments of a statement reach the database.
#[allow(
    dead_code,
    reason = "each is that of a database, which may not be built in"
)]
pub(super) enum Arguments {
    /// Bound to `$n`.
    Numbered,
    /// Bound to `?`, in the order in which they stand.
    Ordered,
    /// Written into the statement, a number as it is. So a statement is one message and leaves nothing behind, which is what a
    /// pooler that gives out its connections by the transaction asks for. (sqlx prepares a statement in one exchange and runs
    /// it in another; such a pooler may hand the two to different servers.)
    Written {
        text: fn(&str) -> String,
        bytes: fn(&[u8]) -> String,
    },
}

/// A lock that was acquired further in the future is from before the database's clock was set back, in microseconds. Less is the difference between the clocks of a cluster's
/// nodes, or a step by which a clock is kept right. Nothing depends on the exact time: [`REDATE`] ends no lease early, and less would only cost a contended try a write. An entry that was published
/// there is stale, as its age is not known.
pub(super) const SET_BACK: i64 = 5_000_000;

/// Moves a lock from before the clock was set back into the present, where the whole of its time begins again. A holder that lives extends its lease meanwhile, and what
/// was left by a holder that has crashed, or is a cooldown, ends after its length and not when the clock comes there again.
/// name
pub(super) const REDATE: &str =
    "UPDATE {p}lock SET expires_at = expires_at - (acquired_at - {now}), acquired_at = {now}
    WHERE name = $1 AND acquired_at > {now} + {set_back}";

const FENCE_OF: &str = "{waits}SELECT fence FROM {p}entry WHERE entry_key = $1";

#[cfg(feature = "sqlite")]
pub(super) const SQLITE: Dialect = Dialect {
    // `unixepoch('subsec')` is NULL before SQLite 3.42, which another program on the same file may be.
    now: "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)",
    // Not in double quotes: what is no column would be taken for a text.
    quote: '`',
    text: "CAST({key} AS TEXT)",
    waits: "",
    committed: "",
    // SQLITE_ERROR: a table or a column that is there or is not.
    foreign: &["1"],
    arguments: Arguments::Numbered,
    socket: false,
    // Not DEFERRED: a transaction that reads before it writes is refused at once (SQLITE_BUSY), in spite of any busy timeout.
    begin: "BEGIN IMMEDIATE",
    schema_table: &[
        "CREATE TABLE IF NOT EXISTS {p}schema (id INTEGER PRIMARY KEY, version INTEGER NOT NULL)",
        "INSERT OR IGNORE INTO {p}schema (id, version) VALUES (1, 0)",
    ],
    raced: &[],
    schema: &[&[
        "CREATE TABLE {p}lock (
            name TEXT NOT NULL PRIMARY KEY,
            owner TEXT,
            fence INTEGER NOT NULL,
            acquired_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL
        ) WITHOUT ROWID",
        "CREATE TABLE {p}entry (
            entry_key TEXT NOT NULL PRIMARY KEY,
            fence INTEGER NOT NULL,
            generated_at INTEGER NOT NULL,
            keep_until INTEGER NOT NULL,
            notes TEXT NOT NULL,
            status INTEGER NOT NULL,
            headers BLOB NOT NULL,
            body BLOB NOT NULL
        )",
        "CREATE TABLE {p}invalidation (
            name TEXT NOT NULL PRIMARY KEY,
            epoch INTEGER NOT NULL
        ) WITHOUT ROWID",
        "CREATE INDEX {p}invalidation_epoch ON {p}invalidation (epoch)",
    ]],
    probe: PROBE,
    try_lock: "INSERT INTO {p}lock AS l (name, owner, fence, acquired_at, expires_at)
        SELECT $1, $2, n.at, n.at, n.at + $3 FROM (SELECT {now} AS at) n WHERE true
        ON CONFLICT (name) DO UPDATE SET
            owner = CASE WHEN l.owner = $2 OR l.expires_at <= excluded.acquired_at THEN $2 ELSE l.owner END,
            fence = CASE WHEN l.owner = $2 OR l.expires_at > excluded.acquired_at THEN l.fence ELSE max(l.fence + 1, excluded.fence) END,
            acquired_at = excluded.acquired_at,
            expires_at = CASE WHEN l.owner = $2 OR l.expires_at <= excluded.acquired_at THEN excluded.expires_at
                ELSE l.expires_at - (l.acquired_at - excluded.acquired_at) END
        WHERE l.owner = $2 OR CASE WHEN l.expires_at <= excluded.acquired_at THEN $4 < 0 OR l.fence = $4
            ELSE l.acquired_at > excluded.acquired_at + {set_back} END
        RETURNING CASE WHEN owner = $2 THEN fence END",
    mark: MARK,
    inspect_now: INSPECT,
    // The pool's busy timeout.
    bounds: None,
    extend: EXTEND,
    release: RELEASE,
    publish: "INSERT INTO {p}entry AS e (entry_key, fence, generated_at, keep_until, notes, status, headers, body)
        SELECT $1, l.fence, {now}, {now} + $6, $5, $7, $8, $9
        FROM {p}lock l WHERE l.name = $2 AND l.owner = $3 AND l.fence = $4
        ON CONFLICT (entry_key) DO UPDATE SET
            fence = excluded.fence,
            generated_at = excluded.generated_at,
            keep_until = excluded.keep_until,
            notes = excluded.notes,
            status = excluded.status,
            headers = excluded.headers,
            body = excluded.body
        WHERE e.fence < excluded.fence
        RETURNING fence",
    renew: "UPDATE {p}entry SET fence = l.fence, generated_at = {now}, keep_until = {now} + $6, notes = $5
        FROM {p}lock l
        WHERE l.name = $2 AND l.owner = $3 AND l.fence = $4
            AND entry_key = $1 AND {p}entry.fence = $7 AND {p}entry.fence < $4
        RETURNING fence",
    remove: REMOVE,
    fence_of: FENCE_OF,
    keys: KEYS,
    locks: LOCKS,
    noted: "CASE WHEN notes LIKE 'epoch=%' THEN CAST(substr(notes, 7) AS INTEGER) END",
    // What it reads can't change before it writes: there is one writer at a time.
    invalidate: "INSERT INTO {p}invalidation AS i (name, epoch)
        SELECT n.name, max(coalesce((SELECT epoch + 1 FROM {p}invalidation WHERE name = '*'), 0), {now})
        FROM (SELECT '*' AS name UNION ALL SELECT $1) n WHERE true
        ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
        RETURNING epoch",
    invalidated: INVALIDATED,
    invalidated_for_long: INVALIDATED_FOR_LONG,
    claim: "UPDATE {table} SET {claimed} WHERE {id} IN (SELECT {id} FROM {table} WHERE {free} LIMIT $2)",
    session: None,
    contended: &[],
    gone: &[],
    // SQLITE_TOOBIG, SQLITE_CONSTRAINT_CHECK, SQLITE_CONSTRAINT_TRIGGER
    unfit: &["18", "275", "1811"],
    // SQLITE_READONLY, and those of its kinds that a file or a folder without the right to write brings about
    readonly: &["8", "520", "1544"],
    forbidden: &[],
};

/// What means the same under every setting: ASCII without quotes, and the rest in escapes. (A database in SQL_ASCII refuses those.)
///
/// A literal has the collation of the column with which it is compared. (`convert_from(…)` has that of the type `name`, "C", with
/// which no index of another collation can be used.)
#[cfg(feature = "postgres")]
fn escaped(text: &str) -> String {
    let mut literal = "E'".to_owned();
    for c in text.chars() {
        match c {
            ' '..='~' if c != '\'' && c != '\\' => literal.push(c),
            _ => literal.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    literal.push_str("'::text");
    literal
}

/// PostgreSQL's tables, with what follows the type of a name: by bytes, an index finds all names that begin alike.
#[cfg(feature = "postgres")]
macro_rules! postgres_schema {
    ($collate:literal) => {
        &[&[
            concat!(
                "CREATE TABLE {p}lock (
            name TEXT",
                $collate,
                " NOT NULL PRIMARY KEY,
            owner TEXT,
            fence BIGINT NOT NULL,
            acquired_at BIGINT NOT NULL,
            expires_at BIGINT NOT NULL
        )"
            ),
            concat!(
                "CREATE TABLE {p}entry (
            entry_key TEXT",
                $collate,
                " NOT NULL PRIMARY KEY,
            fence BIGINT NOT NULL,
            generated_at BIGINT NOT NULL,
            keep_until BIGINT NOT NULL,
            notes TEXT NOT NULL,
            status BIGINT NOT NULL,
            headers BYTEA NOT NULL,
            body BYTEA NOT NULL
        )"
            ),
            concat!(
                "CREATE TABLE {p}invalidation (
            name TEXT",
                $collate,
                " NOT NULL PRIMARY KEY,
            epoch BIGINT NOT NULL
        )"
            ),
            "CREATE INDEX {p}invalidation_epoch ON {p}invalidation (epoch)",
        ]]
    };
}

#[cfg(feature = "postgres")]
pub(super) const POSTGRES: Dialect = Dialect {
    // Not `now()`, which stands still inside a transaction.
    now: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    quote: '"',
    text: "CAST({key} AS TEXT)",
    waits: "",
    committed: "",
    // duplicate_table, undefined_column
    foreign: &["42P07", "42703"],
    arguments: Arguments::Written {
        text: escaped,
        bytes: |bytes| format!("decode('{}', 'hex')", hex(bytes)),
    },
    socket: true,
    begin: "BEGIN",
    schema_table: &[
        "CREATE TABLE IF NOT EXISTS {p}schema (id BIGINT PRIMARY KEY, version BIGINT NOT NULL)",
        "INSERT INTO {p}schema (id, version) VALUES (1, 0) ON CONFLICT (id) DO NOTHING",
        "UPDATE {p}schema SET version = version WHERE id = 1",
    ],
    // unique_violation (in the catalogue), duplicate_table, duplicate_object (its type): IF NOT EXISTS does not see what is not
    // committed.
    raced: &["23505", "42P07", "42710"],
    schema: postgres_schema!(" COLLATE \"C\""),
    // Another form of bytes may be the role's default.
    probe: "WITH n AS (
            SELECT {now} AS at, set_config('bytea_output', 'hex', true)
        )
        SELECT coalesce(l.fence, 0), CASE WHEN l.owner IS NULL THEN 0 ELSE l.fence END, coalesce(l.expires_at - n.at, 0),
            coalesce((SELECT max(epoch) FROM {p}invalidation), 0),
            e.fence, n.at - e.generated_at, e.status, e.headers, e.body, e.notes, n.at - l.acquired_at
        FROM n
        LEFT JOIN {p}lock l ON l.name = $2
        LEFT JOIN {p}entry e ON e.entry_key = $1 AND e.fence > $3",
    // A lock that is taken is neither waited for (SKIP LOCKED) nor written to; where two insert the same name at once, the
    // second one gives up soon.
    try_lock: "WITH n AS (
            SELECT {now} AS at, set_config('lock_timeout', '50ms', true)
        ), c AS (
            SELECT l.name FROM {p}lock l, n
            WHERE l.name = $1 AND (l.owner = $2 OR (l.expires_at <= n.at AND ($4 < 0 OR l.fence = $4)))
            FOR UPDATE OF l SKIP LOCKED
        ), u AS (
            UPDATE {p}lock l
            SET owner = $2, fence = CASE WHEN l.owner = $2 THEN l.fence ELSE greatest(l.fence + 1, n.at) END, acquired_at = n.at, expires_at = n.at + $3
            FROM c, n WHERE l.name = c.name
            RETURNING l.fence
        ), i AS (
            INSERT INTO {p}lock (name, owner, fence, acquired_at, expires_at)
            SELECT $1, $2, n.at, n.at, n.at + $3 FROM n WHERE NOT EXISTS (SELECT 1 FROM {p}lock WHERE name = $1)
            ON CONFLICT (name) DO NOTHING
            RETURNING fence
        ), s AS (
            UPDATE {p}lock l SET acquired_at = n.at, expires_at = l.expires_at - (l.acquired_at - n.at)
            FROM n WHERE l.name = $1 AND l.acquired_at > n.at + {set_back} AND l.expires_at > n.at AND l.owner IS DISTINCT FROM $2
        )
        SELECT fence FROM u UNION ALL SELECT fence FROM i",
    mark: MARK,
    inspect_now: INSPECT,
    bounds: Some([
        "SELECT set_config('perennial.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', $1 || 'ms', true)",
        // Outside a transaction nothing of the former is left.
        "SELECT set_config('lock_timeout', coalesce(nullif(current_setting('perennial.lock_timeout', true), ''), current_setting('lock_timeout')), true)",
    ]),
    extend: EXTEND,
    release: RELEASE,
    // FOR SHARE: nobody acquires the lock while this is being done.
    publish: "WITH l AS (
            SELECT fence FROM {p}lock WHERE name = $2 AND owner = $3 AND fence = $4 FOR SHARE
        )
        INSERT INTO {p}entry AS e (entry_key, fence, generated_at, keep_until, notes, status, headers, body)
        SELECT $1, l.fence, {now}, {now} + $6, $5, $7, $8, $9 FROM l
        ON CONFLICT (entry_key) DO UPDATE SET
            fence = excluded.fence,
            generated_at = excluded.generated_at,
            keep_until = excluded.keep_until,
            notes = excluded.notes,
            status = excluded.status,
            headers = excluded.headers,
            body = excluded.body
        WHERE e.fence < excluded.fence
        RETURNING e.fence",
    renew: "WITH l AS (
            SELECT fence FROM {p}lock WHERE name = $2 AND owner = $3 AND fence = $4 FOR SHARE
        )
        UPDATE {p}entry e SET fence = l.fence, generated_at = {now}, keep_until = {now} + $6, notes = $5
        FROM l WHERE e.entry_key = $1 AND e.fence = $7 AND e.fence < $4
        RETURNING e.fence",
    remove: REMOVE,
    fence_of: FENCE_OF,
    keys: KEYS,
    locks: LOCKS,
    noted: "CAST(substring(notes FROM '^epoch=([0-9]+)') AS BIGINT)",
    // The row is one of another table, as in the form for the relatives.
    invalidate: "WITH n AS (
            INSERT INTO {p}schema AS s (id, version) VALUES (2, {now})
            ON CONFLICT (id) DO UPDATE SET version = greatest(s.version + 1, excluded.version)
            RETURNING s.version AS epoch
        ), i AS (
            INSERT INTO {p}invalidation AS i (name, epoch) SELECT $1, n.epoch FROM n
            ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
            RETURNING i.epoch
        )
        SELECT epoch, pg_notify('{p}invalidation', '')::text FROM i",
    invalidated: INVALIDATED,
    invalidated_for_long: INVALIDATED_FOR_LONG,
    // MATERIALIZED: chosen once, not anew for each row.
    claim: "WITH perennial_free AS MATERIALIZED (
            SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        UPDATE {table} t SET {claimed} FROM perennial_free f WHERE t.{id} = f.{id}",
    // What stands on a connection that nobody else is given is our own.
    session: Some(Statements {
        acquire: "SELECT (CASE
            WHEN coalesce(current_setting('perennial.session', true), '') NOT IN ('', $3) THEN 2
            WHEN NOT pg_try_advisory_lock($1) THEN 0
            WHEN set_config('perennial.session', $3, false) = $3 THEN 1
            END)::bigint",
        // Since PostgreSQL 14.
        bound: "SELECT CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL
            THEN set_config('idle_session_timeout', '15s', false) END",
        holds: "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (classid::bigint << 32 | objid::bigint) = $1 AND objsubid = 1
            AND current_setting('perennial.session', true) = $3",
        release: "SELECT (CASE WHEN current_setting('perennial.session', true) = $3 AND pg_advisory_unlock($1)
            AND set_config('perennial.session', '', false) = '' THEN 1 ELSE 0 END)::bigint",
        missing: &[],
    }),
    // lock_not_available, serialization_failure, deadlock_detected
    contended: &["55P03", "40001", "40P01"],
    // admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout; read_only_sql_transaction: a standby, which the primary has become, or a name that
    // leads to another server now
    gone: &["57P01", "57P02", "57P03", "57P05", "25006"],
    // string_data_right_truncation, character_not_in_repertoire, untranslatable_character, check_violation, program_limit_exceeded, raise_exception
    unfit: &["22001", "22021", "22P05", "23514", "54000", "P0001"],
    readonly: &["25006"],
    // insufficient_privilege
    forbidden: &["42501"],
};

/// PostgreSQL for its relatives, among them CockroachDB, which refuses to change a table twice in a statement, and YugabyteDB.
/// Settings for one statement have no effect there.
#[cfg(feature = "postgres")]
pub(super) const POSTGRES_RELATIVE: Dialect = Dialect {
    // Without a collation in the tables, as CockroachDB's are by language.
    schema: postgres_schema!(""),
    keys: "SELECT entry_key FROM {p}entry WHERE substr(entry_key, 1, length($1)) = $1",
    locks: "SELECT name FROM {p}lock WHERE substr(name, 1, length($1)) = $1",
    probe: PROBE,
    try_lock: "INSERT INTO {p}lock AS l (name, owner, fence, acquired_at, expires_at)
        SELECT $1, $2, n.at, n.at, n.at + $3 FROM (SELECT {now} AS at) n
        WHERE NOT EXISTS (SELECT 1 FROM {p}lock h WHERE h.name = $1 AND h.expires_at > n.at AND h.owner <> $2 AND h.acquired_at <= n.at + {set_back})
        ON CONFLICT (name) DO UPDATE SET
            owner = CASE WHEN l.owner = $2 OR l.expires_at <= excluded.acquired_at THEN $2 ELSE l.owner END,
            fence = CASE WHEN l.owner = $2 OR l.expires_at > excluded.acquired_at THEN l.fence ELSE greatest(l.fence + 1, excluded.fence) END,
            acquired_at = excluded.acquired_at,
            expires_at = CASE WHEN l.owner = $2 OR l.expires_at <= excluded.acquired_at THEN excluded.expires_at
                ELSE l.expires_at - (l.acquired_at - excluded.acquired_at) END
        WHERE l.owner = $2 OR CASE WHEN l.expires_at <= excluded.acquired_at THEN $4 < 0 OR l.fence = $4
            ELSE l.acquired_at > excluded.acquired_at + {set_back} END
        RETURNING CASE WHEN l.owner = $2 THEN l.fence END",
    // CockroachDB's say yes to everybody.
    session: None,
    // Without a notification.
    invalidate: "WITH n AS (
            INSERT INTO {p}schema AS s (id, version) VALUES (2, {now})
            ON CONFLICT (id) DO UPDATE SET version = greatest(s.version + 1, excluded.version)
            RETURNING s.version AS epoch
        )
        INSERT INTO {p}invalidation AS i (name, epoch) SELECT $1, n.epoch FROM n
        ON CONFLICT (name) DO UPDATE SET epoch = CASE WHEN i.name LIKE 'revision:%' THEN i.epoch ELSE excluded.epoch END
        RETURNING i.epoch",
    ..POSTGRES
};

#[cfg(feature = "mysql")]
pub(super) const MYSQL: Dialect = Dialect {
    now: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    quote: '`',
    // Bytes in the end: as text they would be compared as some collation has it.
    text: "IF(CHARSET({key}) = 'binary', CAST({key} AS BINARY), CAST(CAST({key} AS CHAR CHARACTER SET utf8mb4) AS BINARY))",
    waits: "",
    // At READ UNCOMMITTED alone: the counter's row, locked, so that this waits for the invalidation that is under way. MariaDB before 11.1 and MySQL have
    // different names for the level.
    committed: "(SELECT IF(/*M! @@tx_isolation *//*!50720 @@transaction_isolation */ = 'READ-UNCOMMITTED', coalesce(max(epoch), 0), 9223372036854775807) AS latest
        FROM {p}invalidation WHERE name = '*' AND /*M! @@tx_isolation *//*!50720 @@transaction_isolation */ = 'READ-UNCOMMITTED' LOCK IN SHARE MODE)",
    // ER_TABLE_EXISTS_ERROR, ER_BAD_FIELD_ERROR
    foreign: &["1050", "1054"],
    arguments: Arguments::Ordered,
    socket: true,
    // Each statement that makes a table commits, so that they are such as several may do at once. (BEGIN is something else in
    // MariaDB's Oracle mode.)
    begin: "START TRANSACTION",
    schema_table: &[
        "CREATE TABLE IF NOT EXISTS {p}schema (id BIGINT PRIMARY KEY, version BIGINT NOT NULL) ENGINE = InnoDB",
        "INSERT IGNORE INTO {p}schema (id, version) VALUES (1, 0)",
    ],
    raced: &[],
    schema: &[&[
        // Bytes: every collation finds names equal that are not the same.
        "CREATE TABLE IF NOT EXISTS {p}lock (
            name VARBINARY(255) NOT NULL PRIMARY KEY,
            owner VARBINARY(255),
            fence BIGINT NOT NULL,
            acquired_at BIGINT NOT NULL,
            expires_at BIGINT NOT NULL
        ) ENGINE = InnoDB",
        // A word of MariaDB's Oracle mode is quoted.
        "CREATE TABLE IF NOT EXISTS {p}entry (
            entry_key VARBINARY(255) NOT NULL PRIMARY KEY,
            fence BIGINT NOT NULL,
            generated_at BIGINT NOT NULL,
            keep_until BIGINT NOT NULL,
            notes MEDIUMBLOB NOT NULL,
            status BIGINT NOT NULL,
            headers MEDIUMBLOB NOT NULL,
            `body` LONGBLOB NOT NULL
        ) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS {p}invalidation (
            name VARBINARY(255) NOT NULL PRIMARY KEY,
            epoch BIGINT NOT NULL,
            KEY {p}invalidation_epoch (epoch)
        ) ENGINE = InnoDB",
        // IF NOT EXISTS takes any table of that name.
        "SELECT name, owner, fence, acquired_at, expires_at FROM {p}lock LIMIT 0",
        "SELECT entry_key, fence, generated_at, keep_until, notes, status, headers, `body` FROM {p}entry LIMIT 0",
        "SELECT name, epoch FROM {p}invalidation LIMIT 0",
    ]],
    probe: "SELECT coalesce(l.fence, 0), CASE WHEN l.owner IS NULL THEN 0 ELSE l.fence END, coalesce(l.expires_at - n.at, 0),
            LEAST(coalesce((SELECT max(epoch) FROM {p}invalidation), 0), {committed}),
            e.fence, n.at - e.generated_at, e.status, e.headers, e.body, e.notes, n.at - l.acquired_at
        FROM (SELECT {now} AS at) n
        LEFT JOIN {p}lock l ON l.name = $2
        LEFT JOIN {p}entry e ON e.entry_key = $1 AND e.fence > $3",
    // Assignments are made in their order: the owner, which no other acquisition has, says to the others whether the lock was taken. (No
    // time could: two may come in the same microsecond.)
    // The affected rows tell nothing; the fence comes back as the insert id. The comment is for MariaDB alone, where a statement
    // can be told not to wait for a row, and the order depends on the mode.
    try_lock: "/*M!100300 SET STATEMENT innodb_lock_wait_timeout = 0, sql_mode = '' FOR */
        INSERT INTO {p}lock (name, owner, fence, acquired_at, expires_at)
        VALUES ($1, $2, LAST_INSERT_ID({now}), {now}, {now} + $3)
        ON DUPLICATE KEY UPDATE
            owner = IF(owner = $2 OR (expires_at <= VALUES(acquired_at) AND ($4 < 0 OR fence = $4)), $2, owner),
            fence = IF(owner = $2, LAST_INSERT_ID(IF(expires_at <= VALUES(acquired_at),
                GREATEST(fence + 1, VALUES(fence)), fence)), fence + LAST_INSERT_ID(0)),
            expires_at = IF(owner = $2, VALUES(expires_at), IF(acquired_at > VALUES(acquired_at) + {set_back},
                expires_at - (acquired_at - VALUES(acquired_at)), expires_at)),
            acquired_at = IF(owner = $2 OR acquired_at > VALUES(acquired_at) + {set_back}, VALUES(acquired_at), acquired_at)",
    // As above; what is done has no owner.
    mark: "{waits}INSERT INTO {p}lock (name, owner, fence, acquired_at, expires_at)
        SELECT $1, NULL, LAST_INSERT_ID(n.at), n.at, n.at + $2 FROM (SELECT {now} AS at) n
        WHERE $3 = '*' OR EXISTS (SELECT 1 FROM {p}lock a WHERE a.name = $3 AND a.owner IS NULL AND a.expires_at > n.at LOCK IN SHARE MODE)
        ON DUPLICATE KEY UPDATE
            owner = IF(expires_at <= VALUES(acquired_at), NULL, owner),
            fence = IF(expires_at <= VALUES(acquired_at), LAST_INSERT_ID(GREATEST(fence + 1, VALUES(fence))), fence + LAST_INSERT_ID(0)),
            acquired_at = IF(expires_at <= VALUES(acquired_at), VALUES(acquired_at), acquired_at),
            expires_at = IF(expires_at <= VALUES(acquired_at), VALUES(expires_at), expires_at)",
    inspect_now: "SELECT l.name, l.owner, l.fence, n.at - l.acquired_at, l.expires_at - n.at
        FROM (SELECT {now} AS at) n JOIN {p}lock l ON l.name = $1 LOCK IN SHARE MODE",
    // The insert id is the application's, too.
    bounds: Some([
        "SET @perennial_id = LAST_INSERT_ID(), @perennial_wait = @@innodb_lock_wait_timeout,
            innodb_lock_wait_timeout = GREATEST(1, $1 DIV 1000)",
        "SET innodb_lock_wait_timeout = @perennial_wait, @perennial_id = LAST_INSERT_ID(@perennial_id)",
    ]),
    extend: EXTEND,
    release: RELEASE,
    // FOR UPDATE: as above, whatever the isolation level.
    publish: "{waits}INSERT INTO {p}entry (entry_key, fence, generated_at, keep_until, notes, status, headers, `body`)
        SELECT $1, LAST_INSERT_ID(l.fence), {now}, {now} + $6, $5, $7, coalesce($8, x''), coalesce($9, x'')
        FROM {p}lock l WHERE l.name = $2 AND l.owner = $3 AND l.fence = $4 FOR UPDATE
        ON DUPLICATE KEY UPDATE
            generated_at = IF({p}entry.fence < VALUES(fence), VALUES(generated_at), generated_at),
            keep_until = IF({p}entry.fence < VALUES(fence), VALUES(keep_until), keep_until),
            notes = IF({p}entry.fence < VALUES(fence), VALUES(notes), notes),
            status = IF({p}entry.fence < VALUES(fence), VALUES(status), status),
            headers = IF({p}entry.fence < VALUES(fence), VALUES(headers), headers),
            `body` = IF({p}entry.fence < VALUES(fence), VALUES(`body`), `body`),
            fence = IF({p}entry.fence < VALUES(fence), LAST_INSERT_ID(VALUES(fence)), {p}entry.fence + LAST_INSERT_ID(0))",
    // The table within is made first (LIMIT), and its row locked whatever the isolation level.
    renew: "{waits}UPDATE {p}entry e JOIN (
            SELECT fence FROM {p}lock WHERE name = $2 AND owner = $3 AND fence = $4 LIMIT 1 FOR UPDATE
        ) l SET e.fence = LAST_INSERT_ID(l.fence), e.generated_at = {now}, e.keep_until = {now} + $6, e.notes = $5
        WHERE e.entry_key = $1 AND e.fence = $7 AND e.fence < $4",
    remove: REMOVE,
    fence_of: FENCE_OF,
    keys: KEYS,
    locks: LOCKS,
    noted: "CASE WHEN notes LIKE 'epoch=%' THEN CAST(SUBSTRING_INDEX(SUBSTR(notes, 7), '&', 1) AS SIGNED) END",
    // Row by row, in their order.
    invalidate: "INSERT INTO {p}invalidation (name, epoch) VALUES ('*', LAST_INSERT_ID({now})), ($1, LAST_INSERT_ID())
        ON DUPLICATE KEY UPDATE epoch = IF(name = '*', LAST_INSERT_ID(GREATEST(epoch + 1, VALUES(epoch))),
            IF(name LIKE 'revision:%', epoch, LAST_INSERT_ID()))",
    // The counter first (STRAIGHT_JOIN): as long as its row is locked, no invalidation is under way.
    invalidated: "SELECT i.name, i.epoch FROM {committed} c STRAIGHT_JOIN (
            SELECT name, epoch FROM {p}invalidation WHERE epoch > $1 AND name <> '*' ORDER BY epoch LIMIT $2
        ) i WHERE i.epoch <= c.latest ORDER BY i.epoch",
    invalidated_for_long: "SELECT i.name, i.epoch FROM {committed} c STRAIGHT_JOIN (
            SELECT name, epoch FROM {p}invalidation WHERE name = 'prefix:'
            UNION ALL SELECT n.name, n.epoch FROM (
                SELECT name, epoch FROM {p}invalidation WHERE name > $1 AND name < 'revision;'
                ORDER BY name LIMIT $2
            ) n
        ) i WHERE i.epoch <= c.latest ORDER BY i.name",
    claim: "UPDATE {table} t JOIN (
            SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
        ) c ON t.{id} = c.{id} SET {claimed}",
    session: Some(Statements {
        acquire: "SELECT IF(IS_USED_LOCK($2) = CONNECTION_ID(), 2, GET_LOCK($2, 0))",
        bound: "SET SESSION wait_timeout = 15",
        holds: "SELECT coalesce(IS_USED_LOCK($2) = CONNECTION_ID(), 0)",
        release: "SELECT coalesce(RELEASE_LOCK($2), 0)",
        // ER_NOT_SUPPORTED_YET
        missing: &["1235"],
    }),
    // ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK, by which Galera also says that a certification failed, ER_LOCK_NOWAIT;
    // of TiDB: pessimistic and optimistic conflicts, and commits that were undone
    contended: &["1020", "1205", "1213", "3572", "8002", "9007", "8022", "8028"],
    // ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED, ER_CLIENT_INTERACTION_TIMEOUT; ER_OPTION_PREVENTS_STATEMENT (read_only), ER_READ_ONLY_MODE,
    // ER_UNKNOWN_COM_ERROR, by which a node of Galera without a quorum answers: another server is the primary now
    gone: &["1053", "1927", "4031", "1290", "1836", "1047"],
    // ER_TOO_BIG_ROWSIZE, ER_NET_PACKET_TOO_LARGE, ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, ER_DATA_TOO_LONG, ER_SIGNAL_EXCEPTION,
    // ER_CONSTRAINT_FAILED, ER_CHECK_CONSTRAINT_VIOLATED
    unfit: &["1118", "1153", "1366", "1406", "1644", "4025", "3819"],
    readonly: &["1290", "1836"],
    // ER_DBACCESS_DENIED_ERROR, ER_TABLEACCESS_DENIED_ERROR
    forbidden: &["1044", "1142"],
};

/// MariaDB that may be a node of a Galera cluster: a build without Galera refuses the setting. Galera compares what was written on two nodes, and not what was read.
#[cfg(feature = "mysql")]
pub(super) const MARIADB_GALERA: Dialect = Dialect {
    waits: "SET STATEMENT wsrep_sync_wait = 15 FOR ",
    ..MYSQL
};

#[cfg(any(feature = "sqlite", feature = "postgres"))]
const PROBE: &str =
    "SELECT coalesce(l.fence, 0), CASE WHEN l.owner IS NULL THEN 0 ELSE l.fence END, coalesce(l.expires_at - n.at, 0),
        coalesce((SELECT max(epoch) FROM {p}invalidation), 0),
        e.fence, n.at - e.generated_at, e.status, e.headers, e.body, e.notes, n.at - l.acquired_at
    FROM (SELECT {now} AS at) n
    LEFT JOIN {p}lock l ON l.name = $2
    LEFT JOIN {p}entry e ON e.entry_key = $1 AND e.fence > $3";

/// name -> name, owner, fence, age, remaining
pub(super) const INSPECT: &str =
    "SELECT l.name, l.owner, l.fence, n.at - l.acquired_at, l.expires_at - n.at
    FROM (SELECT {now} AS at) n JOIN {p}lock l ON l.name = $1";

/// names, as many as said -> name, owner, fence
pub(super) fn named(count: usize) -> String {
    let names: Vec<_> = (1..=count).map(|n| format!("${n}")).collect();
    let names = names.join(", ");
    format!("SELECT name, owner, fence FROM {{p}}lock WHERE name IN ({names})")
}

/// As [`INSPECT`], of all that have not expired, without those that remember what is done once.
pub(super) const HELD: &str =
    "SELECT l.name, l.owner, l.fence, n.at - l.acquired_at, l.expires_at - n.at
    FROM (SELECT {now} AS at) n JOIN {p}lock l ON l.expires_at > n.at
    WHERE NOT (l.owner IS NULL AND substr(l.name, 1, 5) = 'once/') ORDER BY l.name";

/// Takes the lock from whoever has it with this fence, so that what is being made can't be published.
/// name, fence
pub(super) const BREAK: &str = "UPDATE {p}lock SET owner = NULL, fence = fence + 1, expires_at = 0 WHERE name = $1 AND fence = $2";

/// By the primary key, which is ordered by bytes.
const KEYS: &str = "SELECT entry_key FROM {p}entry WHERE entry_key >= $1 AND entry_key < $2";

/// By the primary key, which is ordered by bytes.
const LOCKS: &str = "SELECT name FROM {p}lock WHERE name >= $1 AND name < $2";

/// key
pub(super) const DELETE: &str = "DELETE FROM {p}entry WHERE entry_key = $1";

/// last key -> the last one of the next few, the smallest epoch in their notes
pub(super) const NEXT_ENTRIES: &str = "SELECT max(entry_key), min({noted}) FROM (
        SELECT entry_key, notes FROM {p}entry WHERE entry_key > $1 ORDER BY entry_key LIMIT 100
    ) n";

/// last key, the last one of the next few
pub(super) const PRUNE_ENTRIES: &str =
    "DELETE FROM {p}entry WHERE entry_key > $1 AND entry_key <= $2 AND keep_until < {now}";

/// last name -> the last one of the next few
pub(super) const NEXT_LOCKS: &str = "SELECT max(n.name) FROM (
        SELECT name FROM {p}lock WHERE name > $1 ORDER BY name LIMIT 100
    ) n";

/// last name, the last one of the next few, time unused, the same of a request whose outcome is unknown. A request that is done keeps its lock for an hour,
/// so that a process that has just looked for its response, and found none, does not find a new key afterwards.
pub(super) const PRUNE_LOCKS: &str = "DELETE FROM {p}lock WHERE name > $1 AND name <= $2
    AND CASE WHEN acquired_at < expires_at THEN expires_at ELSE acquired_at END < {now} - CASE
        WHEN substr(name, 1, 12) <> 'idempotency/' THEN $3 WHEN owner IS NULL THEN 3600000000 ELSE $4 END";

/// last epoch, the last one of the next few, epoch of the invalidation of everything, the time for which a purge is remembered, the
/// smallest epoch noted in an entry: a purge is needed as long as there are older entries
pub(super) const FORGET: &str = "DELETE FROM {p}invalidation WHERE epoch > $1 AND epoch <= $2
    AND CASE WHEN substr(name, 1, 7) = 'purged:' THEN epoch < {now} - $4 AND epoch <= $5
        ELSE epoch < $3 AND substr(name, 1, 9) <> 'revision:' END";
/// last epoch -> the last one of the next few
pub(super) const NEXT_NAMES: &str = "SELECT max(n.epoch) FROM (
        SELECT epoch FROM {p}invalidation WHERE epoch > $1 ORDER BY epoch LIMIT 10000
    ) n";

#[cfg(any(feature = "sqlite", feature = "postgres"))]
const INVALIDATED: &str = "SELECT name, epoch FROM {p}invalidation
    WHERE epoch > $1 AND name <> '*' ORDER BY epoch LIMIT $2";

#[cfg(any(feature = "sqlite", feature = "postgres"))]
const INVALIDATED_FOR_LONG: &str = "SELECT name, epoch FROM {p}invalidation WHERE name = 'prefix:'
    UNION ALL SELECT n.name, n.epoch FROM (
        SELECT name, epoch FROM {p}invalidation WHERE name > $1 AND name < 'revision;'
        ORDER BY name LIMIT $2
    ) n";

#[cfg(any(feature = "sqlite", feature = "postgres"))]
const MARK: &str = "INSERT INTO {p}lock AS l (name, owner, fence, acquired_at, expires_at)
    SELECT $1, NULL, n.at, n.at, n.at + $2 FROM (SELECT {now} AS at) n
    WHERE $3 = '*' OR EXISTS (SELECT 1 FROM {p}lock a WHERE a.name = $3 AND a.owner IS NULL AND a.expires_at > n.at)
    ON CONFLICT (name) DO UPDATE SET
        owner = NULL,
        fence = CASE WHEN l.fence < excluded.fence THEN excluded.fence ELSE l.fence + 1 END,
        acquired_at = excluded.acquired_at,
        expires_at = excluded.expires_at
    WHERE l.expires_at <= excluded.acquired_at
    RETURNING fence";

const EXTEND: &str = "UPDATE {p}lock SET expires_at = {now} + $4
    WHERE name = $1 AND owner = $2 AND fence = $3 AND expires_at > {now}";

const RELEASE: &str =
    "UPDATE {p}lock SET owner = NULL, expires_at = CASE WHEN $4 = 0 THEN 0 ELSE {now} + $4 END
    WHERE name = $1 AND fence = $3 AND (owner = $2 OR owner IS NULL)";

// The lock is read without being locked: what a takeover that is not committed yet publishes has a greater fence, so that no more than an entry that the holder may
// remove goes, and nothing is published by it.
const REMOVE: &str = "{waits}DELETE FROM {p}entry WHERE entry_key = $1 AND fence <= $4
    AND EXISTS (SELECT 1 FROM {p}lock l WHERE l.name = $2 AND l.owner = $3 AND l.fence = $4)";

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_says_what_is_run() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let protocol = words(include_str!("../../docs/protocol.md"));
        for dialect in [SQLITE, POSTGRES, MYSQL] {
            let [lock, entry, ..] = dialect.schema[0] else {
                panic!("they are made first");
            };
            for statement in [
                dialect.now,
                lock,
                entry,
                dialect.try_lock,
                dialect.extend,
                dialect.release,
                BREAK,
                INSPECT,
                dialect.publish,
                dialect.mark,
                dialect.claim,
            ] {
                let statement = statement
                    .replace("{p}", "perennial_")
                    .replace("{waits}", "");
                let statement = words(&statement.replace("{set_back}", &SET_BACK.to_string()));
                assert!(
                    protocol.contains(&statement),
                    "docs/protocol.md lacks: {statement}"
                );
            }
        }
    }
}
