# shellcheck shell=bash
# What scripts/bench measures, one function for each section, and how a figure
# gets from a load generator to the file that bench/report.pl reads.  There is
# one file for each section, <section>.tsv, with three kinds of lines:
#
#	result	group	label	clients	round	rate ... (the metrics below)
#	series	group	label	seconds	rate
#	fact	name	value
#
# Rounds are interleaved: each round measures every contender, so that a
# disturbance of the machine affects all.
#
# shellcheck disable=SC2154	# what scripts/bench and scripts/lib.sh set

metrics=(rate mean_us p50_us p99_us max_us acquire_us grants busy errors left least cpu)
section=about
round=1
failures=0

note() {
	printf '%s  %s\n' "$(date +%H:%M:%S)" "$*" >&2
}

# keep WORD...: adds a line to the section's file
keep() {
	local IFS=$'\t'

	printf '%s\n' "$*" >>"$out/$section.tsv"
}

# A run with --only replaces only what it measures.
begin_section() {
	section=$1
	rm -f "$out/$section.tsv"
	note "$section"
}

# takes CONTENDER: was it requested, or that of which it is a variant?
takes() {
	local base=${1%_pipe} product

	base=${base%_async}
	product=${base%_shared}
	product=${product%_semaphore}
	product=${product%_limit}
	product=${product%_counter}
	[[ -z $contenders || " $contenders " == *" $1 "* || " $contenders " == *" $base "* ||
		" $contenders " == *" ${product%_all} "* ]]
}

# needs SERVER: do the requested sections and contenders need it?
needs() {
	takes "$1" || return
	if wants cycles || wants try || wants wait; then
		return
	fi
	case $1 in
		redis) wants batch || wants expiry || wants kinds || wants rates || wants threads ;;
		redis_aof) wants batch || wants kinds || wants rates || wants threads ;;
		zookeeper) wants kinds ;;
		*) false ;;
	esac
}

# command_of CONTENDER: sets the array "command"
command_of() {
	local base=${1%_pipe} options=''

	case $base in
		redis_aof_threads) command=("${load%/*}/threads" --redis --target "127.0.0.1:$redis_aof_port") ;;
		redis_threads) command=("${load%/*}/threads" --redis --target "127.0.0.1:$redis_port") ;;
		redis_aof*) command=("$load" "redis${base#redis_aof}" --target "127.0.0.1:$redis_aof_port") ;;
		redis*) command=("$load" "$base" --target "127.0.0.1:$redis_port") ;;
		zookeeper*) command=("$load" "$base" --target "127.0.0.1:$zookeeper_port") ;;
		libdlock*)
			[[ $base != *_async ]] || options='-c synchronous_commit=off -c dlock.durable_grants=off'
			command=("${load%/*}/threads" --target
				"host=127.0.0.1 port=$PGPORT user=postgres dbname=$PGDATABASE options='$options'")
			[[ $base != *_handles* ]] || command+=(--handles)
			[[ $base != *_calls* ]] || command+=(--work calls)
			;;
		portable)
			command=("$load" dlock --target "host=127.0.0.1 port=$PGPORT user=postgres dbname=portable")
			;;
		etcd) command=("${load%/*}/etcd" etcd --target "127.0.0.1:$etcd_port") ;;
		*)
			[[ $base != *_async ]] || options='-c synchronous_commit=off -c dlock.durable_grants=off'
			command=("$load" "${base%_async}" --target
				"host=127.0.0.1 port=$PGPORT user=postgres dbname=$PGDATABASE options='$options'")
			;;
	esac
	[[ $1 != *_pipe ]] || command+=(--depth 16)
}

# measure GROUP LABEL CONTENDER CLIENTS ARGUMENT...
#
# An error, or a lock that was left behind, is shown and counted.
measure() {
	local group=$1 label=$2 n=$4 command answer metric pair row=()
	local -A value=()

	takes "$3" || return 0
	command_of "$3"
	if ! answer=$(as_user "${command[@]}" --clients "$n" --seed "$round" "${@:5}"); then
		note "$group: $label with $n clients went wrong"
		failures=$((failures + 1))
	fi
	for pair in $(tail -n 1 <<<"$answer"); do
		value[${pair%%=*}]=${pair#*=}
	done
	for metric in "${metrics[@]}"; do
		row+=("${value[$metric]:-0}")
	done
	keep result "$group" "$label" "$n" "$round" "${row[@]}"
	sed -n "s/^series\t/series\t$group\t$label\t/p" <<<"$answer" >>"$out/$section.tsv"
}

# The keys have rows before the clock starts, as in a system that has been
# running for a while.
fill() {
	local keys=$1

	sql -c "SELECT dlock_release('lock:' || k, dlock_acquire('lock:' || k, '1min')) FROM generate_series(0, $keys - 1) k
			WHERE (SELECT count(*) FROM dlock.locks WHERE key LIKE 'lock:%') < $keys" \
		-c "SELECT plain_release('lock:' || k, plain_acquire('lock:' || k, '1min')) FROM generate_series(0, $keys - 1) k
			WHERE (SELECT count(*) FROM plain_locks) < $keys" \
		-c 'VACUUM ANALYZE dlock.locks' -c 'VACUUM ANALYZE plain_locks' >"$work/log/fill.log"
}

# Free rows stay for sixty intervals, so the reaper has nothing to do while
# others are measured; its cost is measured separately.
reaper_rests() {
	sql -c "ALTER SYSTEM SET dlock.reap_interval = '$1'" -c 'SELECT pg_reload_conf()' >"$work/log/reload.log"
}

# A key that nobody shares costs nothing extra, but after a start that is not
# known until the reaper has read the table once: until then each acquire looks
# for places in the index.
wait_for_reaper() {
	until [ "$(sql -c BEGIN -c "SELECT FROM dlock_release('lock:0', dlock_acquire('lock:0', '1min'))" \
			-c "SELECT pg_stat_get_xact_numscans('dlock.locks_pkey'::regclass)" -c COMMIT)" = 0 ]; do
		sleep 0.2
	done
}

# A Java server is slow until it has compiled itself.
warm_up() {
	local contender n

	note "warming up"
	for n in 1 64; do
		for contender in zookeeper etcd redis redis_aof; do
			! needs "$contender" ||
				section=warm_up measure warm_up "$contender" "$contender" "$n" --seconds $((seconds * 2))
		done
	done
	rm -f "$out/warm_up.tsv"
}

bench_cycles() {
	local n contender

	for ((round = 1; round <= repeats; round++)); do
		for n in $clients; do
			note "cycles: round $round of $repeats, clients: $n"
			fill 100000
			for contender in dlock dlock_pipe plpgsql commit hot_update select \
				redis_aof redis_aof_pipe etcd zookeeper; do
				measure durable "$contender" "$contender" "$n" --seconds "$seconds"
			done
			for contender in dlock_async plpgsql_async advisory commit_async select redis; do
				measure async "${contender%_async}" "$contender" "$n" --seconds "$seconds"
			done
		done
	done
}

bench_try() {
	local n contender

	for ((round = 1; round <= repeats; round++)); do
		for n in $clients; do
			note "try: round $round of $repeats, clients: $n"
			# one call each, so they are compared with one call that does
			# nothing
			measure try select_once select_once "$n" --seconds "$seconds"
			for contender in dlock plpgsql advisory redis etcd zookeeper; do
				measure try "$contender" "$contender" "$n" --work try --seconds "$seconds"
			done
		done
	done
}

bench_wait() {
	local n contender ms

	for ((round = 1; round <= repeats; round++)); do
		for n in $clients; do
			[ "$n" -gt 1 ] || continue
			note "wait: round $round of $repeats, clients: $n"
			for contender in dlock dlock_async advisory etcd zookeeper; do
				measure wait "$contender" "$contender" "$n" --work wait --seconds "$seconds"
			done
			[ "$n" = 32 ] || continue
			for contender in dlock plpgsql redis_aof redis; do
				for ms in 0 10 100; do
					measure wait "${contender}_retry_$ms" "$contender" "$n" --work retry --seconds "$seconds" \
						--delay "$(printf '0.%03d' $ms)"
				done
			done
		done
		for contender in dlock dlock_async advisory etcd zookeeper; do
			measure handover "$contender" "$contender" 2 --work handover --seconds "$seconds"
		done
	done
}

bench_batch() {
	local contender

	for ((round = 1; round <= repeats; round++)); do
		note "batch: round $round of $repeats"
		fill 100000
		for contender in dlock plpgsql redis_aof redis; do
			measure batch "${contender}_one" $contender 1 --seconds "$seconds"
			measure refresh "${contender}_one" $contender 1 --work refresh --keys 10000 --seconds "$seconds"
		done
		for contender in dlock plpgsql; do
			measure batch "${contender}_batch" $contender 1 --depth 1000 --batch --seconds "$seconds"
			measure refresh "${contender}_batch" $contender 1 --work refresh --keys 10000 --depth 10000 --batch \
				--seconds "$seconds"
		done
		for contender in dlock redis_aof redis; do
			measure batch "${contender}_pipe" $contender 1 --depth 1000 --seconds "$seconds"
			measure refresh "${contender}_pipe" $contender 1 --work refresh --keys 10000 --depth 10000 \
				--seconds "$seconds"
		done
	done
}

# Locks that several hold at once, all on one key beside others that hold it
# meanwhile; and several keys or none, of a few that all clients want.
bench_kinds() {
	local n kind others contender subsets_seconds=$((seconds * 3))

	keep fact subsets_seconds "$subsets_seconds"
	for ((round = 1; round <= repeats; round++)); do
		for n in $clients; do
			note "kinds: round $round of $repeats, clients: $n"
			fill 100000
			for kind in shared semaphore; do
				others=$([ $kind = shared ] && echo 1000 || echo 100)
				measure "${kind}_durable" exclusive dlock "$n" --seconds "$seconds"
				for contender in dlock redis_aof zookeeper; do
					measure "${kind}_durable" $contender "${contender}_$kind" "$n" \
						--keys 1 --beside "$others" --seconds "$seconds"
				done
				measure "${kind}_async" exclusive dlock_async "$n" --seconds "$seconds"
				measure "${kind}_async" dlock "dlock_${kind}_async" "$n" \
					--keys 1 --beside "$others" --seconds "$seconds"
				measure "${kind}_async" redis "redis_$kind" "$n" \
					--keys 1 --beside "$others" --seconds "$seconds"
			done
		done
		measure ten dlock_batch dlock 1 --depth 10 --batch --seconds "$seconds"
		measure ten dlock_all dlock_all 1 --depth 10 --batch --seconds "$seconds"
		measure ten_async dlock_batch dlock_async 1 --depth 10 --batch --seconds "$seconds"
		measure ten_async dlock_all dlock_all_async 1 --depth 10 --batch --seconds "$seconds"
		for contender in dlock dlock_async; do
			measure subsets $contender "${contender/dlock/dlock_all}" 16 --work subsets --keys 20 --depth 5 \
				--warmup 0 --seconds "$subsets_seconds"
		done
	done
}

# One call for each permit, of a hundred in a minute of each key.  None is refused, although the
# load generator chooses the same keys in each run, and dlock has two runs on one server.
# Afterwards they are removed, because other sections count what is left.
bench_rates() {
	local n contender keys=100000

	for ((round = 1; round <= repeats; round++)); do
		for n in $clients; do
			note "rates: round $round of $repeats, clients: $n"
			for contender in dlock_limit redis_aof_limit redis_aof_counter; do
				measure rates_durable "${contender/_limit*/}" $contender "$n" --slots 100 --keys $keys --keep --seconds "$seconds"
			done
			for contender in dlock_limit_async redis_limit redis_counter; do
				measure rates_async "${contender/_limit*/}" $contender "$n" \
					--slots 100 --keys $keys --keep --seconds "$seconds"
			done
		done
	done
	sql -c 'SET dlock.allow_direct_writes = on' -c "DELETE FROM dlock.locks WHERE key LIKE 'place:%'" -c 'VACUUM dlock.locks'
	for n in "$redis_port" "$redis_aof_port"; do
		redis-cli -p "$n" FLUSHALL >"$work/log/flushall.log" 2>&1 || true
	done
}

# A database with a million live locks compared with an empty one, on one
# server.
bench_million() {
	local database n

	sql -c 'CREATE DATABASE million'
	PGDATABASE=million sql -f "$work/tree/bench/setup.sql"
	note "million: taking $million locks"
	PGDATABASE=million sql -c "SELECT count(dlock_acquire('live:' || k, '1d', 'holder')) FROM generate_series(1, $million) k" \
		-c 'VACUUM ANALYZE dlock.locks' >"$work/log/million.log"
	keep fact million_locks "$million"
	keep fact lock_heap_bytes "$(PGDATABASE=million sql -c "SELECT pg_relation_size('dlock.locks') / $million.0")"
	keep fact lock_index_bytes "$(PGDATABASE=million sql -c "SELECT pg_indexes_size('dlock.locks') / $million.0")"
	for database in bench million; do
		PGDATABASE=$database fill 10000
	done

	for ((round = 1; round <= repeats; round++)); do
		note "million: round $round of $repeats"
		for n in 1 8; do
			for database in bench million; do
				PGDATABASE=$database measure million_cycle $database dlock_async $n --keys 10000 --keep \
					--seconds "$seconds"
				PGDATABASE=$database measure million_refresh $database dlock_async $n --work refresh \
					--keys 10000 --keep --seconds "$seconds"
			done
		done
	done
	reaper_cost
	PGDATABASE=postgres sql -c 'DROP DATABASE million WITH (FORCE)'
}

# Processor time of the reapers while nothing expires but cycles continue.
reaper_cost() {
	reaper_rests 1s
	keep fact reaper_cpu "$(PGDATABASE=million reaper_share)"
	reaper_rests 1min
}

# The share of a core.  A running reaper is counted itself, one that has exited is counted
# with the children of the postmaster; no other child of it ends meanwhile.
reaper_share() {
	local window=60 before after command

	[ "$quick" = no ] || window=5
	sql -c 'ALTER SYSTEM SET autovacuum = off' -c 'SELECT pg_reload_conf()' >"$work/log/reload.log"
	command_of dlock_async
	as_user "${command[@]}" --clients 1 --keep --seconds $((window + 5)) >"$work/log/reaper.log" 2>&1 &
	sleep 3
	before=$(reaper_ticks)
	sleep $window
	after=$(reaper_ticks)
	wait $!
	awk -v t="$((after - before))" -v s=$window -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "%.4f", t / hz / s }'
	sql -c 'ALTER SYSTEM RESET autovacuum' -c 'SELECT pg_reload_conf()' >"$work/log/reload.log"
}

# fields 14-17 of stat: own and waited-for children's time, user and system
reaper_ticks() {
	local postmaster pid

	postmaster=$(head -n 1 "$work/data/postmaster.pid")
	{
		awk '{ print $16 + $17 }' "/proc/$postmaster/stat"
		for pid in $(sql -c "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'dlock %'"); do
			# it may have exited by now
			{ sed 's/([^)]*)/x/' "/proc/$pid/stat" 2>/dev/null || true; } | awk '{ print $14 + $15 }'
		done
	} | awk '{ t += $1 } END { print t }'
}

# Very many leases that end at the same instant, while cycles continue.
bench_expiry() {
	local before=$((expiry_seconds / 6)) at

	keep fact expiry_locks "$million"
	keep fact expiry_at $before
	if takes dlock_async; then
		reaper_rests 1s
		fill 10000
		at=$(take_until)
		expire dlock dlock_async "$at" "$expiry_seconds" dlock_gone
		reaper_rests 1min
	fi
	if takes redis; then
		at=$(awk -v now="$(date +%s)" -v before=$before 'BEGIN { print now + 15 + before }')
		fill_redis "$at"
		expire redis redis "$at" $((before * 2)) redis_gone
	fi
}

# Take them, all until the instant that is printed.  The first tenth shows how
# long that takes; the same owner takes those again.
take_until() {
	local begun at taking="SELECT count(dlock_acquire('mass:' || k, %s, 'holder')) FROM generate_series(1, %d) k"

	note "expiry: taking $million locks"
	begun=$(date +%s.%N)
	# shellcheck disable=SC2059	# a format
	sql -c "$(printf "$taking" "'1d'" $((million / 10)))" >"$work/log/mass.log"
	at=$(awk -v a="$begun" -v b="$(date +%s.%N)" -v before=$((expiry_seconds / 6)) \
		'BEGIN { printf "%.0f", b + (b - a) * 20 + before + 5 }')
	# shellcheck disable=SC2059	# a format
	sql -c "$(printf "$taking" "to_timestamp($at) - clock_timestamp()" "$million")" -c 'VACUUM dlock.locks' >"$work/log/mass.log"
	echo "$at"
}

fill_redis() {
	local used

	used=$(redis_info used_memory)
	# shellcheck disable=SC2016	# for sh
	as_user sh -c 'perl -e "print qq(SET mass:\$_ holder PXAT $1\r\n) foreach 1 .. $2" | redis-cli -p "$3" --pipe' \
		sh "${1}000" "$million" "$redis_port" >"$work/log/mass.log" 2>&1
	keep fact redis_lock_bytes $((($(redis_info used_memory) - used) / million))
}

redis_info() {
	as_user redis-cli -p "$redis_port" INFO | sed -n "s/^$1:\([0-9]*\).*/\1/p"
}

# From statistics, because counting would be work.
dlock_gone() {
	sql -c "SELECT pg_stat_get_tuples_deleted('dlock.locks'::regclass)"
}

redis_gone() {
	redis_info expired_keys
}

# expire LABEL CONTENDER INSTANT SECONDS COUNTER: cycles from some time before
# until some time after, and how many locks are left, one line per second
expire() {
	local wait begun=$EPOCHREALTIME watcher

	wait=$(awk -v at="$3" -v before=$((expiry_seconds / 6)) -v now="$begun" 'BEGIN { s = at - before - now; print (s > 0 ? s : 0) }')
	note "expiry: $1, in $wait s"
	sleep "$wait"
	watch_left "$1" "$5" "$4" &
	watcher=$!
	measure expiry "$1" "$2" 8 --keys 10000 --every 1 --warmup 0 --seconds "$4" --keep
	wait $watcher
}

watch_left() {
	local begun=$EPOCHREALTIME base left seconds=0

	base=$("$2")
	while [ "${seconds%.*}" -lt "$3" ]; do
		sleep 1
		left=$((million - $("$2") + base))
		seconds=$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
		keep series expiry_left "$1" "$seconds" $left
	done
}

# Throughput over time while another session holds an old snapshot.
bench_snapshot() {
	local contender keys n kind

	fill 1000
	for keys in 1 1000; do
		# one client for each key: this is about dead row versions, not the
		# queue
		n=$((keys == 1 ? 1 : 8))
		for contender in dlock plpgsql; do
			note "snapshot: $contender, keys: $keys"
			hold_snapshot
			measure "snapshot_$keys" $contender ${contender}_async $n --keys $keys --every 1 \
				--seconds "$snapshot_seconds"
			drop_snapshot
		done
		note "snapshot: none, keys: $keys"
		measure "snapshot_$keys" dlock_free dlock_async $n --keys $keys --every 1 --seconds $((snapshot_seconds / 4))
	done

	# places are added and deleted, and the deleted ones stay until then
	for kind in shared semaphore; do
		note "snapshot: $kind"
		hold_snapshot
		measure "snapshot_$kind" dlock "dlock_${kind}_async" 1 --keys 1 --beside 10 --every 1 \
			--seconds "$snapshot_seconds"
		drop_snapshot
		measure "snapshot_$kind" dlock_free "dlock_${kind}_async" 1 --keys 1 --beside 10 --every 1 \
			--seconds $((snapshot_seconds / 4))
	done
}

# The portable edition, in a database of its own, beside what else there is where no C
# can be installed.  Its grants are durable in any case.
bench_portable() {
	local n contender

	sql -c 'CREATE DATABASE portable' >"$work/log/portable.log"
	PGDATABASE=portable sql -1 -f "$work/tree/portable/dlock_portable--1.0.sql" >"$work/log/portable.log"
	fill 10000
	# a transaction takes some thousand new keys at most
	PGDATABASE=portable sql -c "DO \$\$ BEGIN FOR k IN 0 .. 9999 LOOP
			PERFORM dlock_release('lock:' || k, dlock_acquire('lock:' || k, '1min')); COMMIT; END LOOP; END \$\$" \
		-c 'VACUUM ANALYZE dlock.locks' >"$work/log/portable.log"
	for ((round = 1; round <= repeats; round++)); do
		note "portable: round $round of $repeats"
		for n in 1 8; do
			for contender in dlock portable plpgsql advisory; do
				measure portable $contender $contender $n --keys 10000 --seconds "$seconds"
				measure portable_try $contender $contender $n --work try --seconds "$seconds"
			done
		done
		for contender in dlock portable advisory; do
			measure portable_wait $contender $contender 8 --work wait --seconds "$seconds"
			measure portable_handover $contender $contender 2 --work handover --seconds "$seconds"
		done
	done
	round=1
	keep fact portable_snapshot_seconds $((snapshot_seconds / 4))
	for contender in dlock portable plpgsql; do
		note "portable: old snapshot, $contender"
		hold_snapshot
		measure portable_snapshot $contender $contender 1 --keys 1 --every 1 --seconds $((snapshot_seconds / 4))
		drop_snapshot
	done
}

hold_snapshot() {
	PGAPPNAME=holder sql -c 'BEGIN ISOLATION LEVEL REPEATABLE READ' -c 'SELECT txid_current()' \
		-c 'SELECT pg_sleep(3600)' >"$work/log/holder.log" 2>&1 &
	holder=$!
	until [ "$(sql -c "SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'holder' AND wait_event = 'PgSleep'")" = 1 ]; do
		kill -0 "$holder" 2>/dev/null || show_and_die "$work/log/holder.log" "the old snapshot was not held"
		sleep 0.1
	done
}

drop_snapshot() {
	sql -c "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'holder'" \
		>"$work/log/drop.log"
	wait "$holder" || true
	sql -c 'VACUUM dlock.locks' -c 'VACUUM plain_locks'
}

# What was measured, where and when.
about() {
	section=about
	rm -f "$out/about.tsv"
	keep fact date "$(date -u +%Y-%m-%d)"
	keep fact commit "$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
	keep fact repeats "$repeats"
	keep fact seconds "$seconds"
	keep fact snapshot_seconds "$snapshot_seconds"
	keep fact cores "$(nproc)"
	keep fact cpu "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
	keep fact memory_gb "$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)"
	keep fact kernel "$(uname -r)"
	keep fact filesystem "$(findmnt -n -o FSTYPE -T "$work" 2>/dev/null || echo unknown)"
	keep fact load "$(cut -d ' ' -f 1 /proc/loadavg)"
	keep fact postgres "$("$bindir/postgres" --version | sed 's/^[^0-9]*//; s/ .*//')"
	keep fact redis "$(version_of redis-server)"
	keep fact etcd "$(version_of etcd-server)"
	keep fact zookeeper "$(version_of zookeeper)"
}

version_of() {
	# shellcheck disable=SC2016	# dpkg's variable, not the shell's
	dpkg-query -W -f '${Version}' "$1" | sed 's/^[0-9]*://; s/-.*//'
}
