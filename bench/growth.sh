# shellcheck shell=bash
# Section "growth" of scripts/bench: what costs more with more locks, or with more
# waiters.  Everything is processor time of the server, which other programs disturb less
# than rates, or the time until something happens.
#
# shellcheck disable=SC2154	# what scripts/bench and scripts/lib.sh set

bench_growth() {
	local n PGDATABASE=growth

	PGDATABASE=postgres sql -c 'ALTER SYSTEM SET max_connections = 1200' \
		-c 'ALTER SYSTEM SET dlock.max_tickets = 20000'
	restart_postgres
	for n in $growth_rows; do
		PGDATABASE=postgres sql -c 'CREATE DATABASE growth'
		sql -c 'CREATE EXTENSION dlock' -f "$work/tree/bench/growth.sql"
		growth_of_rows "$n"
		PGDATABASE=postgres sql -c 'DROP DATABASE growth WITH (FORCE)'
	done
	PGDATABASE=postgres sql -c 'CREATE DATABASE growth'
	sql -c 'CREATE EXTENSION dlock' -f "$work/tree/bench/growth.sql"
	for n in $growth_waiters; do
		growth_of_waiters "$n"
	done
	PGDATABASE=postgres sql -c 'DROP DATABASE growth WITH (FORCE)' -c 'ALTER SYSTEM RESET max_connections' \
		-c 'ALTER SYSTEM RESET dlock.max_tickets'
	restart_postgres
}

# call NAME ARGUMENT...: the results of a procedure, separated by blanks
call() {
	PGOPTIONS='-c synchronous_commit=off -c dlock.durable_grants=off -c dlock.default_ttl=1h' \
		sql -F ' ' -c "CALL $1($2)"
}

# grown GROUP SIZE FIGURE: the label of a result is the number of locks or waiters
grown() {
	keep result "$1" "$2" 1 "$round" "$3" 0 0 0 0 0 0 0 0 0 0 0
}

growth_of_rows() {
	local begun try cycle round

	note "growth: taking $1 locks"
	PGOPTIONS='-c synchronous_commit=off -c dlock.durable_grants=off' sql \
		-c "SELECT count(dlock_acquire('live:' || k, '1d', 'holder')) FROM generate_series(1, $1) k" \
		-c 'VACUUM ANALYZE dlock.locks' >"$work/log/growth.log"
	keep fact growth_rows "$1"
	reaper_rests 1s
	wait_for_reaper
	sql -c "SELECT count(dlock_acquire('growth:busy', '1h', 'holder'))" >"$work/log/growth.log"
	for ((round = 1; round <= repeats; round++)); do
		note "growth: $1 locks, round $round of $repeats"
		read -r try cycle < <(call growth_calls "$growth_calls, NULL, NULL")
		grown growth_try "$1" "$try"
		grown growth_cycle "$1" "$cycle"
		grown growth_expiry "$1" "$(call growth_expiry NULL)"
		grown growth_page "$1" "$(milliseconds "SELECT count(*) FROM dlock_list('*', NULL, 1000)")"
	done
	keep fact "growth_reaper_$1" "$(reaper_share)"
	note "growth: $1 locks, a restart"
	restart_postgres
	begun=$EPOCHREALTIME
	wait_for_reaper
	keep fact "growth_first_pass_$1" "$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')"
	reaper_rests 1min
}

# milliseconds QUERY
milliseconds() {
	sql -c '\timing on' -c "$1" | sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p'
}

growth_of_waiters() {
	local release grant round

	for ((round = 1; round <= repeats; round++)); do
		note "growth: $1 waiters, round $round of $repeats"
		read -r release grant < <(call growth_handover "$1, 100, NULL, NULL")
		grown growth_release "$1" "$release"
		grown growth_grant "$1" "$grant"
	done
	[ "$1" -gt 1000 ] || keep fact "growth_idle_$1" "$(idle_share "$1")"
}

# The share of a core that sessions take which do nothing but wait.
idle_share() {
	local before after window=20 load_pid version

	version=$(sql -c "SELECT dlock_acquire('growth:idle', '1d')")
	echo "SELECT dlock_acquire('growth:idle', wait => '1h')" >"$work/log/idle.sql"
	as_user "$bindir/pgbench" -n -c "$1" -j 2 -t 1 -f "$work/log/idle.sql" "$PGDATABASE" >"$work/log/idle.log" 2>&1 &
	load_pid=$!
	until [ "$(sql -c 'SELECT waiting FROM dlock_stats')" = "$1" ]; do
		kill -0 $load_pid 2>/dev/null || show_and_die "$work/log/idle.log" "the sessions did not wait"
		sleep 0.2
	done
	before=$(waiting_ns)
	sleep $window
	after=$(waiting_ns)
	sql -c "SELECT count(pg_terminate_backend(pid)) FROM dlock_waiters" -c "SELECT dlock_release('growth:idle', $version)" \
		>"$work/log/growth.log"
	wait $load_pid || true
	awk -v t=$((after - before)) -v s=$window 'BEGIN { printf "%.4f", t / s / 1e9 }'
}

# Processor time of all sessions that wait.
waiting_ns() {
	local pid

	for pid in $(sql -c 'SELECT pid FROM dlock_waiters WHERE pid IS NOT NULL'); do
		cat "/proc/$pid/schedstat" 2>/dev/null || true
	done | awk '{ t += $1 } END { printf "%.0f", t }'
}
