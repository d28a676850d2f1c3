# shellcheck shell=bash
# The servers that scripts/bench measures.  All are in its temporary folder, on
# free ports of the loopback interface, and end with it (scripts/lib.sh).
#
# Each is set up as its documentation recommends for the guarantee that is
# measured; all data folders are on the same file system.
#
# shellcheck disable=SC2154	# what scripts/bench and scripts/lib.sh set
# shellcheck disable=SC2034	# what they use

disk=()

free_ports() {
	perl -MIO::Socket::INET -e '
		my @s = map { IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die $! } 1 .. shift;
		print join(" ", map { $_->sockport } @s), "\n"' "$1"
}

show_and_die() {
	tail -n 30 "$1" >&2
	die "$2"
}

in_background() {
	as_user "$@" &
}

# wait_for_port PORT LOG
wait_for_port() {
	local until=$((SECONDS + 60))

	until (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do
		[ $SECONDS -lt $until ] || show_and_die "$2" "nothing listens on port $1"
		sleep 0.1
	done
}

build_all() {
	local log=$work/log/build.log

	note "building"
	copy_postgres
	copy_tree "$work/tree"
	as_user make -s -C "$work/tree" PG_CONFIG="$pg_config" install >"$log" 2>&1 ||
		show_and_die "$log" "could not build dlock"
	as_user make -s -C "$work/tree/router" PG_CONFIG="$pg_config" install >"$log" 2>&1 ||
		show_and_die "$log" "could not build the router"
	as_user make -s -C "$work/tree/bench" PG_CONFIG="$pg_config" load >"$log" 2>&1 ||
		show_and_die "$log" "could not build the load generator"
	as_user make -s -C "$work/tree/bench" PG_CONFIG="$pg_config" threads >"$log" 2>&1 ||
		show_and_die "$log" "could not build the load generator for libdlock"
	as_user make -s -C "$work/tree/bench" slow_flush.so >"$log" 2>&1 ||
		show_and_die "$log" "could not build the library of a slow disk"
	if needs etcd; then
		as_user make -s -C "$work/tree/bench" etcd >"$log" 2>&1 ||
			show_and_die "$log" "could not build the load generator for etcd"
	fi
	load=$work/tree/bench/load
}

# set_disk MICROSECONDS: each flush of a server that is started now takes so much
# longer.  0: the disk as it is.
set_disk() {
	disk=()
	[ "$1" = 0 ] || disk=(env "LD_PRELOAD=$work/tree/bench/slow_flush.so" "BENCH_FLUSH_US=$1")
}

launch_postgres() {
	as_user "${disk[@]}" "$bindir/pg_ctl" -D "$work/data" -l "$work/log/postgres.log" -w start \
		>"$work/log/pg_ctl.log" 2>&1 || show_and_die "$work/log/postgres.log" "PostgreSQL did not start"
}

restart_postgres() {
	as_user "$bindir/pg_ctl" -D "$work/data" -m fast -w stop >"$work/log/pg_ctl.log" 2>&1 ||
		show_and_die "$work/log/postgres.log" "PostgreSQL did not stop"
	launch_postgres
}

# Settings that a server of this size would have.
start_postgres() {
	read -r PGPORT < <(free_ports 1)
	as_user "$bindir/initdb" -D "$work/data" -U postgres -A trust -E UTF8 --locale=C \
		>"$work/log/initdb.log" 2>&1 || show_and_die "$work/log/initdb.log" "initdb failed"
	cat >>"$work/data/postgresql.conf" <<-CONF
		listen_addresses = '127.0.0.1'
		port = $PGPORT
		unix_socket_directories = ''
		shared_preload_libraries = 'dlock'
		shared_buffers = 1GB
		max_wal_size = 8GB
		checkpoint_timeout = 1h
		max_connections = 200
	CONF
	launch_postgres
	export PGHOST=127.0.0.1 PGPORT PGUSER=postgres PGDATABASE=bench
	PGDATABASE=postgres sql -c 'CREATE DATABASE bench'
	sql -f "$work/tree/bench/setup.sql"
}

sql() {
	as_user "$bindir/psql" -X -q -A -t -v ON_ERROR_STOP=1 "$@"
}

# redis NAME PORT OPTION...
start_redis() {
	local dir=$work/$1

	mkdir "$dir"
	give "$dir"
	in_background "${disk[@]}" redis-server --bind 127.0.0.1 --port "$2" --dir "$dir" --save '' --logfile '' \
		"${@:3}" >"$work/log/$1.log" 2>&1
	wait_for_port "$2" "$work/log/$1.log"
}

# NAME PORT
start_redis_aof() {
	start_redis "$1" "$2" --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0
}

start_etcd() {
	local url=http://127.0.0.1:$1 peer=http://127.0.0.1:$2

	in_background etcd --data-dir "$work/etcd" --log-level error --logger zap \
		--listen-client-urls "$url" --advertise-client-urls "$url" \
		--listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
		>"$work/log/etcd.log" 2>&1
	wait_for_port "$1" "$work/log/etcd.log"
}

# forceSync is the default: no answer before the transaction log is on disk.
start_zookeeper() {
	mkdir "$work/zookeeper"
	cat >"$work/zookeeper.cfg" <<-CONF
		dataDir=$work/zookeeper
		clientPort=$1
		clientPortAddress=127.0.0.1
		admin.enableServer=false
		maxClientCnxns=0
		forceSync=yes
	CONF
	give "$work/zookeeper" "$work/zookeeper.cfg"
	in_background java -Xmx1g -cp /usr/share/java/zookeeper.jar \
		org.apache.zookeeper.server.quorum.QuorumPeerMain "$work/zookeeper.cfg" \
		>"$work/log/zookeeper.log" 2>&1
	wait_for_port "$1" "$work/log/zookeeper.log"
}

start_peers() {
	read -r redis_port redis_aof_port etcd_port etcd_peer_port zookeeper_port < <(free_ports 5)
	note "starting the peers"
	if needs redis; then
		start_redis redis "$redis_port" --appendonly no
	fi
	if needs redis_aof; then
		start_redis_aof redis_aof "$redis_aof_port"
	fi
	if needs etcd; then
		start_etcd "$etcd_port" "$etcd_peer_port"
	fi
	if needs zookeeper; then
		start_zookeeper "$zookeeper_port"
	fi
}
