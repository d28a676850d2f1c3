# shellcheck shell=bash
# Section "memory" of scripts/bench: what a waiting session takes, and what dlock
# reserves when the server starts.  It takes seconds, and other programs do not
# disturb it.  The memory of tickets is part of section "threads".
#
# shellcheck disable=SC2154	# what scripts/bench and scripts/lib.sh set

bench_memory() {
	waiter_memory
	shared_memory
}

# The private memory of 64 waiting sessions, mean in kB.
waiter_memory() {
	local contender pids

	for contender in dlock advisory; do
		takes $contender || continue
		command_of $contender
		as_user "${command[@]}" --work wait --clients 64 --hold 1 --seconds 3 >"$work/log/waiters.log" 2>&1 &
		pids=''
		until [ "$(wc -w <<<"$pids")" -ge 60 ]; do
			kill -0 $! 2>/dev/null || show_and_die "$work/log/waiters.log" "the waiters did not wait"
			sleep 0.1
			pids=$(sql -c "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND wait_event IS NOT NULL
				AND query ~ '_acquire|advisory_lock' AND pid <> pg_backend_pid()")
		done
		# shellcheck disable=SC2086	# a list
		keep fact "waiter_kb_$contender" "$(private_kb $pids)"
		wait $!
	done
}

private_kb() {
	local pid

	for pid in "$@"; do
		cat "/proc/$pid/smaps_rollup" 2>/dev/null || true
	done | awk '/^Rss/ { n++ } /^Private_/ { kb += $2 } END { if (n) printf "%.0f", kb / n }'
}

# What is reserved, not what is used: the system provides a page when it is first
# written to.  Tickets have a row of their own, because most of theirs is never used.
shared_memory() {
	local sum="SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name"

	keep fact shared_bytes "$(sql -c "$sum ~ '^dlock' AND name <> 'dlock tickets'")"
	keep fact shared_tickets_bytes "$(sql -c "$sum = 'dlock tickets'")"
	keep fact shared_waiters_bytes "$(sql -c "$sum = 'dlock waiters'")"
	keep fact max_tickets "$(sql -c 'SHOW dlock.max_tickets')"
	keep fact max_connections "$(sql -c 'SHOW max_connections')"
	# PostgreSQL's MaxBackends
	keep fact max_backends "$(sql -c "SELECT 1 + sum(setting::int) FROM pg_settings WHERE name IN
		('max_connections', 'max_worker_processes', 'max_wal_senders',
		CASE WHEN current_setting('server_version_num')::int >= 180000
			THEN 'autovacuum_worker_slots' ELSE 'autovacuum_max_workers' END)")"
}
