//! The mark of once-only work in a transaction of the application's own.

use std::time::Duration;

use perennial_store::{
    LockRow,
    clock::micros,
    name::{LockKind, bounded},
    sql::{
        connection::OnConnection,
        pool::kind_on,
        run::{Arg, Driver, Statement, number},
        statements::{Side, Sides, locks},
        store::{Answer, lock_row},
    },
};

/// Two statements around the mark. The first limits the wait for other transactions (milliseconds ->
/// nothing), and the second restores the limit from before (nothing -> nothing). On SQLite the wait
/// is the pool's busy timeout.
const BOUNDS: [Sides; 2] = [
    Sides {
        sqlite: "",
        postgres: "SELECT set_config('perennial.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', $1 || 'ms', true)",
        relative: None,
        // The insert id is the application's, too.
        mysql: "SET @perennial_id = LAST_INSERT_ID(), @perennial_wait = @@innodb_lock_wait_timeout,
            innodb_lock_wait_timeout = GREATEST(1, $1 DIV 1000)",
    },
    Sides {
        sqlite: "",
        // Outside a transaction the first statement's settings have ended with that statement.
        postgres: "SELECT set_config('lock_timeout', coalesce(nullif(current_setting('perennial.lock_timeout', true), ''), current_setting('lock_timeout')), true)",
        relative: None,
        mysql: "SET innodb_lock_wait_timeout = @perennial_wait, @perennial_id = LAST_INSERT_ID(@perennial_id)",
    },
];

/// Marks work as done in the application's transaction. The statement writes immediately: a transaction
/// that reads first may be refused (SQLite), or see old rows (MySQL).
///
/// name, retention, 1 if there is preceding work, its name -> fence, if the work was marked
pub(crate) const MARK: Sides = Sides {
    // A mark has no owner.
    mysql: "{waits}INSERT INTO {p}lock (kind, name, owner, fence, acquired_at, expires_at)
        SELECT 'once', $1, NULL, LAST_INSERT_ID(n.at), n.at, n.at + $2 FROM (SELECT {now} AS at) n
        WHERE $3 = 0 OR EXISTS (SELECT 1 FROM {p}lock a WHERE a.kind = 'once' AND a.name = $4 AND a.owner IS NULL AND a.expires_at > n.at LOCK IN SHARE MODE)
        ON DUPLICATE KEY UPDATE
            owner = IF(expires_at <= VALUES(acquired_at), NULL, owner),
            fence = IF(expires_at <= VALUES(acquired_at), LAST_INSERT_ID(GREATEST(fence + 1, VALUES(fence))), fence + LAST_INSERT_ID(0)),
            acquired_at = IF(expires_at <= VALUES(acquired_at), VALUES(acquired_at), acquired_at),
            expires_at = IF(expires_at <= VALUES(acquired_at), VALUES(expires_at), expires_at)",
    ..Sides::same(
        "INSERT INTO {p}lock AS l (kind, name, owner, fence, acquired_at, expires_at)
    SELECT 'once', $1, NULL, n.at, n.at, n.at + $2 FROM (SELECT {now} AS at) n
    WHERE $3 = 0 OR EXISTS (SELECT 1 FROM {p}lock a WHERE a.kind = 'once' AND a.name = $4 AND a.owner IS NULL AND a.expires_at > n.at)
    ON CONFLICT (kind, name) DO UPDATE SET
        owner = NULL,
        fence = CASE WHEN l.fence < excluded.fence THEN excluded.fence ELSE l.fence + 1 END,
        acquired_at = excluded.acquired_at,
        expires_at = excluded.expires_at
    WHERE l.expires_at <= excluded.acquired_at
    RETURNING fence",
    )
};

/// Returns [`locks::INSPECT`]; on MySQL it reads the present state of the lock, whatever the
/// transaction has read before.
fn inspect_now(side: Side) -> String {
    let inspect = locks::INSPECT.of(side).trim_start_matches("{waits}");
    match side {
        Side::MySql | Side::Galera => format!("{inspect} LOCK IN SHARE MODE"),
        _ => inspect.to_owned(),
    }
}

/// The mark of completed work.
pub(crate) struct Mark<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) name: &'a str,
    pub(crate) retention: Duration,
    /// The preceding work.
    pub(crate) after: Option<&'a str>,
    /// The longest wait for another transaction that marks the same work.
    pub(crate) wait: Duration,
}

/// The result of a mark.
pub(crate) enum Marked {
    Now,
    /// This call has not marked the work. The states of its own lock, and of the preceding work's
    /// lock.
    Refused([Option<LockRow>; 2]),
}

/// Marks the work as done.
impl OnConnection for &Mark<'_> {
    type Output = Answer<Marked>;

    async fn run<DB: Driver>(self, connection: &mut DB::Connection) -> Answer<Marked> {
        // The lock of the preceding work is only read. Before such a read, a node of a Galera
        // cluster has to apply the commits of the other nodes.
        let side = match (self.after, DB::DIALECT.side) {
            (Some(_), Side::MySql) => kind_on::<DB>(connection).await?.side,
            (_, side) => side,
        };
        let statement = |sides: &Sides| Statement::new(side, self.prefix, sides.of(side));
        let [before, after_mark] = BOUNDS;
        let bounds = side != Side::Sqlite;
        let wait = i64::try_from(self.wait.as_millis()).unwrap_or(i64::MAX);
        if bounds {
            DB::run(connection, &statement(&before), &[Arg::Int(wait)]).await?;
        }
        let (name, after) = (bounded(self.name), self.after.map(bounded));
        let arguments = [
            Arg::Text(&name),
            Arg::Int(micros(self.retention)),
            Arg::Int(i64::from(after.is_some())),
            Arg::Text(after.as_deref().unwrap_or(&name)),
        ];
        let done = DB::run(connection, &statement(&MARK), &arguments).await;
        if bounds {
            let restored = DB::run(connection, &statement(&after_mark), &[]).await;
            // A transaction that has failed accepts no further statement, and its rollback restores
            // the setting.
            if done.is_ok() {
                restored?;
            }
        }
        if number(&done?)?.is_some() {
            return Ok(Marked::Now);
        }
        let once = Arg::Text(LockKind::Once.as_str());
        let mut found = [None, None];
        for (name, lock) in [Some(&name), after.as_ref()].into_iter().zip(&mut found) {
            if let Some(name) = name {
                let id = [once, Arg::Text(name)];
                let inspect = Statement::new(side, self.prefix, &inspect_now(side));
                let done = DB::run(connection, &inspect, &id).await?;
                *lock = done.rows.first().map(lock_row::<DB>).transpose()?.flatten();
            }
        }
        Ok(Marked::Refused(found))
    }
}
