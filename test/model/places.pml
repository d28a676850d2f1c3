/*
 * places.pml
 *	  Exclusive and shared grants of one key, for Spin: do they ever overlap?
 *
 * One key.  Row 0 is the head, the exclusive grant; row 1 + c is the place of
 * client c.  Three clients, of the kinds A, B and C, ask for the key ROUNDS times
 * each.  A client that was granted it commits or rolls back.  Then it fences,
 * renews or releases its grant, up to ACTS times, or lets it expire.  Any
 * transaction may stay open forever.  The reaper removes up to REAPS rows that
 * are free or expired.  With CRASH, the server crashes once and starts again.
 *
 * Time is a number of ticks, up to TICKS; a lease lasts one tick.  With
 * HEAD_PRESENT, the key has had an exclusive grant before.  The search is complete
 * within these bounds.
 *
 * The kinds
 *
 *	X	exclusive
 *	R	a reader
 *	M	a place of a semaphore that has LIMIT places
 *
 * What spares looks (none, one or both of them)
 *
 *	CENSUS		the number of places is known, at most: if it is below LIMIT, a
 *				semaphore does not look at them.  It may be forgotten at any time
 *	HEADLESS	it is known that there was no head, until one is counted: then a
 *				shared request does not look for one.  It may be forgotten at any time
 *
 * The guard to remove (at most one; but FENCE_IGNORED and LATE_NOW do harm only with
 * EXPIRED_STAYS: a row that is to end is locked, and that fails if it is fenced)
 *
 *	HEADS_IGNORED		a shared request does not compare the counter of heads
 *	PLACES_IGNORED		a semaphore does not compare the counter of places
 *	EXCLUSIVE_IGNORES	an exclusive request does not compare the counter of places
 *	LOCK_LATE			the head is locked after the partition lock is released
 *	COUNT_EARLY			the claim of the head is counted before it is there
 *	COUNT_IF_MARKED		a new head is counted only if the key is marked
 *	MOVE_UNCOUNTED		a head that moves to a new index entry is not counted
 *	LATE_MARK			the mark is set after the look at the head
 *	MARK_UNREAD			the mark is not read again when the head is locked
 *	MARK_LOST			a start forgets the marks
 *	FENCE_IGNORED		a place that has expired but is fenced counts as free
 *	LATE_NOW			the clock is read after the row, not before
 *	EXPIRED_STAYS		a grant leaves rows that have expired as they are
 *	WAIT_FOR_OTHERS		a request that meets an open transaction waits for it
 *	CLAIMS_UNCOUNTED	CENSUS: a claim does not raise the number
 *	COUNTER_LATE		CENSUS: the counter is read after the number, not before
 *	SUBTRACT_EARLY		CENSUS: a removal lowers the number before its commit
 *	SUBTRACT_ALWAYS		CENSUS: ... also if it is rolled back
 *	GENERATION_IGNORED	CENSUS: ... also if the places have been counted meanwhile
 *	HEADLESS_FOREVER	HEADLESS: a head that is counted does not end that
 */
#define X	0
#define R	1
#define M	2

#ifndef A
#define A	X
#endif
#ifndef B
#define B	R
#endif
#ifndef C
#define C	M
#endif
#ifndef ROUNDS
#define ROUNDS	1
#endif
#ifndef ACTS
#define ACTS	1
#endif
#ifndef REAPS
#define REAPS	1
#endif
#ifndef TICKS
#define TICKS	1
#endif
#ifndef LIMIT
#define LIMIT	2
#endif
#ifdef CRASH
#define CRASHES	1
#else
#define CRASHES	0
#endif

#define CLIENTS	3
#define ROWS	(1 + CLIENTS)
#define REAPER	CLIENTS
#define NOBODY	7
#define kind(c)	(c == 0 -> A : (c == 1 -> B : C))

/* The properties.  Spin names the one that is violated. */
bool exclusive_overlaps;		/* an exclusive grant is beside another */
bool too_many;					/* a semaphore's grant is beside LIMIT earlier ones */
bool revived;					/* ... after a crash */

#define ABSENT	0
#define FREE	1
#define HELD	2

/* A row: what is committed, and what open transactions are doing with it. */
typedef Row {
	unsigned state		: 2;
	unsigned version	: 3;
	unsigned expires	: 2;
	unsigned changer	: 3;	/* who has locked it exclusively, changes it or adds it */
	bit granting;				/* ghost: ... and has been granted it */
	bit fenced;					/* its holder's open transaction has a key-share lock */
	bit moved;					/* it has got a new index entry */
	bit part					/* CENSUS: its removal, under way, is to lower the number */
};

Row row[ROWS];
unsigned time		: 2;
unsigned last		: 3;		/* the version drawn last */
bool mark;
bool crashed;

bool partition;				/* the partition lock */

bool counted;				/* CENSUS: the places have been counted: */
unsigned bound		: 4;		/* ... there are at most this many */
bool reaper_owes;			/* ... when the reaper has lowered that */
bool headless;				/* HEADLESS: there was no head, nor was one counted since */

mtype = { IDLE, FAST, MARK, ADD, INSERT, ADDED, START, ROOM, HEAD, LOOK, LOCK, CLAIM, CLAIMED, MOVE, OPEN, SETTLE, FOREVER };
mtype = { GRANT, FENCE, RENEW, RELEASE, NOTHING };

typedef ClientState {
	unsigned rounds		: 2;
	unsigned acts		: 2;
	mtype step;
	mtype op;					/* what its transaction does */
	bit has;					/* it has been granted its row */
	unsigned expires	: 2;	/* of its grant, if its transaction commits */
	unsigned version	: 3;

	/* for the request under way */
	unsigned now		: 2;
	unsigned next		: 3;	/* the row to look at */
	unsigned count		: 3;	/* places that are taken */
	unsigned expired	: 4;	/* the rows that have expired, one bit each */
	bit heads;					/* since START: a head was counted, ... */
	bit places;					/* ... a place was counted, */
	bit moved;					/* ... the head got a new index entry */
	bit room;					/* CENSUS: it need not look at the places, */
	unsigned found		: 3;	/* ... or has found this many */
	unsigned owes		: 2;	/* ... and lowers the number by this many */
	bit skips;					/* HEADLESS: it need not look for a head, */
	bit none;					/* ... or has found none */
	bit seen;					/* LATE_NOW: the row has been read, */
	bit seen_taken;				/* ... as this */
	unsigned seen_expires	: 2
};

ClientState client[CLIENTS];
#define me		client[c]
#define mine	(kind(c) == X -> 0 : c + 1)		/* the row that it asks for */

#define held(r)		(row[r].state == HELD)
#define live(r)		(held(r) && row[r].expires > time)
#define changing(r)	(row[r].changer != NOBODY)
#define others(c, r)	(changing(r) && row[r].changer != c)

#ifdef FENCE_IGNORED
#define keeps(r)	false
#else
#define keeps(r)	row[r].fenced
#endif

/* What a look at a row that is not locked tells: is it taken? */
#define taken(c, r, now)	(others(c, r) || (held(r) && (row[r].expires > now || keeps(r))))

/* What is so, or becomes so if all transactions commit. */
#define active(r)	(row[r].granting || (held(r) && (row[r].expires > time || row[r].fenced)))

inline forget(c) {
	me.now = 0; me.next = 0; me.count = 0; me.expired = 0;
	me.heads = 0; me.places = 0; me.moved = 0;
	me.room = 0; me.found = 0; me.skips = 0; me.none = 0;
	me.seen = 0; me.seen_taken = 0; me.seen_expires = 0
}

inline idle(c) {
	forget(c);
	me.step = IDLE;
	me.op = 0;
	me.expires = 0;
	me.version = 0
}

/* Those that compare the counters later will find them changed. */
#define compares(c)	(client[c].step == ROOM || client[c].step == HEAD || \
					 client[c].step == LOOK || client[c].step == LOCK || \
					 client[c].step == CLAIM)

inline count_head() {
	for (i : 0 .. CLIENTS - 1) {
		client[i].heads = client[i].heads || (kind(i) != X && compares(i))
	}
#ifndef HEADLESS_FOREVER
	headless = false;
#endif
	i = 0
}

inline count_place() {
	for (i : 0 .. CLIENTS - 1) {
		client[i].places = client[i].places || (kind(i) != R && compares(i))
	}
#ifndef CLAIMS_UNCOUNTED
	bound = (counted -> bound + 1 : 0);
#endif
	i = 0
}

#define less(by)	(bound > by -> bound - by : 0)

/* What was removed before this has begun is no longer subtracted. */
inline take_census(c) {
	counted = true;
	bound = me.found;
#ifndef GENERATION_IGNORED
	for (i : 0 .. CLIENTS - 1) {
		client[i].owes = 0
	}
	reaper_owes = false;
	for (i : 1 .. ROWS - 1) {
		row[i].part = 0
	}
#endif
	i = 0
}

/* A place is about to be removed. */
inline remove(r) {
#ifdef SUBTRACT_EARLY
	bound = (r > 0 && counted -> less(1) : bound)
#else
	row[r].part = r > 0 && counted
#endif
}

/* From here on, only its own rollback undoes the grant. */
inline grant(c) {
	row[mine].changer = c;
	row[mine].granting = 1;
	last++;
	n = 0;
	for (i : 1 .. ROWS - 1) {
		n = n + (i != mine && active(i))
	}
	printf("client %d: is granted row %d beside %d places\n", c, mine, n);
	exclusive_overlaps = (mine == 0 -> n > 0 : active(0));
	assert(!exclusive_overlaps);
	too_many = kind(c) == M && n >= LIMIT;
	assert(!too_many);
	for (i : 1 .. ROWS - 1) {
		if
		:: row[i].changer == c && i != mine -> remove(i)
		:: else
		fi
	}
	i = 0;
	n = 0;
	forget(c);
	me.version = last;
	me.expires = time + 1;
	me.op = GRANT;
	me.step = OPEN
}

/* What it has locked by now stays locked until its transaction ends. */
inline refuse(c) {
	printf("client %d: is refused\n", c);
	forget(c);
	me.op = NOTHING;
	me.step = OPEN
}

#ifdef WAIT_FOR_OTHERS
#define may_look(c, r)	(!others(c, r))
#else
#define may_look(c, r)	true
#endif

/* The clock is read first: what has expired by then can no longer be fenced. */
#ifdef LATE_NOW
#define must_read(c)	(!me.seen)
#define is_taken(c, r)	(me.seen_taken || me.seen_expires > time)
#else
#define must_read(c)	false
#define is_taken(c, r)	taken(c, r, me.now)
#endif

inline read(c, r) {
	me.seen = 1;
	me.seen_taken = others(c, r) || (held(r) && keeps(r));
	me.seen_expires = (held(r) -> row[r].expires : 0)
}

inline look(c) {
	if
	:: is_taken(c, me.next) -> me.count++
	:: else -> me.expired = me.expired | (held(me.next) << me.next)
	fi;
	me.seen = 0; me.seen_taken = 0; me.seen_expires = 0;
	me.next++
}

/*
 * Lock the rows that end with this grant: an exclusive one ends all that have
 * expired, and a semaphore's as many as there are too many.
 */
#ifdef EXPIRED_STAYS
#define must_end(c, r)	false
#else
#define must_end(c, r)	(r == 0 || kind(c) == X || (kind(c) == M && me.count >= LIMIT))
#endif

inline lock_expired(c) {
	n = true;
	if
	:: kind(c) == M ->
		/* those that have expired count as long as they are there */
		for (i : 1 .. ROWS - 1) {
			me.count = me.count + ((me.expired >> i) & 1)
		}
#ifdef CENSUS
		me.found = (me.room -> 0 : me.count)
#endif
	:: else
	fi;
	for (i : 0 .. ROWS - 1) {
		if
		:: ((me.expired >> i) & 1) && i != mine && must_end(c, i) && n ->
			n = !others(c, i) && !row[i].fenced && held(i);
			if
			:: n ->
				row[i].changer = c;
				me.count = (kind(c) == M && i > 0 -> me.count - 1 : me.count)
			:: else
			fi
		:: else
		fi
	}
	me.expired = 0;
	i = 0
}

/* heap_lock_tuple() does not wait, and finds out whether the row has changed */
#define lockable(c)			(row[0].state != ABSENT && !others(c, 0) && !row[0].fenced && !live(0))
#define lockable_place(c)	(!others(c, mine) && !row[mine].fenced && !live(mine))

#define partition_free	(!partition)
#define looking(c)	(me.step == LOOK && me.next < ROWS)
#define looked(c)	(me.step == LOOK && me.next == ROWS)
#define asks(c)		(me.step == IDLE && !me.has && me.rounds < ROUNDS)
#define may_act(c)	(me.step == IDLE && me.has && me.acts < ACTS && live(mine) && \
					 row[mine].version == me.version && !changing(mine))

#ifdef HEADS_IGNORED
#define head_counted(c)		false
#else
#define head_counted(c)		me.heads
#endif
#ifdef PLACES_IGNORED
#define place_counted(c)	(kind(c) != M && me.places)
#elif defined(EXCLUSIVE_IGNORES)
#define place_counted(c)	(kind(c) != X && me.places)
#else
#define place_counted(c)	me.places
#endif

#define has_room			(counted && bound < LIMIT)
#ifdef CENSUS
#define may_have_room(c)	(kind(c) == M)
#else
#define may_have_room(c)	false
#endif
#define after_head(c)		(kind(c) == R || me.room -> LOCK : LOOK)
#ifdef HEADLESS
#define saw_none(is_so)		me.none = is_so
#else
#define saw_none(is_so)		skip
#endif

proctype Client(byte c) {
	byte i, n;

	do

	:: d_step { asks(c) ->
		me.rounds++;
		if
		:: kind(c) == X -> me.step = (mark -> START : FAST)
		:: else ->
#ifndef LATE_MARK
			mark = true;
#endif
			me.step = START
		fi }

	/*
	 * An exclusive request for a key that is not marked: lock the head, and only
	 * then be sure that there is no mark.
	 */
	:: d_step { me.step == FAST && may_look(c, 0) ->
		if
		:: row[0].state == ABSENT && !changing(0) -> me.step = ADD
		:: lockable(c) ->
			printf("client %d: locks the head\n", c);
			row[0].changer = c;
			me.step = MARK
		:: else -> refuse(c)
		fi }
	:: d_step { me.step == MARK ->
#ifdef MARK_UNREAD
		grant(c);
#else
		if
		:: mark -> me.step = START
		:: else -> grant(c)
		fi
#endif
		}

	/* ... or add one; a place that was claimed earlier has left its mark */
	:: d_step { me.step == ADD && partition_free ->
		if
		:: row[0].state == ABSENT && !changing(0) && !mark ->
			partition = true;
			me.step = INSERT
		:: else -> me.step = (mark -> START : FAST)
		fi }
	:: d_step { me.step == INSERT ->
		printf("client %d: adds a head\n", c);
		row[0].changer = c;
		row[0].granting = 1;
		me.step = ADDED }
	:: d_step { me.step == ADDED ->
#ifndef COUNT_IF_MARKED
		count_head();
#endif
		partition = false;
		grant(c) }

	/*
	 * All others: look, and then claim under the partition lock
	 */
	:: d_step { me.step == START ->
		forget(c);
		me.now = time;
		me.next = 1;
#ifdef COUNTER_LATE
		me.room = has_room;
#endif
		me.step = (may_have_room(c) -> ROOM : HEAD) }
#ifdef HEADLESS
	:: d_step { me.step == START && kind(c) != X && headless ->
		forget(c);
		me.now = time;
		me.next = 1;
		me.skips = 1;
		me.step = (may_have_room(c) -> ROOM : HEAD) }
	:: d_step { me.step == HEAD && me.skips -> me.step = after_head(c) }
#endif

	/* is there room, as far as is known? */
	:: d_step { me.step == ROOM ->
#ifdef COUNTER_LATE
		me.places = 0;
#else
		me.room = has_room;
#endif
		me.step = HEAD }
	:: d_step { me.step == ROOM && has_room ->
		me.room = 0;
		me.step = HEAD }

	/* the head, which may be missed if it gets a new index entry meanwhile */
	:: d_step { me.step == HEAD && !me.skips && must_read(c) -> read(c, 0) }
	:: d_step { me.step == HEAD && !me.skips && !must_read(c) && may_look(c, 0) ->
		if
		:: is_taken(c, 0) || row[0].fenced -> refuse(c)
		:: else ->
			me.expired = held(0);
			me.seen = 0; me.seen_taken = 0; me.seen_expires = 0;
			saw_none(row[0].state == ABSENT && !changing(0));
			me.step = after_head(c)
		fi }
	:: d_step { me.step == HEAD && !me.skips && me.moved && !changing(0) ->
		printf("client %d: misses the head\n", c);
		me.seen = 0; me.seen_taken = 0; me.seen_expires = 0;
		saw_none(1);
		me.step = after_head(c) }

	/* the places, if they count */
	:: d_step { looking(c) && must_read(c) -> read(c, me.next) }
	:: d_step { looking(c) && !must_read(c) && may_look(c, me.next) -> look(c) }
	:: d_step { looked(c) ->
		if
		:: me.count >= (kind(c) == X -> 1 : LIMIT) -> refuse(c)
		:: else -> me.step = LOCK
		fi }

	/* what ends with the grant, and the own place if there is one */
	:: d_step { me.step == LOCK ->
		lock_expired(c);
		if
		:: n && (kind(c) == X || lockable_place(c)) ->
			if
			:: kind(c) != X && row[mine].state != ABSENT -> row[mine].changer = c
			:: else
			fi;
			me.now = 0; me.next = 0; me.count = 0; me.moved = 0;
			me.step = CLAIM
		:: else -> refuse(c)
		fi;
		n = 0 }

	/* if nothing was claimed since, the key is as it was seen */
	:: d_step { me.step == CLAIM && partition_free ->
#ifdef LATE_MARK
		mark = true;
#endif
		if
		:: head_counted(c) || place_counted(c) -> me.step = START
		:: else ->
			if
			:: kind(c) != X ->
#ifdef HEADLESS
				headless = headless || me.none;
#endif
#ifdef CENSUS
				if
				:: kind(c) == M && !me.room -> take_census(c)
				:: else
				fi;
#endif
				count_place();
				grant(c)
			:: kind(c) == X && (others(c, 0) || row[0].fenced) -> refuse(c)
			:: kind(c) == X && !others(c, 0) && !row[0].fenced && live(0) -> me.step = START
			:: else ->
				partition = true;
#if !defined(COUNT_EARLY) && !defined(LOCK_LATE)
				printf("client %d: claims the head\n", c);
				row[0].changer = c;
				row[0].granting = 1;
#else
				count_head();
#endif
#ifdef LOCK_LATE
				partition = false;
#endif
				me.step = CLAIMED
			fi
		fi }
	:: d_step { me.step == CLAIMED ->
		partition = false;
#if !defined(COUNT_EARLY) && !defined(LOCK_LATE)
		count_head();
#endif
		if
		:: others(c, 0) || row[0].fenced || live(0) -> refuse(c)
		:: else -> grant(c)
		fi }

	/*
	 * The end of a transaction
	 */
	:: d_step { me.step == OPEN ->
		printf("client %d: commits %e\n", c, me.op);
		for (i : 0 .. ROWS - 1) {
			if
			:: row[i].changer == c && i == mine && (me.op == GRANT || me.op == RENEW) ->
				row[i].state = HELD;
				row[i].version = me.version;
				row[i].expires = me.expires
			:: row[i].changer == c && (i == mine -> me.op == RELEASE : me.op == GRANT) ->
				row[i].state = (i == 0 -> FREE : ABSENT);
				row[i].version = 0;
				row[i].expires = 0;
				me.owes = me.owes + row[i].part;
				row[i].part = 0
			:: row[i].changer == c && i == 0 && me.op == NOTHING && row[i].state == ABSENT ->
				row[i].state = FREE
			:: else
			fi;
			if
			:: row[i].changer == c -> row[i].changer = NOBODY; row[i].granting = 0
			:: else
			fi
		}
		i = 0;
		if
		:: me.op == FENCE -> row[mine].fenced = 0
		:: else
		fi;
		if
		:: me.op == GRANT || me.op == RENEW || me.op == FENCE ->
			me.has = 1;
			n = me.version;
			idle(c);
			me.version = n;
			n = 0
		:: else ->
			me.has = 0;
			idle(c)
		fi;
		me.step = (me.owes > 0 -> SETTLE : IDLE) }
	:: d_step { me.step == OPEN && (me.op == GRANT || me.op == RELEASE) ->
		printf("client %d: rolls back %e\n", c, me.op);
		for (i : 0 .. ROWS - 1) {
			if
			:: row[i].changer == c ->
				row[i].changer = NOBODY;
				row[i].granting = 0;
#ifdef SUBTRACT_ALWAYS
				me.owes = me.owes + row[i].part;
#endif
				row[i].part = 0
			:: else
			fi
		}
		i = 0;
		me.has = 0;
		idle(c);
		me.step = (me.owes > 0 -> SETTLE : IDLE) }

	/* the commit is visible: what it has removed is subtracted */
	:: d_step { me.step == SETTLE ->
		printf("client %d: subtracts %d of %d\n", c, me.owes, bound);
		bound = less(me.owes);
		me.owes = 0;
		me.step = IDLE }
	:: d_step { me.step == OPEN -> me.step = FOREVER }

	/*
	 * A holder
	 */
	:: d_step { may_act(c) ->
		printf("client %d: fences\n", c);
		me.acts++;
		row[mine].fenced = 1;
		me.op = FENCE;
		me.step = OPEN }
	:: d_step { may_act(c) && !row[mine].moved ->
		printf("client %d: renews and moves the row\n", c);
		me.acts++;
		row[mine].changer = c;
		me.expires = time + 1;
		me.op = RENEW;
		me.step = MOVE }
	:: d_step { me.step == MOVE && partition_free ->
		row[mine].moved = 1;
		count_place();
#ifndef MOVE_UNCOUNTED
		if
		:: mine == 0 -> count_head()
		:: else
		fi;
#endif
		for (i : 0 .. CLIENTS - 1) {
			client[i].moved = client[i].moved || (mine == 0 && client[i].step == HEAD)
		}
		i = 0;
		me.step = OPEN }
	:: d_step { may_act(c) ->
		printf("client %d: releases\n", c);
		me.acts++;
		row[mine].changer = c;
		remove(mine);
		me.op = RELEASE;
		me.step = OPEN }

	/* it forgets its grant */
	:: d_step { me.step == IDLE && me.has -> me.has = 0; me.version = 0 }

	/* it has its answer, even if others never end */
	:: me.step == IDLE && !me.has && me.rounds == ROUNDS -> break
	:: me.step == FOREVER ->
end_forever:
		me.step != FOREVER
	od
}

#define removable(r)	(row[r].state != ABSENT && !changing(r) && !row[r].fenced && !live(r))

proctype Reaper() {
	unsigned reaps	: 2;
	unsigned r		: 3;

end:
	do
	:: d_step { reaps < REAPS && removable(r) -> row[r].changer = REAPER; remove(r); reaps++ }
	:: d_step { row[r].changer == REAPER ->
		printf("reaper: removes row %d\n", r);
		row[r].state = ABSENT;
		row[r].version = 0;
		row[r].expires = 0;
		row[r].changer = NOBODY;
		reaper_owes = row[r].part;
		row[r].part = 0 }
	:: d_step { reaper_owes -> bound = less(1); reaper_owes = false }
	:: d_step { row[r].changer != REAPER && !reaper_owes && reaps < REAPS && r < ROWS - 1 -> r++ }
	od
}

/* All transactions are gone, and all leases begin again. */
inline crash() {
	crashed = true;
	partition = false;
	counted = false;
	bound = 0;
	reaper_owes = false;
	headless = false;
#ifdef MARK_LOST
	mark = false;
#else
	mark = true;
#endif
	for (i : 0 .. CLIENTS - 1) {
		if
		:: client[i].op == GRANT || client[i].op == NOTHING || !client[i].has ->
			client[i].has = 0;
			client[i].version = 0
		:: else
		fi;
		n = client[i].version;
		client[i].owes = 0;
		idle(i);
		client[i].version = n
	}
	n = 0;
	for (i : 0 .. ROWS - 1) {
		row[i].changer = NOBODY;
		row[i].granting = 0;
		row[i].fenced = 0;
		row[i].part = 0;
		if
		:: held(i) -> row[i].expires = time + 1
		:: else
		fi
	}
	for (i : 1 .. ROWS - 1) {
		revived = revived || (held(i) && held(0));
		n = 0;
		for (j : 1 .. ROWS - 1) {
			n = n + (held(j) && row[j].version < row[i].version)
		}
		revived = revived || (held(i) && kind((i - 1)) == M && n >= LIMIT)
	}
	i = 0;
	j = 0;
	n = 0
}

proctype Fate() {
	byte i, j, n;

end:
	do
	:: d_step { time < TICKS -> time++; printf("tick\n") }
	:: d_step { CRASHES > 0 && !crashed ->
		printf("server: crashes and starts again\n");
		crash();
		assert(!revived) }
	od
}

init {
	byte i;

	d_step {
		for (i : 0 .. ROWS - 1) {
			row[i].changer = NOBODY
		}
		for (i : 0 .. CLIENTS - 1) {
			client[i].step = IDLE
		}
		i = 0;
#ifdef HEAD_PRESENT
		row[0].state = FREE
#endif
	}
	atomic {
		run Client(0);
		run Client(1);
		run Client(2);
		run Reaper();
		run Fate()
	}
}
