"""For the tests: does to a database what it is told, line by line, and says what came of it. Not started with a URL, it says whether it could be."""
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "foreign"))
from perennial_lock import Lease, Locks


def connect(url):
    at = urlsplit(url)
    if at.scheme == "sqlite":
        import sqlite3

        return sqlite3.connect(at.path or at.netloc, isolation_level=None, timeout=4)
    if at.scheme == "mysql":
        import pymysql

        return pymysql.connect(
            host=at.hostname, port=at.port, user=at.username, database=at.path[1:], autocommit=True
        )
    import psycopg2

    connection = psycopg2.connect(url)
    connection.autocommit = True
    return connection


if len(sys.argv) < 2:
    import psycopg2, pymysql, sqlite3

    sys.exit()
connection = connect(sys.argv[1])
locks, leases, kept = Locks(connection, label="a python"), {}, None
for line in sys.stdin:
    what, name = line.rstrip("\n").split(" ", 1)
    said = ""
    if what == "try":
        lease = locks.try_lock(name, 600, action="a test")
        if lease:
            leases[name] = lease
            said = lease.fence
    elif what == "brief":
        leases[name] = locks.try_lock(name, 0.5)
        said = leases[name].fence
    elif what == "extend":
        said = leases[name].extend(600)
    elif what == "release":
        said = leases[name].release()
    elif what == "sql":
        # What the database refuses, such as a deadlock, is over for this transaction.
        try:
            connection.cursor().execute(name)
        except Exception as error:
            said = type(error).__name__
    elif what == "begin":
        connection.cursor().execute("BEGIN")
    elif what == "rollback":
        connection.cursor().execute("ROLLBACK")
    elif what == "refused":
        try:
            said = f"took it: {locks.try_lock(name)}"
        except ValueError as error:
            said = str(error)
    elif what == "keep":
        leases[name] = locks.try_lock(name, 2)
        kept = leases[name].keep(lambda: connect(sys.argv[1]), 2)
    elif what == "stop":
        said = kept.lost
        kept.stop()
    elif what == "invalidate":
        locks.invalidate(name)
    elif what == "write":
        # Under the fence, as the protocol has it.
        fence = leases[name].fence
        sql = f"UPDATE document SET fence = {fence} WHERE fence <= {fence}"
        cursor = connection.cursor()
        cursor.execute(sql)
        said = cursor.rowcount > 0
    print("said", said, flush=True)
