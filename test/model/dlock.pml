/*
 * dlock.pml
 *	  The lock, fence, expiry and failover protocol of dlock, for Spin.
 *
 * The model has one key; two servers, of which the second is the standby of the
 * first; two clients that acquire, renew and release the lock; for each of them a
 * writer, which writes with the client's token to a register in the same
 * database; and fate, which lets time pass, sends WAL, crashes, restarts and
 * promotes.
 *
 * README.md explains how the model relates to the code, what was left out and
 * why, and how to run it.
 *
 * The world (one of them must be given)
 *
 *	ALONE		one server, no standby: crash and restart
 *	SYNC		a synchronous standby; the old primary may stay alive, cut off
 *	ASYNC		an asynchronous one, which may miss the last commits
 *	ARRIVED		an asynchronous one, promoted when it has everything and the old
 *				primary is dead for good
 *
 * The guard to remove (at most one)
 *
 *	NO_LEAP				versions do not leap in a new incarnation
 *	NOTE_BEFORE_LEAP	the new incarnation is noted before the leap, not after
 *	NO_STARTED_TTL		an expiry stored by another run is compared with our clock
 *	NO_FENCE			the writer does not call dlock_fence
 *	FENCE_WEAK			the fence looks, but does not lock the row
 *	VERSION_BEFORE_LOCK	the version is drawn before the row is ours
 *	NO_RECHECK			a row that changed after the look is taken all the same
 *	NO_FLUSH_GRANT		a grant is acknowledged before its WAL is on disk
 *	NO_SYNC_GRANT		... before it is on the synchronous standby
 *	NO_SYNC_REFRESH		a refresh does not wait for the synchronous standby
 *	NO_FLUSH_LONGER		a refresh with a longer TTL does not wait for the disk
 *	KEEP_BELIEF			a client that asks for a shorter TTL relies on the longer
 *						one until the answer comes
 *	BELIEF_FROM_ANSWER	a client counts its TTL from the answer, not from the call
 */

#if defined(ALONE) + defined(SYNC) + defined(ASYNC) + defined(ARRIVED) != 1
#error "one of ALONE, SYNC, ASYNC and ARRIVED must be given"
#endif

#ifndef GRANTS
#define GRANTS	3		/* versions that an incarnation may draw */
#endif
#ifndef TAIL
#define TAIL	2		/* records that may be missing on disk or standby */
#endif
#ifndef CRASHES
#define CRASHES	1
#endif
#ifdef FENCE
#define MAXTTL	1		/* ticks */
#else
#define MAXTTL	2
#endif
#define LEAP	8		/* stands for 2^32: more than an incarnation draws */

#define CLIENTS	2
#define NOBODY	CLIENTS

#ifdef ALONE
#define STANDBYS	0
#else
#define STANDBYS	1
#endif

/* A lost tail or split brain costs leases; versions and the fence hold. */
#if defined(ASYNC) || defined(FENCE)
#define LEASES_HOLD	0
#else
#define LEASES_HOLD	1
#endif

/* Other properties fail before there are two holders; this checks only for those. */
#ifdef OVERLAP_ONLY
#define TERMS_HOLD	0
#else
#define TERMS_HOLD	LEASES_HOLD
#endif

#ifdef ARRIVED
#define may_promote		(server[0].state == DOWN && received == server[0].end)
#define may_restart(n)	(!promoted)
#else
#define may_promote		true
#define may_restart(n)	true
#endif

/* The properties.  Spin names the one that is violated. */
bool two_holders, grant_cut_short, grant_vanished;	/* where LEASES_HOLD */
bool version_repeated, version_went_back;
bool older_token_accepted, wrong_holder_fenced;

/*
 * The database after one WAL record.  "remaining" is what is left of the
 * stored expiry by the clock of the run that stored it.
 */
typedef Db {
	unsigned version	: 5;
	bit held;
	unsigned holder		: 2;	/* ghost: whose grant it is */
	unsigned life		: 3;	/* the run of a server; "run" is Spin's word */
	unsigned ttl		: 2;
	unsigned remaining	: 2;
	unsigned seq		: 5;	/* dlock.versions */
	bit incarnation;			/* dlock.incarnation: a timeline */
	unsigned token		: 5		/* the register: the last token accepted */
};

mtype = { DOWN, STANDBY, PRIMARY };

/*
 * wal[0] is on disk, and with a standby also there; each further record is the
 * state that it leads to.  Memory is wal[end] plus the row locks.  The lock of a
 * transaction protects what is committed but not yet visible.
 */
typedef Server {
	Db wal[TAIL + 1];
	unsigned end		: 3;
	unsigned flushed	: 3;
	mtype state;
	unsigned life		: 3;
	unsigned age		: 2;	/* since "started", up to MAXTTL */
	unsigned seq		: 5;	/* the newest value, drawn but perhaps not logged */
	unsigned updater	: 2;	/* the client that has the row for update, or NOBODY */
	bit exclusive;				/* ... with LockTupleExclusive? */
	bit shared[CLIENTS]			/* whose writers have a key-share lock */
};

Server server[2];
unsigned received	: 3;		/* what the standby has of server 0's WAL */
bool promoted;
bool begun;
unsigned crashes	: 2;
unsigned last_life	: 3;
byte offset[6];					/* of each run's clock; no rule may depend on it */
unsigned given		: 24;		/* ghost: versions that were acknowledged */

mtype = { IDLE, LOOK, LOCK, COMMIT, WAIT };
mtype = { ACQUIRE, REFRESH };

typedef ClientState {
	unsigned belief		: 2;	/* ticks for which it relies on the lock */
	unsigned token		: 5;	/* the last grant that it heard of, or 0 */

	/* the request under way */
	mtype step;
	mtype op;
	bit at;						/* which server */
	unsigned asked		: 2;	/* the TTL */
	unsigned timer		: 2;	/* what is left of it since the call */
	unsigned remaining	: 2;	/* ... since the row was won */
	unsigned version	: 5;
	unsigned lsn		: 3		/* of its commit */
};

ClientState client[CLIENTS];

typedef WriterState {
	mtype step;
	bit at;
	unsigned token		: 5
};

WriterState writer[CLIENTS];

#define row(n)		server[n].wal[server[n].end]

/* dlock_clock_effective() and dlock_rules_is_live() */
#ifdef NO_STARTED_TTL
#define left(n)		(row(n).remaining + offset[row(n).life] - offset[server[n].life])
#else
#define left(n)		(row(n).life == server[n].life -> row(n).remaining : row(n).ttl - server[n].age)
#endif
#define live(n)		(row(n).held && left(n) > 0)
#define holds(n, v)	(live(n) && row(n).version == v)

/* What a server does after another one has replaced it does not count. */
#define counts(n)	(n == 1 || !promoted)

#define serves(n)	(server[n].state == PRIMARY)
#define room(n)		(server[n].end < TAIL)
#define shared(n)	(server[n].shared[0] || server[n].shared[1])
#define free_for_update(n)	(server[n].updater == NOBODY)

/* An incarnation draws fewer versions than the leap. */
#define used_up(n)	(server[n].seq % LEAP >= (n == 0 -> GRANTS : GRANTS + 1))

/* A commit has arrived where it has to. */
#define NEVER		7
#define on_disk(n, l)		(l == NEVER || server[n].flushed >= l)
#ifdef SYNC
#define has_standby(n)		(n == 0)
#define on_standby(n, l)	(!has_standby(n) || (l != NEVER && received >= l))
#else
#define has_standby(n)		false
#define on_standby(n, l)	true
#endif

inline blank(db) {
	db.version = 0; db.held = 0; db.holder = 0; db.life = 0; db.ttl = 0;
	db.remaining = 0; db.seq = 0; db.incarnation = 0; db.token = 0
}

inline copy(to, from) {
	to.version = from.version; to.held = from.held; to.holder = from.holder;
	to.life = from.life; to.ttl = from.ttl; to.remaining = from.remaining;
	to.seq = from.seq; to.incarnation = from.incarnation; to.token = from.token
}

/*
 * A record that only another life will see: its times will not be read.  For
 * the sake of fewer states.
 */
inline forget_time(db) {
#ifndef NO_STARTED_TTL
	db.life = 0;
	db.remaining = 0
#else
	skip
#endif
}

/* A new record: a copy of the last one, which the caller changes. */
inline append(n) {
	copy(server[n].wal[server[n].end + 1], server[n].wal[server[n].end]);
	forget_time(row(n));
	server[n].end++
}

/* Replace the row: a process that looked at it before has to look again. */
inline replace(n, c) {
	append(n);
	row(n).seq = server[n].seq;
	row(n).life = server[n].life;
	row(n).remaining = client[c].remaining
}

inline shift_lsn(n, who) {
	if
	:: who.step == WAIT && who.at == n && who.lsn > 0 && who.lsn != NEVER ->
		who.lsn--;
		if
		:: who.lsn == 0 && has_standby(n) && received == 0 -> who.lsn = NEVER
		:: else
		fi
	:: else
	fi
}

/* Forget the records that can no longer be lost and that nobody needs. */
inline forget_wal(n) {
	do
	:: server[n].flushed > 0 && (n == 1 || STANDBYS == 0 || promoted || received > 0) ->
		for (i : 0 .. CLIENTS - 1) {
			shift_lsn(n, client[i])
		}
		for (i : 0 .. TAIL - 1) {
			copy(server[n].wal[i], server[n].wal[i + 1])
		}
		blank(server[n].wal[TAIL]);
		server[n].end--;
		server[n].flushed--;
		if
		:: n == 0 && received > 0 -> received--
		:: else
		fi
	:: else -> break
	od;
	i = 0
}

inline idle(c) {
	client[c].step = IDLE; client[c].op = 0; client[c].at = 0;
	client[c].asked = 0; client[c].timer = 0; client[c].remaining = 0;
	client[c].version = 0; client[c].lsn = 0
}

inline writer_idle(c) {
	writer[c].step = IDLE; writer[c].at = 0; writer[c].token = 0
}

inline unlock(n) {
	server[n].updater = NOBODY;
	server[n].exclusive = 0
}

/*
 * dlock_version_prepare(): two setvals, in this order in WAL.  No rollback
 * undoes them, but a crash may lose the second or both.
 */
inline leap(n) {
#ifndef NO_LEAP
	append(n);
	server[n].seq = server[n].seq + LEAP;
	row(n).seq = server[n].seq;
	printf("server %d: versions leap to %d\n", n, server[n].seq)
#else
	skip
#endif
}

inline note(n) {
	append(n);
	row(n).incarnation = n;
	printf("server %d: notes its incarnation\n", n)
}

inline leap_if_new(n) {
#ifdef NOTE_BEFORE_LEAP
	note(n);
	leap(n)
#else
	leap(n);
	note(n)
#endif
}

inline draw(n, c) {
	server[n].seq++;
	client[c].version = server[n].seq
}

inline call(c, what, n, ttl) {
	client[c].op = what;
	client[c].step = LOOK;
	client[c].at = n;
	client[c].asked = ttl;
#ifndef FENCE
	client[c].timer = ttl;
#endif
	printf("client %d: calls %e at server %d with TTL %d\n", c, what, n, ttl)
}

/* The client is told that it has the lock. */
inline acknowledge(c) {
	if
	:: client[c].op == ACQUIRE ->
		printf("client %d: granted version %d by server %d\n", c, client[c].version,
			client[c].at);
		version_repeated = (given >> client[c].version) & 1;
		assert(!version_repeated);
		/* versions of the new incarnation are above all of the old one */
		version_went_back = client[c].at == 1 && (given >> client[c].version) != 0;
		assert(!version_went_back);
		given = given | (1 << client[c].version);
		client[c].token = client[c].version
	:: else ->
		printf("client %d: renewed by server %d\n", c, client[c].at)
	fi;
#ifdef BELIEF_FROM_ANSWER
	client[c].belief = client[c].asked;
#else
	client[c].belief = client[c].timer;
#endif
#ifndef FENCE
	printf("client %d: counts on %d more ticks\n", c, client[c].belief);
#endif
	idle(c);
	two_holders = LEASES_HOLD && client[0].belief > 0 && client[1].belief > 0;
	assert(!two_holders)
}

/* The client is told that it does not have the lock. */
inline lost(c) {
	printf("client %d: server %d says that version %d is lost\n", c, client[c].at,
		client[c].token);
	grant_vanished = TERMS_HOLD && client[c].belief > 0 && counts(client[c].at);
	assert(!grant_vanished);
	client[c].belief = 0;
	client[c].token = 0;
	idle(c)
}

#define doing(c, what, where)	(client[c].op == what && client[c].step == where)
#define AT	client[c].at

/* the clients are symmetric, so client 0 begins */
#define wants(c)	(client[c].step == IDLE && client[c].belief == 0 && (c == 0 || begun))
#define offers(n)	(serves(n) && free_for_update(n) && !live(n) && !used_up(n))
#define may_renew(c, n)	(client[c].step == IDLE && client[c].token != 0 && serves(n) && free_for_update(n))
#define may_release(c, n)	(may_renew(c, n) && !shared(n) && room(n))

/* When the version is drawn. */
inline early(c) {
	client[c].step = LOCK;
	begun = true;
#ifdef VERSION_BEFORE_LOCK
	draw(AT, c)
#endif
}

inline late(c) {
#ifdef VERSION_BEFORE_LOCK
	skip
#else
	draw(AT, c)
#endif
}

inline renew(c, n, t) {
	call(c, REFRESH, n, t);
	if
	:: !holds(n, client[c].token) -> lost(c)
	:: else ->
		server[n].updater = c;
		client[c].remaining = t;
		client[c].step = COMMIT;
#ifndef KEEP_BELIEF
		/* if no answer comes, the shorter TTL may apply */
		if
		:: client[c].belief > t -> client[c].belief = t
		:: else
		fi
#endif
	fi
}

inline release(c, n) {
	if
	:: holds(n, client[c].token) ->
		printf("client %d: releases %d at server %d\n", c, client[c].token, n);
		replace(n, c);
		row(n).held = 0;
		row(n).holder = 0;
		row(n).ttl = 0;
		row(n).remaining = 0
	:: else
	fi;
	client[c].token = 0;
	client[c].belief = 0
}

/* xact.c, pre_commit(): does a renewal wait? */
#ifdef NO_FLUSH_LONGER
#define LONGER(n, before)	false
#else
#define LONGER(n, before)	(row(n).ttl > before)
#endif
#ifdef NO_SYNC_REFRESH
#define MUST_LAST(n, before)	LONGER(n, before)
#define renewal_is_safe(c)	on_disk(AT, client[c].lsn)
#else
#define MUST_LAST(n, before)	(has_standby(n) || LONGER(n, before))
#define renewal_is_safe(c)	(on_disk(AT, client[c].lsn) && on_standby(AT, client[c].lsn))
#endif

/* If the row was replaced since the look, look again. */
#ifdef NO_RECHECK
#define taken(c)	false
#else
#define taken(c)	live(AT)
#endif

#ifdef NO_FLUSH_GRANT
#define grant_is_safe(c)	true
#elif defined(NO_SYNC_GRANT)
#define grant_is_safe(c)	on_disk(AT, client[c].lsn)
#else
#define grant_is_safe(c)	(on_disk(AT, client[c].lsn) && on_standby(AT, client[c].lsn))
#endif

proctype Client(bit c) {
	do

	/*
	 * dlock_acquire: find and decide.  What the client counts on begins with
	 * the call, and it is worst if that is just before.
	 */
	:: d_step { wants(c) && offers(0) -> call(c, ACQUIRE, 0, MAXTTL); early(c) }
	:: d_step { wants(c) && offers(1) -> call(c, ACQUIRE, 1, MAXTTL); early(c) }
#ifdef SHORT_TTL
	:: d_step { wants(c) && offers(0) -> call(c, ACQUIRE, 0, 1); early(c) }
	:: d_step { wants(c) && offers(1) -> call(c, ACQUIRE, 1, 1); early(c) }
#endif

	/* the first grant of an incarnation */
	:: d_step { doing(c, ACQUIRE, LOCK) && row(AT).incarnation != AT &&
			server[AT].end + 2 <= TAIL ->
		leap_if_new(AT) }

	/* lock the row without waiting, decide again, draw the version */
	:: d_step { doing(c, ACQUIRE, LOCK) && row(AT).incarnation == AT ->
		if
		:: !free_for_update(AT) || shared(AT) || used_up(AT) || taken(c) -> idle(c)
		:: else ->
			server[AT].updater = c;
			server[AT].exclusive = 1;
			late(c);
			client[c].remaining = client[c].asked;
			client[c].step = COMMIT;
			printf("client %d: locked the row at server %d, has drawn %d\n", c, AT,
				client[c].version)
		fi }
	:: d_step { doing(c, ACQUIRE, COMMIT) && room(AT) ->
		printf("client %d: commits the grant of %d at server %d\n", c, client[c].version, AT);
		version_went_back = client[c].version <= row(AT).version;
		assert(!version_went_back);
		grant_cut_short = TERMS_HOLD && client[1 - c].belief > 0 && counts(AT);
		assert(!grant_cut_short);
		replace(AT, c);
		row(AT).version = client[c].version;
		row(AT).held = 1;
		row(AT).holder = c;
		row(AT).ttl = client[c].asked;
		client[c].lsn = server[AT].end;
		client[c].step = WAIT }

#ifndef FENCE
	/* dlock_refresh: find, decide and lock; it waits if the row is in use */
	:: d_step { may_renew(c, 0) -> renew(c, 0, MAXTTL) }
	:: d_step { may_renew(c, 1) -> renew(c, 1, MAXTTL) }
#ifdef SHORT_TTL
	:: d_step { may_renew(c, 0) -> renew(c, 0, 1) }
	:: d_step { may_renew(c, 1) -> renew(c, 1, 1) }
#endif
	:: d_step { doing(c, REFRESH, COMMIT) && room(AT) ->
		printf("client %d: commits the renewal at server %d\n", c, AT);
		client[c].version = row(AT).ttl;
		replace(AT, c);
		row(AT).ttl = client[c].asked;
		if
		:: MUST_LAST(AT, client[c].version) ->
			client[c].version = 0;
			client[c].lsn = server[AT].end;
			client[c].step = WAIT
		:: else ->
			unlock(AT);
			acknowledge(c)
		fi }

#endif

	/* the commit of a grant, or of a renewal that must last */
	:: d_step { client[c].step == WAIT && (client[c].op == ACQUIRE -> grant_is_safe(c) : renewal_is_safe(c)) ->
		unlock(AT);
		acknowledge(c) }

#ifdef ALONE
	/* the answer does not arrive */
	:: d_step { client[c].step == WAIT && on_disk(AT, client[c].lsn) ->
		printf("client %d: hears nothing\n", c);
		unlock(AT);
		idle(c) }
	:: d_step { doing(c, REFRESH, COMMIT) && room(AT) && row(AT).ttl >= client[c].asked ->
		printf("client %d: commits the renewal, but hears nothing\n", c);
		replace(AT, c);
		row(AT).ttl = client[c].asked;
		unlock(AT);
		idle(c) }
#endif

	/* the wait for the standby is cancelled: visible, but not acknowledged */
	:: d_step { client[c].step == WAIT && on_disk(AT, client[c].lsn) && !on_standby(AT, client[c].lsn) ->
		printf("client %d: its wait for the standby is cancelled\n", c);
		unlock(AT);
		idle(c) }

	/* dlock_release: it waits if the row is in use, but not for its commit */
	:: d_step { may_release(c, 0) -> release(c, 0) }
	:: d_step { may_release(c, 1) -> release(c, 1) }

#ifndef FENCE
	/* ROLLBACK: the drawn version is lost */
	:: d_step { client[c].step == COMMIT ->
		unlock(AT);
		idle(c) }
#endif
	od
}

#define WAT	writer[c].at

#define may_write(c, n)	(writer[c].step == IDLE && client[c].token != 0 && serves(n) && \
						 (free_for_update(n) || !server[n].exclusive))

/* Find, decide and lock; it waits while a client ends or replaces the grant. */
inline fence(c, n) {
#ifndef NO_FENCE
	if
	:: holds(n, client[c].token) ->
		printf("writer %d: the fence of version %d passes at server %d\n", c,
			client[c].token, n);
		wrong_holder_fenced = row(n).holder != c;
		assert(!wrong_holder_fenced);
#ifndef FENCE_WEAK
		server[n].shared[c] = 1;
#endif
		writer[c].step = COMMIT
	:: else
	fi;
#else
	writer[c].step = COMMIT;
#endif
	if
	:: writer[c].step == COMMIT ->
		writer[c].at = n;
		writer[c].token = client[c].token
	:: else
	fi
}

/*
 * BEGIN; SELECT dlock_fence(..); UPDATE register ..; COMMIT.  A connection of
 * its own, and as slow as it likes.
 */
proctype Writer(bit c) {
	do
	:: d_step { may_write(c, 0) -> fence(c, 0) }
	:: d_step { may_write(c, 1) -> fence(c, 1) }

	:: d_step { writer[c].step == COMMIT && room(WAT) ->
		printf("writer %d: commits its write with token %d at server %d\n", c,
			writer[c].token, WAT);
		older_token_accepted = writer[c].token < row(WAT).token;
		assert(!older_token_accepted);
		append(WAT);
		row(WAT).seq = server[WAT].seq;
		row(WAT).token = writer[c].token;
		server[WAT].shared[c] = 0;
		writer_idle(c) }

	/* ROLLBACK */
	:: d_step { writer[c].step == COMMIT ->
		server[WAT].shared[c] = 0;
		writer_idle(c) }
	od
}

inline down(x) {
	x = (x > 0 -> x - 1 : 0)
}

inline start(n, ahead) {
	last_life++;
	server[n].life = last_life;
	offset[last_life] = ahead;
	server[n].age = 0;
	server[n].seq = row(n).seq;
	server[n].state = PRIMARY;
	forget_time(row(n))
}

inline promote(ahead) {
	copy(server[1].wal[0], server[0].wal[received]);
	promoted = true;
	start(1, ahead);
	forget_wal(0);
	printf("server 1: promoted, knows version %d\n", row(1).version)
}

inline crash(n) {
	crashes++;
	for (i : 0 .. TAIL) {
		if
		:: i > server[n].flushed -> blank(server[n].wal[i])
		:: else
		fi
	}
	server[n].end = server[n].flushed;
	server[n].state = DOWN;
	unlock(n);
	for (i : 0 .. CLIENTS - 1) {
		server[n].shared[i] = 0;
		if
		:: client[i].step != IDLE && client[i].at == n -> idle(i)
		:: else
		fi;
		if
		:: writer[i].step != IDLE && writer[i].at == n -> writer_idle(i)
		:: else
		fi
	}
	i = 0;
	printf("server %d: crashes, keeps version %d\n", n, row(n).version)
}

proctype Fate() {
	byte i, j;

	do
	:: d_step { true ->
		for (i : 0 .. CLIENTS - 1) {
			down(client[i].belief);
			down(client[i].timer);
			down(client[i].remaining)
		}
		for (i : 0 .. 1) {
			for (j : 0 .. TAIL) {
				down(server[i].wal[j].remaining)
			}
			if
			:: server[i].age < MAXTTL -> server[i].age++
			:: else
			fi
		}
		i = 0;
		j = 0;
		printf("tick\n") }

	/* WAL reaches the disk, and from there the standby */
	:: d_step { serves(0) && server[0].flushed < server[0].end ->
		server[0].flushed++; forget_wal(0) }
	:: d_step { serves(1) && server[1].flushed < server[1].end ->
		server[1].flushed++; forget_wal(1) }
	:: d_step { STANDBYS > 0 && serves(0) && !promoted && received < server[0].flushed ->
		received++; forget_wal(0) }

	:: d_step { serves(0) && crashes < CRASHES -> crash(0) }
	:: d_step { serves(1) && crashes < CRASHES -> crash(1) }
	:: d_step { server[0].state == DOWN && may_restart(0) -> start(0, 0); printf("server 0: restarts\n") }
	:: d_step { server[1].state == DOWN && promoted -> start(1, 0); printf("server 1: restarts\n") }
	:: d_step { STANDBYS > 0 && !promoted && may_promote -> promote(0) }
#ifdef NO_STARTED_TTL
	/* its clock may show anything */
	:: d_step { STANDBYS > 0 && !promoted && may_promote -> promote(MAXTTL) }
#endif
	od
}

init {
	d_step {
		server[0].state = PRIMARY;
		server[0].life = 1;
		server[0].wal[0].life = 1;
		server[0].age = MAXTTL;
		server[0].updater = NOBODY;
		server[1].state = (STANDBYS > 0 -> STANDBY : DOWN);
		server[1].updater = NOBODY;
		last_life = 1;
		client[0].step = IDLE;
		client[1].step = IDLE;
		writer[0].step = IDLE;
		writer[1].step = IDLE
	}
	atomic {
		run Client(0);
		run Client(1);
#ifdef FENCE
		run Writer(0);
		run Writer(1);
#endif
		run Fate()
	}
}
