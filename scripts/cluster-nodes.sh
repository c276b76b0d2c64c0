# The nodes of a cluster and what is in front of them, for scripts/cluster, which sets kind, family, folder, base and nodes.

# --- etcd and HAProxy --------------------------------------------------------------------------------------------------------

run_etcd() { # member
    local n=$1 peers
    peers=$(printf "etcd%s=http://127.0.0.1:%s," 1 $((base + 31)) 2 $((base + 32)) 3 $((base + 33)))
    mkdir -p "$folder/etcd$n"
    start "etcd$n" postgres etcd --name "etcd$n" --data-dir "$folder/etcd$n" \
        --listen-client-urls "http://127.0.0.1:$((base + 20 + n))" --advertise-client-urls "http://127.0.0.1:$((base + 20 + n))" \
        --listen-peer-urls "http://127.0.0.1:$((base + 30 + n))" --initial-advertise-peer-urls "http://127.0.0.1:$((base + 30 + n))" \
        --initial-cluster "${peers%,}" --enable-v2 --unsafe-no-fsync
}
etcd_is_up() { curl -sf "http://127.0.0.1:$((base + 20 + $1))/health" | grep -q '"true"'; }
etcd_leader() {
    local n answer
    for n in "${nodes[@]}"; do
        answer=$(curl -s -m 2 "http://127.0.0.1:$((base + 20 + n))/v3/maintenance/status" -d '{}' || true)
        # The leader's own answer has its number twice.
        if grep -q '"member_id":"\([0-9]*\)".*"leader":"\1"' <<<"$answer"; then
            echo "$n"
            return
        fi
    done
    echo "$kind: etcd has no leader" >&2
    exit 1
}

run_proxy() {
    local file=docs/failover/haproxy-$([ $family = postgres ] && echo patroni || echo galera).cfg n edit=()
    for n in "${nodes[@]}"; do
        edit+=(-e "s/10\.0\.0\.$n:[0-9]*/127.0.0.1:$((base + n))/" -e "/node$n /s/port 8008/port $((base + 10 + n))/")
    done
    edit+=(-e "s|/etc/haproxy/galera-check|$folder/galera-check|")
    cp docs/failover/galera-check "$folder"
    sed "${edit[@]}" -e "s/bind \*:\(5000\|3306\)/bind 127.0.0.1:$base/" -e "s/bind \*:3307/bind 127.0.0.1:$((base + 9))/" \
        "$file" >"$folder/haproxy.cfg"
    [ $family = mariadb ] || run_pgbouncer
    start haproxy $([ $family = postgres ] && echo postgres || echo mysql) "$(find_in haproxy /usr/sbin)" -db -f "$folder/haproxy.cfg"
}

run_pgbouncer() {
    sed -e "s/host=10.0.0.10 port=5000/host=127.0.0.1 port=$base user=perennial/" -e "s/^listen_addr.*/listen_addr = 127.0.0.1/" \
        -e "s/^listen_port.*/listen_port = $((base + 9))/" -e "s/^auth_type.*/auth_type = any/" -e "/^auth_file/d" \
        -e '$a unix_socket_dir =' docs/failover/pgbouncer.ini >"$folder/pgbouncer.ini"
    start pgbouncer postgres "$(find_in pgbouncer /usr/sbin)" -q "$folder/pgbouncer.ini"
}

# --- nodes -------------------------------------------------------------------------------------------------------------------

node() { # number
    local n=$1
    mkdir -p "$folder/node$n"
    # A disk of its own, where this may mount one.
    mountpoint -q "$folder/node$n" || mount -t tmpfs -o size=700m tmpfs "$folder/node$n" 2>/dev/null || true
    if [ $family = postgres ]; then run_patroni "$n"; else run_galera "$n"; fi
}

run_patroni() {
    local n=$1 bin
    bin=$(dirname "$(readlink -f "$(pg postgres)")")
    cat >"$folder/node$n.yml" <<-YML
		scope: perennial
		name: node$n
		restapi: { listen: '127.0.0.1:$((base + 10 + n))', connect_address: '127.0.0.1:$((base + 10 + n))' }
		etcd: { hosts: '127.0.0.1:$((base + 21)),127.0.0.1:$((base + 22)),127.0.0.1:$((base + 23))' }
		bootstrap:
		  dcs:
		    ttl: 20
		    loop_wait: 5
		    retry_timeout: 5
		    primary_start_timeout: 10
		    maximum_lag_on_failover: 100000000
		    synchronous_mode: $([ "$kind" = patroni ] && echo true || echo false)
		    postgresql:
		      use_pg_rewind: true
		      parameters: { max_connections: 300, wal_keep_size: 64MB, max_wal_size: 128MB, min_wal_size: 48MB, shared_buffers: 32MB }
		  initdb: [ { encoding: UTF8 }, { auth: trust }, no-sync ]
		postgresql:
		  listen: 127.0.0.1:$((base + n))
		  connect_address: 127.0.0.1:$((base + n))
		  data_dir: $folder/node$n/data
		  bin_dir: $bin
		  pgpass: $folder/node$n/pgpass
		  authentication:
		    superuser: { username: perennial, password: perennial }
		    replication: { username: replicator, password: replicator }
		  pg_hba: [ local all all trust, host all all 127.0.0.1/32 trust, host replication all 127.0.0.1/32 trust ]
		  parameters: { unix_socket_directories: '$folder/node$n', fsync: 'on' }
	YML
    start "node$n" postgres patroni "$folder/node$n.yml"
}

provider() { ls /usr/lib/galera/libgalera_smm.so /usr/lib/*/galera/libgalera_smm.so 2>/dev/null | head -n 1 || true; }

run_galera() {
    local n=$1 server data=$folder/node$n/data options position=()
    server=$(maria mariadbd)
    pid_of "node$n.pid" >/dev/null && return
    options=(--no-defaults --datadir="$data" --tmpdir="$folder/node$n" --socket="$folder/node$n/socket" --pid-file="$folder/node$n/pid"
        --bind-address=127.0.0.1 --port=$((base + n)) --max-connections=300 --binlog-format=ROW --innodb-autoinc-lock-mode=2
        --innodb-flush-log-at-trx-commit=2 --innodb-log-file-size=32M --innodb-buffer-pool-size=64M --innodb-flush-method=fsync
        --wsrep-on=ON --wsrep-provider="$(provider)"
        --wsrep-cluster-name=perennial --wsrep-node-name="node$n" --wsrep-node-address=127.0.0.1
        --wsrep-cluster-address="gcomm://127.0.0.1:$((base + 11)),127.0.0.1:$((base + 12)),127.0.0.1:$((base + 13))"
        --wsrep-sst-method=rsync --wsrep-sst-receive-address="127.0.0.1:$((base + 30 + n))"
        --wsrep-provider-options="gmcast.listen_addr=tcp://127.0.0.1:$((base + 10 + n));ist.recv_addr=127.0.0.1:$((base + 20 + n));gcache.size=32M")
    if [ ! -d "$data" ]; then
        mkdir "$data"
        if [ "$n" = 1 ]; then
            (as_user mysql "$(maria mariadb-install-db)" --no-defaults --datadir="$data" --skip-test-db >>"$folder/node1.log" 2>&1)
            cat >"$folder/start.sql" <<-SQL
				CREATE DATABASE IF NOT EXISTS perennial;
				CREATE USER IF NOT EXISTS perennial@'127.0.0.1';
				CREATE USER IF NOT EXISTS haproxy@'127.0.0.1';
				GRANT ALL ON *.* TO perennial@'127.0.0.1' WITH GRANT OPTION;
			SQL
            position=(--wsrep-new-cluster --init-file="$folder/start.sql")
        fi
    else
        # The place at which a crash has ended, so that the node gets what is missing, and not everything.
        position=$( (as_user mysql "$server" "${options[@]}" --wsrep-recover 2>&1) | sed -n 's/.*Recovered position: *//p' | tail -n 1)
        position=(${position:+--wsrep-start-position="$position"})
    fi
    start "node$n" mysql "$server" "${options[@]}" "${position[@]}"
    [ "$n" != 1 ] || until_true 60 "started node1" galera_is_up 1
}

sql_on() { # node, statement
    if [ $family = postgres ]; then
        PGCONNECT_TIMEOUT=2 timeout 5 psql -X -qAt -h 127.0.0.1 -p $((base + $1)) -U perennial postgres -c "$2" 2>/dev/null
    else
        timeout 5 "$(maria mariadb)" --no-defaults -h 127.0.0.1 -P $((base + $1)) -u perennial --connect-timeout=2 -Nse "$2" 2>/dev/null
    fi
}
galera_is_up() { [ "$(sql_on "$1" "SHOW STATUS LIKE 'wsrep_local_state_comment'" | cut -f 2)" = Synced ]; }
patroni_says() { curl -s -m 2 -o /dev/null -w '%{http_code}' "http://127.0.0.1:$((base + 10 + $1))/$2" || true; }

state() { # node
    if [ $family = mariadb ]; then
        sql_on "$1" "SHOW STATUS WHERE Variable_name IN ('wsrep_local_state_comment', 'wsrep_cluster_size')" | cut -f 2 | tr '\n' ' '
    else
        for role in primary sync async replica; do
            [ "$(patroni_says "$1" $role)" != 200 ] || { echo "$role"; return; }
        done
    fi
}
primary() { # the node to which the proxy leads
    local n
    for n in "${nodes[@]}"; do
        if [ $family = mariadb ]; then galera_is_up "$n"; else [ "$(patroni_says "$n" primary)" = 200 ]; fi && { echo "$n"; return; }
    done
    echo "$kind: there is no primary; scripts/cluster $kind up starts the cluster, and heal mends it" >&2
    exit 1
}
