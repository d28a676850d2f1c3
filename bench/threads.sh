# shellcheck shell=bash
# Section "threads" of scripts/bench: many threads of one process, and requests that
# wait by ticket.  bench/sections.sh has what all sections use.
#
# shellcheck disable=SC2154	# what scripts/bench and scripts/lib.sh set

# Threads of one process: through one handle of libdlock, and through a handle each,
# beside clients that have a connection each.  A thousand are too many for that.  Then
# requests that wait by ticket.
bench_threads() {
	local n

	ticket_memory
	for ((round = 1; round <= repeats; round++)); do
		for n in 1 64 1000; do
			note "threads: round $round of $repeats, threads: $n"
			fill 100000
			measure threads_durable dlock libdlock "$n" --seconds "$seconds"
			measure threads_durable calls libdlock_calls "$n" --seconds "$seconds"
			if [ "$n" -le 64 ]; then
				measure threads_durable handles libdlock_handles "$n" --seconds "$seconds"
				measure threads_durable connections dlock "$n" --seconds "$seconds"
			fi
			measure threads_durable redis_aof redis_aof "$n" --seconds "$seconds"
			measure threads_durable redis_aof_threads redis_aof_threads "$n" --seconds "$seconds"
			measure threads_async dlock libdlock_async "$n" --seconds "$seconds"
			measure threads_async calls libdlock_calls_async "$n" --seconds "$seconds"
			if [ "$n" -le 64 ]; then
				measure threads_async handles libdlock_handles_async "$n" --seconds "$seconds"
				measure threads_async connections dlock_async "$n" --seconds "$seconds"
			fi
			measure threads_async redis redis "$n" --seconds "$seconds"
			measure threads_async redis_threads redis_threads "$n" --seconds "$seconds"
		done
		note "threads: round $round of $repeats, tickets"
		measure tickets keys libdlock 10000 --work tickets
		measure tickets queue libdlock 1000 --work queue
		measure tickets session dlock 2 --work handover --seconds "$seconds"
	done
	threads_slow_disk
}

# The same on a disk whose flush takes 1 ms longer.
threads_slow_disk() {
	local n redis_aof_port

	set_disk 1000
	restart_postgres
	read -r redis_aof_port < <(free_ports 1)
	! takes redis_aof || start_redis_aof redis_slow "$redis_aof_port"
	for ((round = 1; round <= repeats; round++)); do
		for n in 1 64; do
			note "threads, slow disk: round $round of $repeats, threads: $n"
			fill 100000
			measure threads_slow dlock libdlock "$n" --seconds "$seconds"
			measure threads_slow calls libdlock_calls "$n" --seconds "$seconds"
			measure threads_slow handles libdlock_handles "$n" --seconds "$seconds"
			measure threads_slow connections dlock "$n" --seconds "$seconds"
			measure threads_slow redis_aof redis_aof "$n" --seconds "$seconds"
			measure threads_slow redis_aof_threads redis_aof_threads "$n" --seconds "$seconds"
		done
	done
	set_disk 0
	restart_postgres
}

# Memory of all server processes together, in kB; what they share counts once.
server_kb() {
	local postmaster pid

	postmaster=$(head -n 1 "$work/data/postmaster.pid")
	for pid in "$postmaster" $(ps -o pid= --ppid "$postmaster"); do
		cat "/proc/$pid/smaps_rollup" 2>/dev/null || true
	done | awk '/^Pss:/ { kb += $2 } END { print kb }'
}

# What 10,000 tickets take while they wait, the worker that will grant them included.
ticket_memory() {
	local before during

	note "threads: memory of tickets"
	sql -c "SELECT count(dlock_acquire('waits:' || k, '10min', owner => 'holder')) FROM generate_series(1, 10000) k" \
		>"$work/log/tickets.log"
	before=$(server_kb)
	sql -c "SELECT count(dlock_enqueue('waits:' || k, '1min', 'waiter ' || k)) FROM generate_series(1, 10000) k" \
		>>"$work/log/tickets.log"
	during=$(server_kb)
	keep fact tickets_waiting "$(sql -c "SELECT count(*) FROM dlock_waiters WHERE ticket IS NOT NULL")"
	keep fact tickets_kb $((during - before))
	sql -c 'SELECT count(dlock_dequeue(ticket)) FROM dlock_waiters WHERE ticket IS NOT NULL' \
		-c "SELECT count(dlock_release('waits:' || k, owner => 'holder')) FROM generate_series(1, 10000) k" \
		>>"$work/log/tickets.log"
}
