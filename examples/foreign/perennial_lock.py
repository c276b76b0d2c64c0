"""Perennial's locks from Python, by docs/protocol.md. One file, to be taken along.

    python3 perennial_lock.py sqlite:site.db nightly-import    # holds the lock until Enter is pressed

With a connection of sqlite3, psycopg2 (or psycopg) or PyMySQL (or MySQLdb), in autocommit, to a database where Perennial has made its tables:

    lease = Locks(connection).try_lock("nightly-import", seconds=60)
    if lease:                      # nobody else has it, in no process and no language
        ...                        # lease.extend(60) now and then; False: it is lost, stop
        lease.release()

Not thread-safe."""
import hashlib, os, sys, uuid

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
EXTEND = """UPDATE {p}lock SET expires_at = {now} + :length,
        acquired_at = CASE WHEN acquired_at > {now} THEN {now} ELSE acquired_at END
    WHERE kind = 'lock' AND name = :name AND owner = :owner AND fence = :fence AND expires_at > {now}"""
RELEASE = """UPDATE {p}lock SET owner = NULL, expires_at = 0
    WHERE kind = 'lock' AND name = :name AND owner = :owner AND fence = :fence"""


class Locks:
    def __init__(self, connection, prefix="perennial_", label=f"python {os.getpid()}"):
        self.connection, self.prefix, self.label = connection, prefix, label
        module = type(connection).__module__
        self.kind = "sqlite" if "sqlite" in module else "postgres" if "psycopg" in module else "mysql"
        auto = {"sqlite": lambda c: c.isolation_level is None, "postgres": lambda c: c.autocommit, "mysql": lambda c: c.get_autocommit()}
        if not auto[self.kind](connection):
            raise ValueError("the connection is not in autocommit (with sqlite3: isolation_level=None)")

    def run(self, sql, **arguments):
        sql = sql.format(p=self.prefix, now=NOW[self.kind])
        if self.kind != "sqlite":
            for name in arguments:
                sql = sql.replace(f":{name}", f"%({name})s")
        cursor = self.connection.cursor()
        cursor.execute(sql, arguments)
        return cursor

    def try_lock(self, name, seconds=15, action=""):
        """A Lease, or None: somebody has it. Never waits for the holder."""
        name, owner = bounded(name), f"{uuid.uuid4().hex} {plain(self.label)}\t{plain(action)}"
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
        return Lease(self, name, owner, fence) if fence else None


class Lease:
    """A lock that is held; its fence is greater than that of every earlier holder. Write it beside what you write, and refuse what is smaller."""

    def __init__(self, locks, name, owner, fence):
        self.locks, self.name, self.owner, self.fence = locks, name, owner, fence

    def extend(self, seconds=15):
        """Holds it for so long from now. False: it is lost."""
        return self.run(EXTEND, length=int(seconds * 1e6))

    def release(self):
        """Gives it up. False: it was lost before."""
        return self.run(RELEASE)

    def run(self, sql, **arguments):
        return self.locks.run(sql, name=self.name, owner=self.owner, fence=self.fence, **arguments).rowcount > 0

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
