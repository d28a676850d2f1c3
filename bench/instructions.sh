# shellcheck shell=bash
# Instructions that the server executes for each cycle, which do not depend on
# the machine's noise: one backend under callgrind (scripts/bench sources this).
#
# A session has costs before its first cycle, so each measurement runs twice,
# with more and with fewer cycles, and the difference counts.  The load
# generator chooses the same keys every time.
#
# shellcheck disable=SC2154	# what scripts/bench and scripts/lib.sh set

# name: contender, and arguments of the load generator
instruction_jobs=(
	'select_once: select_once'
	'try: dlock --work try'
	'refresh: dlock --work refresh --keys 1000'
	'select: select'
	'advisory: advisory --keys 1000'
	'xid: xid'
	'commit: commit'
	'hot_update: hot_update --keys 1000'
	'dlock: dlock --keys 1000'
	'dlock_async: dlock_async --keys 1000'
	'plpgsql: plpgsql --keys 1000'
)

grind_server() {
	as_user "$bindir/pg_ctl" -D "$work/grind" -l "$work/log/grind.log" -w -t 300 "$@" >"$work/log/pg_ctl.log" 2>&1 ||
		show_and_die "$work/log/grind.log" "could not $1 the server under callgrind"
}

# counted_session N ARGUMENT...: prints the pid of its backend when callgrind
# has written its file
counted_session() {
	local answer pid

	answer=$(as_user "${command[@]}" --count "$1" --keep "${@:2}") || die "${command[1]} failed"
	pid=${answer##*pid=}
	until grep -q '^totals' "$work/callgrind/$pid" 2>/dev/null; do
		sleep 0.05
	done
	echo "$pid"
}

instructions_of() {
	sed -n 's/^totals: //p' "$work/callgrind/$1"
}

bench_instructions() {
	local PGPORT job name few many command arguments

	read -r PGPORT < <(free_ports 1)
	mkdir "$work/callgrind"
	give "$work/callgrind"
	as_user "$bindir/initdb" -D "$work/grind" -U postgres -A trust -N -E UTF8 --locale=C >"$work/log/initdb.log" 2>&1
	cat >>"$work/grind/postgresql.conf" <<-CONF
		listen_addresses = '127.0.0.1'
		port = $PGPORT
		unix_socket_directories = ''
		shared_preload_libraries = 'dlock'
		shared_buffers = 256MB
		autovacuum = off
		fsync = off
		dlock.reap_interval = 0
	CONF
	cat >"$work/callgrind.sh" <<-SH
		#!/bin/sh
		exec valgrind -q --tool=callgrind --callgrind-out-file=$work/callgrind/%p $bindir/postgres "\$@"
	SH
	chmod a+rx "$work/callgrind.sh"

	grind_server start
	PGDATABASE=postgres sql -c 'CREATE DATABASE bench'
	sql -f "$work/tree/bench/setup.sql"
	fill 100000
	grind_server -m fast stop
	grind_server start -p "$work/callgrind.sh"
	for job in "${instruction_jobs[@]}"; do
		name=${job%%:*}
		read -ra arguments <<<"${job#*: }"
		takes "$name" || continue
		note "instructions: $name"
		command_of "${arguments[0]}"
		# the first run fills caches in shared memory, with the same keys
		few=$(counted_session $((counted + 100)) "${arguments[@]:1}")
		few=$(counted_session 100 "${arguments[@]:1}")
		many=$(counted_session $((counted + 100)) "${arguments[@]:1}")
		keep fact "instructions_$name" $((($(instructions_of "$many") - $(instructions_of "$few")) / counted))
		[ -z "$profile" ] || cp "$work/callgrind/$many" "$profile/$name.callgrind"
	done
	grind_server -m fast stop
}
