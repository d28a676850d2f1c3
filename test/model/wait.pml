/*
 * wait.pml
 *	  The queue of dlock, for Spin: is a wakeup ever lost?
 *
 * One key.  A transaction has changed it and ends, by commit or by rollback.
 * Two waiters queue for it.  Each of them gets it and then ends its own
 * transaction, or gives up first.  A newcomer tries once without waiting.  No
 * waiter looks again by itself: the expiry and the deadlines of acquire.c are left
 * out, so a waiter that sleeps is woken or sleeps forever, which Spin reports as
 * an invalid end state.
 *
 * With SHARED, the waiters ask for shared locks, and their transactions, once
 * granted, stay open forever.
 *
 * With TICKET, the second waiter is a ticket.  A requester enqueues it in a
 * transaction, which may roll back, and may withdraw it later.  A granter looks at
 * it when it is woken.  The granter's transaction may roll back, and the granter may
 * end at any time, after which the launcher starts another one.
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
 *	PUBLISH_EARLY		a ticket enters the queue before its transaction commits
 *	TELL_EARLY			"granted" is told before the granter's commit
 *	NO_RETURN			a rollback of the granter does not put the ticket back
 *	NO_RESTART			a granter that has ended is not replaced
 *	FORGET				a new granter looks only at what is woken from then on
 *	GRANT_WITHDRAWN		a ticket that was withdrawn meanwhile is granted
 */
#define WAITERS	2
#define NONE	WAITERS

bool unlocked;					/* the row, as a dirty snapshot shows it */
byte sharers;					/* places that are taken */
byte queue[WAITERS];			/* in the order of service */
byte nwaiters;
bool woken[WAITERS];
bool latch[WAITERS];
byte order[WAITERS];			/* of arrival */
byte arrivals;

#define TICKET_NUMBER	1		/* the waiter that is a ticket */
#ifdef TICKET
#define is_ticket(w)	(w == TICKET_NUMBER)
#else
#define is_ticket(w)	false
#endif

mtype = { DRAFT, WAITING, ENDING, GRANTED, GONE };
mtype ticket = DRAFT;
bool ready;						/* it is in the list of its granter */
byte deaths = 1;				/* of a granter */
bool told;

bool granted_uncommitted;		/* a ticket whose enqueue was rolled back */
bool told_in_vain;				/* a grant that was not made */
bool granted_withdrawn;
bool overtaken;
bool two_inside;				/* an exclusive grant beside another */
byte inside;					/* exclusive grants */

/* dlock_queue_changed(), under the lock of the bucket */
inline wake_first() {
	atomic {
		if
		:: queue[0] != NONE ->
			woken[queue[0]] = true;
			ready = ready || is_ticket(queue[0]);
			latch[queue[0]] = true
		:: else
		fi
	}
}

/* xact.c, at_end(); dlock_queue_any() saves the look */
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

/* At the place that its arrival gives it. */
inline insert(w) {
	if
	:: queue[0] == NONE -> queue[0] = w
	:: queue[0] != NONE && order[w] < order[queue[0]] ->
		queue[1] = queue[0];
		queue[0] = w
	:: else -> queue[1] = w
	fi;
	nwaiters++
}

inline enter(w) {
	atomic {
		woken[w] = false;
		order[w] = arrivals;
		arrivals++;
		insert(w)
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

#ifdef TICKET

/* dlock_ticket_publish() */
inline publish() {
	atomic {
		enter(TICKET_NUMBER);
		ticket = WAITING;
		ready = true;
		latch[TICKET_NUMBER] = true
	}
}

/* The transaction of the enqueue, and what the requester does then. */
proctype Requester() {
#ifdef PUBLISH_EARLY
	publish();
	if
	:: true							/* commit */
	:: atomic {
			granted_uncommitted = ticket != WAITING;
			assert(!granted_uncommitted);
			leave(TICKET_NUMBER, false);
			ready = false;
			ticket = GONE
		}
	fi;
#else
	if
	:: publish()					/* commit */
	:: ticket = GONE				/* rollback */
	fi;
#endif

	/* some call dlock_dequeue(); the others must be granted it */
	if
	:: atomic {
			ticket == WAITING ->
			leave(TICKET_NUMBER, false);
			ready = false;
			ticket = GONE
		}
	:: true
	fi;
	ticket == GRANTED || ticket == GONE
}

/* Its transaction ends without a commit; dlock_ticket_return() */
inline undo() {
	inside--;
	got = false;
	unlocked = true;
#ifndef NO_RETURN
	atomic {
		if
		:: ticket == ENDING ->
			insert(TICKET_NUMBER);
			ticket = WAITING;
			ready = true;
			latch[TICKET_NUMBER] = true;
			told_in_vain = told;
			assert(!told_in_vain)
		:: else
		fi
	};
#endif
	wake_at_end()
}

/* It may end anywhere, and the launcher starts another one. */
proctype Granter() {
	bool behind, got;

begin:
#ifndef FORGET
	goto look;
#endif

idle:
	if
	:: ready -> ready = false
	:: !ready ->
		if
		:: latch[TICKET_NUMBER] -> latch[TICKET_NUMBER] = false; goto idle
		:: ticket == GRANTED || ticket == GONE -> goto gone
		:: deaths > 0 -> goto died
		fi
	:: deaths > 0 -> goto died
	fi;

look:
	if
	:: deaths > 0 -> goto died
	:: true
	fi;
	atomic {
		if
		:: ticket == WAITING -> rearm(TICKET_NUMBER, behind)
		:: else -> goto idle
		fi
	};
	try(!behind, got);
	if
	:: !got -> goto idle
	:: got
	fi;
	atomic {
		if
		:: ticket == WAITING ->
			leave(TICKET_NUMBER, true);
			ready = false;
			ticket = ENDING
		:: else ->
#ifdef GRANT_WITHDRAWN
			granted_withdrawn = true;
			assert(!granted_withdrawn)
#else
			skip
#endif
		fi
	};
	if
	:: ticket != ENDING -> undo(); goto idle	/* it was withdrawn */
	:: else
	fi;
#ifdef TELL_EARLY
	told = true;
#endif
	if
	:: atomic { ticket = GRANTED; told = true }	/* commit */
	:: undo(); goto idle
	:: deaths > 0 -> undo(); goto died
	fi;

	/* the owner releases it */
	inside--;
	end_transaction();
	goto gone;

died:
	deaths--;
#ifndef NO_RESTART
	goto begin;
#endif

gone:
	skip
}

#endif

init {
	atomic {
		queue[0] = NONE;
		queue[1] = NONE;
		run Holder();
		run Newcomer();
		run Waiter(0);
#ifdef TICKET
		run Requester();
		run Granter()
#else
		run Waiter(1)
#endif
	}
}
