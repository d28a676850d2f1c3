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
	'guarded: dlock --keys 1000'
	'routed: dlock --keys 1000'
)

# The same, with acquire and release in different backends, so that each is
# counted by itself.  The keys of the first three have never been shared; those of
# the readers and semaphores have no head, until the one that says so.
kind_jobs=(
	'exclusive: dlock --keys 1000'
	'ten: dlock --keys 1000 --depth 10 --batch'
	'ten_all: dlock_all --keys 1000 --depth 10 --batch'
	'reader_1: dlock_shared --keys 1 --beside 1'
	'reader_1000: dlock_shared --keys 1 --beside 1000'
	'semaphore_1: dlock_semaphore --keys 1 --beside 1'
	'semaphore_100: dlock_semaphore --keys 1 --beside 100 --slots 200'
	'semaphore_last: dlock_semaphore --keys 1 --beside 100 --slots 101'
	'reader_head: dlock_shared --keys 1 --beside 1'
	'marked: dlock --keys 1000'
)

grind_server() {
	as_user "$bindir/pg_ctl" -D "$work/grind" -l "$work/log/grind.log" -w -t 300 "$@" >"$work/log/pg_ctl.log" 2>&1 ||
		show_and_die "$work/log/grind.log" "could not $1 the server under callgrind"
}

# counted_session N ARGUMENT...: prints the pids of its backend, and of the one
# that releases if there is one, when callgrind has written their files
counted_session() {
	local answer pid releaser pids=()

	answer=$(as_user "${command[@]}" --count "$1" --keep "${@:2}") || die "${command[1]} failed"
	read -r pid releaser <<<"$(sed -n 's/.* pid=\([0-9]*\) releaser=\([0-9]*\)$/\1 \2/p' <<<"$answer")"
	for pid in "$pid" "$releaser"; do
		[ "$pid" != 0 ] || continue
		until grep -q '^totals' "$work/callgrind/$pid" 2>/dev/null; do
			sleep 0.05
		done
		pids+=("$pid")
	done
	echo "${pids[*]}"
}

instructions_of() {
	sed -n 's/^totals: //p' "$work/callgrind/$1"
}

# function_of PID NAME: the instructions of an SQL function, and of all that it
# calls
function_of() {
	callgrind_annotate --inclusive=yes --threshold=100 --show-percs=no "$work/callgrind/$1" 2>"$work/log/annotate.log" |
		sed -n "s/^ *\([0-9,]*\) .*:$2 \[.*/\1/p" | head -n 1 | tr -d ,
}

# count_job NAME CONTENDER ARGUMENT...: sets the arrays few and many
count_job() {
	local command answer

	note "instructions: $1"
	command_of "$2"
	# the first run fills caches in shared memory, with the same keys
	counted_session $((counted + 100)) "${@:3}" >"$work/log/first.log"
	answer=$(counted_session 100 "${@:3}")
	read -ra few <<<"$answer"
	sql -c 'VACUUM dlock.locks'
	answer=$(counted_session $((counted + 100)) "${@:3}")
	read -ra many <<<"$answer"
	[ -z "$profile" ] || cp "$work/callgrind/${many[0]}" "$profile/$1.callgrind"
}

per_cycle() {
	echo $(((${2:-0} - ${1:-0}) / counted))
}

# The same in a database that serves its shards because it was told to: the shard
# of each key is computed.
count_guarded() {
	sql -c "SELECT dlock_serve('{[0,1024)}')"
	count_job "$@"
	sql -c 'SELECT dlock_serve(NULL)'
}

# The sessions that have used locks, of those that have ended.
lockers() {
	grep -ls dlock_lock_try "$work"/callgrind/* | sort || true
}

# routed_session N ARGUMENT...: prints the pid of its session in the router, and that of
# the session that the router had on the cluster, which ends a little later
routed_session() {
	local before new='' pid until=$((SECONDS + 60))

	before=$(lockers)
	pid=$(counted_session "$@")
	until [ -n "$new" ] && grep -q '^totals' "$new"; do
		[ "$SECONDS" -lt "$until" ] || die "the router had no session on the cluster"
		sleep 0.1
		new=$(comm -13 <(echo "$before") <(lockers) | head -n 1)
	done
	echo "$pid ${new##*/}"
}

# count_routed NAME CONTENDER ARGUMENT...: through a router on the same server
count_routed() {
	# shellcheck disable=SC2034	# for sql and command_of
	local command answer PGDATABASE=router

	note "instructions: $1"
	PGDATABASE=postgres sql -c 'CREATE DATABASE router'
	sql -c 'CREATE EXTENSION plproxy' -c 'CREATE EXTENSION dlock_router' \
		-c "INSERT INTO dlock_router.clusters VALUES ('bench', '{[0,1024)}', 'host=127.0.0.1 port=$PGPORT dbname=bench')"
	command_of "$2"
	routed_session $((counted + 100)) "${@:3}" >"$work/log/first.log"
	answer=$(routed_session 100 "${@:3}")
	read -ra few <<<"$answer"
	PGDATABASE=bench sql -c 'VACUUM dlock.locks'
	answer=$(routed_session $((counted + 100)) "${@:3}")
	read -ra many <<<"$answer"
	keep fact "instructions_$1_cluster" \
		"$(per_cycle "$(instructions_of "${few[1]}")" "$(instructions_of "${many[1]}")")"
}

# count_kind NAME CONTENDER ARGUMENT...
#
# dlock_acquire_all() counts its TTLs anew if it took more than a millisecond.
# Under callgrind it always does, elsewhere only if it waits, so that is left out.
count_kind() {
	local few many name function=dlock_acquire whole part again=0

	count_job "$@" --apart
	if [ "$2" = dlock_all ]; then
		function=dlock_acquire_all
		again=$(per_cycle "$(function_of "${few[0]}" dlock_lock_execute)" "$(function_of "${many[0]}" dlock_lock_execute)")
	fi
	for name in acquire release; do
		whole=$(per_cycle "$(instructions_of "${few[0]}")" "$(instructions_of "${many[0]}")")
		part=$(per_cycle "$(function_of "${few[0]}" $function)" "$(function_of "${many[0]}" $function)")
		keep fact "instructions_$1_$name" $((whole - again))
		keep fact "instructions_$1_${name}_function" $((part - again))
		[ -z "$profile" ] || cp "$work/callgrind/${many[0]}" "$profile/$1_$name.callgrind"
		few=("${few[@]:1}") many=("${many[@]:1}") function=dlock_release again=0
	done
}

start_grind() {
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
	wait_for_reaper
	reaper_rests 1h
}

bench_instructions() {
	local PGPORT job name arguments few many

	read -r PGPORT < <(free_ports 1)
	start_grind
	for job in "${instruction_jobs[@]}" "${kind_jobs[@]}"; do
		name=${job%%:*}
		read -ra arguments <<<"${job#*: }"
		takes "$name" || continue
		if [[ " ${kind_jobs[*]%%:*} " == *" $name "* ]]; then
			prepare_kind "$name"
			count_kind "$name" "${arguments[@]}"
		else
			if [ "$name" = routed ] && [ ! -e "$("$pg_config" --pkglibdir)/plproxy.so" ]; then
				note "instructions: $name needs PL/Proxy"
				continue
			fi
			case $name in
				guarded | routed) "count_$name" "$name" "${arguments[@]}" ;;
				*) count_job "$name" "${arguments[@]}" ;;
			esac
			keep fact "instructions_$name" \
				"$(per_cycle "$(instructions_of "${few[0]}")" "$(instructions_of "${many[0]}")")"
		fi
	done
	grind_server -m fast stop
}

# What the keys were used for before, and no dead rows of other jobs.
prepare_kind() {
	case $1 in
		reader_head)
			sql -c "SELECT FROM dlock_release('place:0', dlock_acquire('place:0', '1min'))"
			;;
		marked)
			sql -c "SELECT FROM generate_series(0, 999) k,
				dlock_release('lock:' || k, dlock_acquire('lock:' || k, '1min', shared => true))"
			;;
	esac
	sql -c 'VACUUM dlock.locks'
}
