#!/usr/bin/env bash
# Perennial's locks from a shell, by docs/protocol.md: runs a command while it holds a lock, as flock does, on all servers that share the database.
#
#   lock.sh URL NAME [--lease SECONDS] [--wait SECONDS] [--hold SECONDS] -- COMMAND...
#   lock.sh postgres://user@host/site nightly-import --wait 60 -- ./import
#
# URL: sqlite:FILE, postgres://… or mysql://user:password@host:port/database; by the programs sqlite3 (3.35 or newer), psql or mariadb. The lease (15 s) is extended while
# the command runs, which finds the fence in PERENNIAL_FENCE; when it is lost, the command is stopped (TERM, as by a signal to this script). If the
# command ends before the time of --hold is over, the lock stays taken until then. PERENNIAL_PREFIX: what the tables' names begin with, if not perennial_.
#
# Ends as the command does; with 75 if somebody has the lock, 74 if it was lost, 69 if the database fails, 64 if it is called wrongly.
set -euo pipefail

usage() { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 64; }
number() { [[ ${1:-} =~ ^[0-9]+$ ]] || usage; }
[ $# -ge 2 ] || usage
url=$1 name=$2 lease=15 wait=0 hold=0 table=${PERENNIAL_PREFIX:-perennial_}lock
shift 2
while [ $# -gt 0 ]; do
    case $1 in
    --lease) number "${2:-}"; lease=$2; shift 2 ;;
    --wait) number "${2:-}"; wait=$2; shift 2 ;;
    --hold) number "${2:-}"; hold=$2; shift 2 ;;
    --) shift; break ;;
    *) usage ;;
    esac
done
[ $# -gt 0 ] && [ "$lease" -gt 0 ] || usage

hex() { od -An -v -tx1 | tr -d ' \n'; }
whole() { iconv -c -f UTF-8 -t UTF-8; } # without a character that is cut

# A name as its column holds it.
bounded() {
    if [ -n "$1" ] && [ "$(printf %s "$1" | wc -c)" -le 180 ]; then printf %s "$1"; return; fi
    local first
    first=$(printf %s "$1" | head -c 128 | whole)
    printf %s "$first"
    printf '~%.0s' $(seq "$((129 - $(printf %s "$first" | wc -c)))")
    printf %s "$1" | sha256sum | cut -c1-64 | tr -d '\n'
}

# Runs a client for a third of the lease, 10 s at most, and no longer than what is left of it: a server may never answer.
since=$SECONDS
limited() {
    local left=$((lease - SECONDS + since)) most=$((lease < 30 ? lease / 3 : 10))
    [ "$left" -le "$most" ] || left=$most
    timeout --foreground -s KILL "$((left > 2 ? left : 2))" "$@"
}

name_hex=$(bounded "$name" | hex)
owner_hex=$(printf '%s shell %s\t%s' "$(head -c 16 /dev/urandom | hex)" "$$" "${1##*/}" | head -c 200 | whole | hex)
case $url in
sqlite:*)
    file=${url#sqlite:} file=${file#//} file=${file%%\?*}
    [ -e "$file" ] || { echo "there is no database $file" >&2; exit 69; }
    sql() { limited sqlite3 -batch -cmd '.timeout 1500' "$file" "$1"; }
    now="(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)"
    text() { printf "CAST(x'%s' AS TEXT)" "$1"; }
    changed() { sql "$1 RETURNING 1"; }
    ;;
postgres://* | postgresql://*)
    sql() { limited psql -X -A -t -q -v ON_ERROR_STOP=1 "$url" -c "$1"; }
    now="(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    # In the column's collation, without which its index cannot be used.
    text() { printf "convert_from(decode('%s', 'hex'), 'UTF8') COLLATE \"default\"" "$1"; }
    changed() { sql "$1 RETURNING 1"; }
    ;;
mysql://*)
    [[ $url =~ ^mysql://([^:@/]*)(:([^@]*))?@([^:/]+)(:([0-9]+))?/([^?]+) ]] || usage
    MYSQL_PWD=$(printf '%b' "${BASH_REMATCH[3]//%/\\x}")
    export MYSQL_PWD
    server=(--batch --skip-column-names -u "${BASH_REMATCH[1]}" -h "${BASH_REMATCH[4]}" -P "${BASH_REMATCH[6]:-3306}" "${BASH_REMATCH[7]}")
    sql() { limited mariadb "${server[@]}" -e "$1"; }
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    text() { printf "x'%s'" "$1"; }
    changed() { sql "$1; SELECT IF(ROW_COUNT() > 0, 1, 0)" | sed 's/^0$//'; }
    ;;
*) usage ;;
esac
n=$(text "$name_hex") o=$(text "$owner_hex") length="$lease * 1000000"

# The fence, or nothing: somebody has it.
try() {
    case $url in
    sqlite:*)
        sql "INSERT INTO $table AS l (kind, name, owner, fence, acquired_at, expires_at)
            SELECT 'lock', $n, $o, n.at, n.at, n.at + $length FROM (SELECT $now AS at) n WHERE true
            ON CONFLICT (kind, name) DO UPDATE SET owner = excluded.owner, fence = max(l.fence + 1, excluded.fence),
                acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
            WHERE l.expires_at <= excluded.acquired_at RETURNING fence" ;;
    postgres*)
        sql "WITH n AS (SELECT $now AS at, set_config('lock_timeout', '50ms', true)),
            c AS (SELECT l.kind, l.name FROM $table l, n WHERE l.kind = 'lock' AND l.name = $n AND l.expires_at <= n.at FOR UPDATE OF l SKIP LOCKED),
            u AS (UPDATE $table l SET owner = $o, fence = greatest(l.fence + 1, n.at), acquired_at = n.at, expires_at = n.at + $length
                FROM c, n WHERE l.kind = c.kind AND l.name = c.name RETURNING l.fence),
            i AS (INSERT INTO $table (kind, name, owner, fence, acquired_at, expires_at) SELECT 'lock', $n, $o, n.at, n.at, n.at + $length FROM n
                WHERE NOT EXISTS (SELECT 1 FROM $table WHERE kind = 'lock' AND name = $n) ON CONFLICT (kind, name) DO NOTHING RETURNING fence)
            SELECT fence FROM u UNION ALL SELECT fence FROM i" ;;
    mysql*)
        sql "INSERT INTO $table (kind, name, owner, fence, acquired_at, expires_at)
            VALUES ('lock', $n, $o, LAST_INSERT_ID($now), $now, $now + $length)
            ON DUPLICATE KEY UPDATE owner = IF(expires_at <= VALUES(acquired_at), $o, owner),
                acquired_at = IF(owner = $o, VALUES(acquired_at), acquired_at),
                fence = IF(owner = $o, LAST_INSERT_ID(GREATEST(fence + 1, VALUES(fence))), fence + LAST_INSERT_ID(0)),
                expires_at = IF(owner = $o, VALUES(expires_at), expires_at);
            SELECT LAST_INSERT_ID()" | sed 's/^0$//' ;;
    esac
}

micros() { echo "${EPOCHREALTIME/[^0-9]/}"; }
# What may have been taken, though it was not told in time.
give_back() { since=$SECONDS; sql "UPDATE $table SET owner = NULL, expires_at = 0 WHERE kind = 'lock' AND name = $n AND owner = $o" >/dev/null 2>&1 || true; }
end=$((SECONDS + wait)) errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
while true; do
    since=$SECONDS begun=$(micros)
    if ! fence=$(try 2>"$errors"); then
        # Somebody was faster, as the protocol has it.
        grep -qiE 'lock timeout|lock wait timeout|deadlock|serialize|database is locked' "$errors" || {
            echo "the database fails: $(grep . "$errors" || echo "it does not answer")" >&2
            give_back
            exit 69
        }
        fence=
    fi
    # A warning is no fence.
    if [[ $fence =~ ^[0-9]+$ ]]; then
        [ "$(($(micros) - begun))" -ge $((lease * 1000000)) ] || break
        give_back
    fi
    [ "$SECONDS" -lt "$end" ] || { echo "the lock $name is held by another holder" >&2; exit 75; }
    sleep "0.$((RANDOM % 9 + 1))"
done
ours="kind = 'lock' AND name = $n AND owner = $o AND fence = $fence"
export PERENNIAL_FENCE=$fence

"$@" <&0 &
command=$!
trap 'kill -TERM "$command" 2>/dev/null' INT TERM HUP QUIT
third=$(awk "BEGIN { print $lease / 3 }") quarter=$(awk "BEGIN { print $lease / 12 }")
# Whether the command runs: a dead one that nobody has waited for does not.
alive() {
    kill -0 "$command" 2>/dev/null || return 1
    case $(ps -o stat= -p "$command" 2>/dev/null) in Z*) return 1 ;; esac
}
# Extends the lease for as long as the command runs; a database that fails is asked again until the lease is over. The keeper ends
# when the command has ended. If only the script has died, the keeper goes on.
keep() {
    trap '' INT TERM HUP QUIT
    local pause=$third asked out ended
    while true; do
        if read -rt "$pause" || [ $? -le 128 ]; then ended=1; else ended=; fi
        alive || exit 0
        [ -z "$ended" ] || sleep "$pause"
        asked=$SECONDS
        if out=$(changed "UPDATE $table SET expires_at = $now + $length, acquired_at = CASE WHEN acquired_at > $now THEN $now ELSE acquired_at END WHERE $ours AND expires_at > $now" </dev/null); then
            [ -n "$out" ] || break
            since=$asked pause=$third
        else
            [ "$((SECONDS - since))" -lt "$lease" ] || break
            pause=$quarter
        fi
    done
    alive || exit 0
    echo "the lock $name is lost" >&2
    kill -TERM "$command" 2>/dev/null
    exit 74
}
exec 8> >(keep)
keeper=$!
status=0
wait "$command" || status=$?
# Interrupted by a signal, which was passed on, it is waited for again.
while kill -0 "$command" 2>/dev/null; do wait "$command" && status=0 || status=$?; done
exec 8>&-
kept=0
wait "$keeper" || kept=$?
[ "$kept" -ne 74 ] || status=74
until="acquired_at + $hold * 1000000" since=$SECONDS
sql "UPDATE $table SET owner = NULL, expires_at = CASE WHEN $until > $now THEN $until ELSE 0 END WHERE $ours" >/dev/null || true
exit "$status"
