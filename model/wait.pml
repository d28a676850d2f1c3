/*
 * wait.pml
 *	  The queue of dlock, for Spin: is a wakeup ever lost?
 *
 * One key.  A transaction has changed it and ends, by commit or by rollback.
 * Two waiters queue for it.  Each of them gets it and then ends its own
 * transaction, or gives up first.  A newcomer tries once without waiting.  No
 * waiter looks again by itself: the expiry and the deadlines of await.c are left
 * out, so a waiter that sleeps is woken or sleeps forever, which Spin reports as
 * an invalid end state.
 *
 * With SHARED, the waiters ask for shared locks, and their transactions, once
 * granted, stay open forever.
 *
 * The guard to remove (at most one)
 *
 *	NO_RECHECK			sleep after entering the queue, without looking again
 *	LATE_REARM			"woken" is cleared after the look, not before
 *	WAKE_BEFORE_COMMIT	the queue is looked at before the change is visible
 *	NO_WAKE_AT_ABORT	only a commit wakes
 *	NO_WOKEN_FLAG		only the latch says that a waiter was woken
 *	NO_PASS_ON			a waiter that leaves without the lock wakes nobody
 *	KEEP_TURN			a shared waiter that gets the lock does not wake the next
 *	OVERTAKE			a newcomer does not look into the queue
 */
#define WAITERS	2
#define NONE	WAITERS

bool unlocked;					/* the row, as a dirty snapshot shows it */
byte sharers;					/* places that are taken */
byte queue[WAITERS];			/* in the order of service */
byte nwaiters;
bool woken[WAITERS];
bool latch[WAITERS];

bool overtaken;
bool two_inside;				/* an exclusive grant beside another */
byte inside;					/* exclusive grants */

/* dlock_wait_wake(), under the lock of the bucket */
inline wake_first() {
	atomic {
		if
		:: queue[0] != NONE ->
			woken[queue[0]] = true;
			latch[queue[0]] = true
		:: else
		fi
	}
}

/* xact.c, at_end(); dlock_wait_any() saves the look */
inline wake_at_end() {
	if
	:: nwaiters > 0 -> wake_first()
	:: else
	fi
}

inline commit() {
#ifdef WAKE_BEFORE_COMMIT
	wake_at_end();
	unlocked = true
#else
	unlocked = true;
	wake_at_end()
#endif
}

inline rollback() {
	unlocked = true;
#ifndef NO_WAKE_AT_ABORT
	wake_at_end()
#endif
}

inline end_transaction() {
	if
	:: commit()
	:: rollback()
	fi
}

/* Lock the row without waiting; what happens inside does not matter. */
inline try(may, got) {
	atomic {
		if
		:: may && unlocked && sharers == 0 ->
			unlocked = false;
			got = true;
			inside++;
			two_inside = inside > 1;
			assert(!two_inside)
		:: else
		fi
	}
}

/* Take a place; nobody else's keeps us from it. */
inline try_shared(may, got) {
	atomic {
		if
		:: may && unlocked ->
			sharers++;
			got = true;
			two_inside = inside > 0;
			assert(!two_inside)
		:: else
		fi
	}
}

#ifdef SHARED
#define TRY(may, got)	try_shared(may, got)
#else
#define TRY(may, got)	try(may, got)
#endif

#if defined(SHARED) && !defined(KEEP_TURN)
#define passes_on(granted)	true
#else
#define passes_on(granted)	(!granted)
#endif

inline enter(w) {
	atomic {
		woken[w] = false;
		if
		:: queue[0] == NONE -> queue[0] = w
		:: else -> queue[1] = w
		fi;
		nwaiters++
	}
}

inline leave(w, granted) {
	atomic {
		if
		:: queue[0] == w ->
			queue[0] = queue[1];
			queue[1] = NONE;
#ifndef NO_PASS_ON
			if
			:: passes_on(granted) -> wake_first()
			:: else
			fi
#endif
		:: else -> queue[1] = NONE
		fi;
		nwaiters--
	}
}

inline rearm(w, behind) {
	atomic {
		woken[w] = false;
		behind = queue[0] != w
	}
}

/* CHECK_FOR_INTERRUPTS() may reset the same latch */
inline check_for_interrupts(w) {
	if
	:: latch[w] -> latch[w] = false
	:: true
	fi
}

proctype Holder() {
	end_transaction()
}

proctype Waiter(byte w) {
	bool behind, got, patient;

	/* only some give up; the others must be woken */
	if
	:: patient = true
	:: patient = false
	fi;

	/* the first try, which has no place in the queue */
	behind = nwaiters > 0;
	TRY(!behind, got);
	if
	:: got -> goto inside_it
	:: else
	fi;

	enter(w);
#ifdef NO_RECHECK
	goto asleep;
#endif

again:
#ifdef LATE_REARM
	behind = queue[0] != w;
#else
	rearm(w, behind);
#endif
	check_for_interrupts(w);
	TRY(!behind, got);
	if
	:: got -> leave(w, true); goto inside_it
	:: else
	fi;
#ifdef LATE_REARM
	rearm(w, behind);
#endif
	check_for_interrupts(w);

asleep:
	if
#ifndef NO_WOKEN_FLAG
	:: woken[w] -> goto again
	:: !woken[w] ->
#else
	:: true ->
#endif
		if
		:: latch[w] -> latch[w] = false; goto again
		:: !patient -> leave(w, false); goto gone	/* timeout, cancel */
		fi
	fi;

inside_it:
#ifndef SHARED
	inside--;
	end_transaction();
#endif
gone:
	skip
}

proctype Newcomer() {
	bool behind, got, waited_before;

	atomic {
		waited_before = nwaiters > 0;
#ifndef OVERTAKE
		behind = waited_before
#endif
	}
	try(!behind, got);
	if
	:: got ->
		overtaken = waited_before;
		assert(!overtaken);
		inside--;
		end_transaction()
	:: else
	fi
}

init {
	atomic {
		queue[0] = NONE;
		queue[1] = NONE;
		run Holder();
		run Newcomer();
		run Waiter(0);
		run Waiter(1)
	}
}
