"""Perennial's locks from Python, by docs/protocol.md. One file, to be taken along.

    python3 perennial_lock.py sqlite:site.db nightly-import    # holds the lock until Enter is pressed

With a connection of sqlite3, psycopg2 (or psycopg) or PyMySQL (or MySQLdb), in autocommit, to a database where Perennial has made its tables:

    lease = Locks(connection).try_lock("nightly-import", seconds=60)
    if lease:                      # nobody else has it, in no process and no language
        ...                        # lease.extend(60) now and then; False: it is lost, stop
        lease.release()

For long work, a thread extends the lease over a connection of its own:

    kept = lease.keep(connect)     # connect(): a new connection in autocommit
    for part in work:
        if kept.lost: ...          # stop: somebody else may have it
    kept.stop()
    lease.release()

After a change of data, `Locks(connection).invalidate("tag:books")` makes pages stale; see docs/protocol.md for the names.

Apart from `keep`, not thread-safe."""
import hashlib, os, sys, threading, time, uuid

NOW = {
    "sqlite": "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)",
    "postgres": "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
}
ACQUIRE = {
    "sqlite": """INSERT INTO {p}lock AS l (kind, name, owner, fence, acquired_at, expires_at)
        SELECT 'lock', :name, :owner, n.at, n.at, n.at + :length FROM (SELECT {now} AS at) n WHERE true
        ON CONFLICT (kind, name) DO UPDATE SET owner = excluded.owner, fence = max(l.fence + 1, excluded.fence),
            acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
        WHERE l.expires_at <= excluded.acquired_at RETURNING fence""",
    "postgres": """WITH n AS (SELECT {now} AS at, set_config('lock_timeout', '50ms', true)),
        c AS (SELECT l.kind, l.name FROM {p}lock l, n WHERE l.kind = 'lock' AND l.name = :name AND l.expires_at <= n.at FOR UPDATE OF l SKIP LOCKED),
        u AS (UPDATE {p}lock l SET owner = :owner, fence = greatest(l.fence + 1, n.at), acquired_at = n.at,
            expires_at = n.at + :length FROM c, n WHERE l.kind = c.kind AND l.name = c.name RETURNING l.fence),
        i AS (INSERT INTO {p}lock (kind, name, owner, fence, acquired_at, expires_at)
            SELECT 'lock', :name, :owner, n.at, n.at, n.at + :length FROM n
            WHERE NOT EXISTS (SELECT 1 FROM {p}lock WHERE kind = 'lock' AND name = :name) ON CONFLICT (kind, name) DO NOTHING RETURNING fence)
        SELECT fence FROM u UNION ALL SELECT fence FROM i""",
    "mysql": """INSERT INTO {p}lock (kind, name, owner, fence, acquired_at, expires_at)
        VALUES ('lock', :name, :owner, LAST_INSERT_ID({now}), {now}, {now} + :length)
        ON DUPLICATE KEY UPDATE owner = IF(expires_at <= VALUES(acquired_at), :owner, owner),
            acquired_at = IF(owner = :owner, VALUES(acquired_at), acquired_at),
            fence = IF(owner = :owner, LAST_INSERT_ID(GREATEST(fence + 1, VALUES(fence))), fence + LAST_INSERT_ID(0)),
            expires_at = IF(owner = :owner, VALUES(expires_at), expires_at)""",
}
EXTEND = """UPDATE {p}lock SET expires_at = {now} + :length
    WHERE kind = 'lock' AND name = :name AND owner = :owner AND fence = :fence AND expires_at > {now}"""
RELEASE = """UPDATE {p}lock SET failures = CASE WHEN :cooldown = 0 THEN 0 WHEN owner IS NULL THEN failures ELSE failures + 1 END,
        owner = NULL, expires_at = CASE WHEN :cooldown = 0 THEN 0 ELSE {now} + :cooldown END
    WHERE kind = 'lock' AND name = :name AND fence = :fence AND (owner = :owner OR owner IS NULL)"""
RELEASED = """SELECT 1 FROM {p}lock WHERE kind = 'lock' AND name = :name AND fence = :fence AND owner IS NULL"""
INVALIDATE = {
    "sqlite": """INSERT INTO {p}invalidation (name, epoch)
        SELECT n.name, max(coalesce((SELECT epoch + 1 FROM {p}invalidation WHERE name = '*'), 0), {now})
        FROM (SELECT '*' AS name UNION ALL SELECT :name) n WHERE true
        ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch""",
    "postgres": """WITH n AS (INSERT INTO {p}schema AS s (id, version) VALUES (2, {now})
            ON CONFLICT (id) DO UPDATE SET version = greatest(s.version + 1, excluded.version) RETURNING s.version AS epoch),
        i AS (INSERT INTO {p}invalidation (name, epoch) SELECT :name, n.epoch FROM n
            ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch)
        SELECT pg_notify('{p}invalidation', '')""",
    "mysql": """INSERT INTO {p}invalidation (name, epoch) VALUES ('*', LAST_INSERT_ID({now})), (:name, LAST_INSERT_ID())
        ON DUPLICATE KEY UPDATE epoch = IF(name = '*', LAST_INSERT_ID(GREATEST(epoch + 1, VALUES(epoch))), LAST_INSERT_ID())""",
}


class Locks:
    def __init__(self, connection, prefix="perennial_", label=f"python {os.getpid()}"):
        self.connection, self.prefix, self.label = connection, prefix, label
        module = type(connection).__module__
        self.kind = "sqlite" if "sqlite" in module else "postgres" if "psycopg" in module else "mysql"
        auto = {"sqlite": lambda c: c.isolation_level is None, "postgres": lambda c: c.autocommit, "mysql": lambda c: c.get_autocommit()}
        if not auto[self.kind](connection):
            raise ValueError("the connection is not in autocommit (with sqlite3: isolation_level=None)")

    def run(self, sql, **arguments):
        if in_transaction(self.connection):
            # In Django, `atomic()` and ATOMIC_REQUESTS begin one.
            raise ValueError("the connection is in a transaction, whose rollback would free the lock: use a connection of its own")
        sql = sql.format(p=self.prefix, now=NOW[self.kind])
        if self.kind != "sqlite":
            for name in arguments:
                sql = sql.replace(f":{name}", f"%({name})s")
        cursor = self.connection.cursor()
        cursor.execute(sql, arguments)
        return cursor

    def try_lock(self, name, seconds=15, action=""):
        """A Lease, or None: somebody has it. Never waits for the holder."""
        name, owner, begun = bounded(name), f"{uuid.uuid4().hex} {plain(self.label)}\t{plain(action)}", time.monotonic()
        try:
            cursor = self.run(ACQUIRE[self.kind], name=name, owner=owner, length=int(seconds * 1e6))
        except Exception as error:
            # Somebody was faster: lock_not_available, serialization_failure, deadlock_detected; lock wait timeout, deadlock, changed since it was read, not waited for.
            if getattr(error, "pgcode", getattr(error, "sqlstate", None)) in ("55P03", "40001", "40P01"):
                return None
            if self.kind == "mysql" and error.args[:1] and error.args[0] in (1205, 1213, 1020, 3572):
                return None
            if self.kind == "sqlite" and "is locked" in str(error):
                return None
            raise
        if self.kind == "mysql":
            fence = cursor.lastrowid
        else:
            row = cursor.fetchone()
            fence = row and row[0]
        return Lease(self, name, owner, fence, begun + seconds) if fence else None

    def invalidate(self, target):
        """Makes content stale: "key:/books/7", "prefix:/books/", "tag:books", "tag_prefix:book-"; after the commit of the change."""
        kind, name = target.split(":", 1)
        self.run(INVALIDATE[self.kind], name=target if kind.endswith("prefix") else f"{kind}:{bounded(name)}")


class Lease:
    """A lock that is held; its fence is greater than that of every earlier holder. Write it beside what you write, and refuse what is smaller."""

    def __init__(self, locks, name, owner, fence, until):
        self.locks, self.name, self.owner, self.fence, self.until = locks, name, owner, fence, until

    def extend(self, seconds=15):
        """Holds it for so long from now. False: it is lost."""
        begun = time.monotonic()
        extended = self.run(EXTEND, length=int(seconds * 1e6))
        self.until = begun + seconds if extended else begun
        return extended

    def release(self, cooldown=0):
        """Gives it up; nobody gets it before the cooldown, in seconds, is over. Twice does no harm. False: somebody else has had it since."""
        # Without the flag CLIENT.FOUND_ROWS, MySQL does not count a row that stays as it is.
        return self.run(RELEASE, cooldown=int(cooldown * 1e6)) or self.run(RELEASED)

    def keep(self, connect, seconds=15):
        """Extends it in a thread, each time for so long, until `stop()` of the result."""
        return Kept(self, connect, seconds)

    def run(self, sql, **arguments):
        return self.locks.run(sql, name=self.name, owner=self.owner, fence=self.fence, **arguments).rowcount > 0

class Kept(threading.Thread):
    """The thread that extends a lease; `lost` says that the lease may have ended."""

    def __init__(self, lease, connect, seconds):
        super().__init__(daemon=True)
        self.first, self.connect, self.seconds = lease, connect, seconds
        self.until, self.stopping = lease.until, threading.Event()
        self.start()

    def run(self):
        lease = None
        # Shortly before the end at the latest: the lease may be shorter than `seconds`.
        while not self.lost and not self.stopping.wait(max(0.05, min(self.seconds, self.until - time.monotonic()) / 3)):
            try:
                if lease is None:
                    locks = Locks(self.connect(), self.first.locks.prefix, self.first.locks.label)
                    lease = Lease(locks, self.first.name, self.first.owner, self.first.fence, self.until)
                lease.extend(self.seconds)
                self.until = lease.until
            except Exception:
                lease = None  # The next turn tries again with a new connection.
        if lease:
            lease.locks.connection.close()

    @property
    def lost(self):
        return time.monotonic() >= self.until

    def stop(self):
        self.stopping.set()
        self.join()


def in_transaction(connection):
    if hasattr(connection, "in_transaction"):
        return connection.in_transaction
    # MySQLdb has a method of this name.
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if status is not None:
        return status != 0
    # SERVER_STATUS_IN_TRANS of PyMySQL; MySQLdb does not tell.
    return bool(getattr(connection, "server_status", 0) & 1)


def plain(text): return "".join(c if c.isprintable() else " " for c in text).encode()[:100].decode(errors="ignore")
def bounded(name):
    """The name as its column holds it."""
    data = name.encode()
    if 0 < len(data) <= 180 and b"\0" not in data:
        return name
    first = data.split(b"\0")[0][:128].decode(errors="ignore")
    return first + "~" * (128 - len(first.encode())) + "~" + hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    import sqlite3

    if len(sys.argv) != 3 or not os.path.exists(file := sys.argv[1].removeprefix("sqlite:")):
        sys.exit("perennial_lock.py sqlite:FILE NAME; the file is to be there")
    lease = Locks(sqlite3.connect(file, isolation_level=None)).try_lock(sys.argv[2], 3600)
    try:
        input(f"held, with fence {lease.fence}, for an hour; Enter gives it up") if lease else sys.exit("somebody has it")
    finally:
        lease and lease.release()
