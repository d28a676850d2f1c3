/*-------------------------------------------------------------------------
 *
 * lock_rules_test.c
 *	  Tests the rules of src/rules/lock_rules.c for a key with one row, without a server.
 *
 * The test calls dlock_rules_decide() with every combination of request, row,
 * caller, way of naming the grant and time, and compares the result with the
 * rules below.  These follow the contract and do not depend on the order of the
 * checks in the code.  Each combination must match exactly one rule, and each
 * rule must be matched, so the test finds both gaps and overlaps.
 * test/unit/lock_rules_rows_test.c does the same for a key with several rows.
 *
 * To extend it: add a new operation to ops[] and op_bit().  Add anything else
 * that affects a decision as a field of Facts, compare it in meets(), and add a
 * list of its cases to try_combination().  The test then reports a combination
 * that no rule covers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/lock_rules.h"

/* only src/rules/lock_rules.o is linked, so use the C library's printf */
#undef printf

/* operations */
#define ACQUIRE		(1 << 0)
#define REFRESH		(1 << 1)
#define RELEASE		(1 << 2)
#define CHECK		(1 << 3)
#define FENCE		(1 << 4)
#define FORCE		(1 << 5)
#define REAP		(1 << 6)
#define HANDOVER	(1 << 7)
#define HOLDERS		(REFRESH | RELEASE | CHECK | FENCE | HANDOVER)

/* the row */
#define ABSENT		(1 << 0)
#define FREE		(1 << 1)
#define LIVE		(1 << 2)
#define EXPIRED		(1 << 3)
#define COOLING		(1 << 4)	/* nobody's, but not to be had yet */
#define LAPSED		(1 << 5)	/* lazy, and past its TTL */
#define HELD		(LIVE | LAPSED)

#define HEAD		(1 << 0)
#define PLACE		(1 << 1)

/* has another open transaction locked it? */
#define USED		(1 << 0)
#define UNUSED		(1 << 1)

/* is it still a grant, or what one has left behind? */
#define OF_GRANT	(1 << 0)
#define LEFT_BEHIND (1 << 1)

/* is the least time that it keeps the key over? */
#define LONG_ENOUGH (1 << 0)
#define TOO_SHORT	(1 << 1)

/* if it ends now, does it keep others out for a while? */
#define COOLS		(1 << 0)
#define NO_COOLING	(1 << 1)

/* how long has it been lapsed? */
#define LATELY		(1 << 0)
#define LONG_AGO	(1 << 1)

/* may the fence be that of a place? */
#define ANY_KIND	(1 << 0)
#define HEAD_ONLY	(1 << 1)

/* is another open transaction changing it? */
#define SETTLED		(1 << 0)
#define UNSETTLED	(1 << 1)

/* the caller's role, compared with that of the grant */
#define SAME_ROLE	(1 << 0)
#define OTHER_ROLE	(1 << 1)

/* the caller's owner, compared with that of the grant */
#define NO_OWNER	(1 << 0)	/* not given */
#define SAME_OWNER	(1 << 1)
#define OTHER_OWNER (1 << 2)	/* or the grant has none */

/* version and owner together */
#define NAMED		(1 << 0)
#define MISNAMED	(1 << 1)

/* is the grant that of an earlier call of the same request? */
#define OWN			(1 << 0)	/* same role and same owner */
#define FOREIGN		(1 << 1)

/* does the caller have the turn? */
#define FIRST		(1 << 0)
#define BEHIND		(1 << 1)

/* the caller's priority, compared with the holder's */
#define HIGHER		(1 << 0)
#define NOT_HIGHER	(1 << 1)

/* does the holder need time to yield, and is any left? */
#define NO_CLEANUP	(1 << 0)
#define IN_TIME		(1 << 1)
#define TIME_UP		(1 << 2)

#define FORCEFUL	(1 << 0)
#define PATIENT		(1 << 1)

/* has the holder been asked to yield? */
#define ASKED		(1 << 0)
#define NOT_ASKED	(1 << 1)

/* how long has the row been free? */
#define RECENT		(1 << 0)	/* for less than the linger */
#define LONG_IDLE	(1 << 1)

/* has it been held for as long as the policies allow? */
#define WITHIN		(1 << 0)
#define HELD_OUT	(1 << 1)

typedef struct Facts
{
	int			op;
	int			row;
	int			settled;
	int			role;
	int			owner;
	int			naming;
	int			idle;
	int			own;
	int			turn;
	int			rank;
	int			yield;
	int			force;
	int			asked;
	int			where;
	int			used;
	int			left;
	int			least;
	int			cools;
	int			lapsed;
	int			kind;
	int			hold;
} Facts;

typedef struct Rule
{
	const char *says;
	Facts		when;
	DlockAction action;
	DlockAnswer answer;
	int			nends;			/* how many rows end by a grant */
} Rule;

#define NOTHING(answer)		DLOCK_DO_NOTHING, answer, 0

/* a field that does not matter to a rule is 0 */
static const Rule rules[] = {
	{"acquire: a key that another transaction is changing is busy",
		{.op = ACQUIRE,.settled = UNSETTLED},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: the same owner gets its grant again, renewed, even if others wait",
		{.op = ACQUIRE,.settled = SETTLED,.row = HELD,.own = OWN,.hold = WITHIN},
	DLOCK_DO_RENEW, DLOCK_IS_GRANTED, 0},
	{"acquire: a grant that was held for as long as allowed is not renewed, but has to end",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = OWN,.hold = HELD_OUT},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a request does not overtake the queue, even if the key is free",
		{.op = ACQUIRE,.settled = SETTLED,.row = ABSENT | FREE | EXPIRED,.turn = BEHIND},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a request does not overtake the queue, whatever its priority",
		{.op = ACQUIRE,.settled = SETTLED,.row = HELD,.own = FOREIGN,.turn = BEHIND},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a key that cools is busy for everybody",
		{.op = ACQUIRE,.settled = SETTLED,.row = COOLING},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a key that has no row, or a free one, is granted",
		{.op = ACQUIRE,.settled = SETTLED,.row = ABSENT | FREE,.used = UNUSED,.turn = FIRST},
	DLOCK_DO_GRANT, DLOCK_IS_GRANTED, 0},
	{"acquire: an expired lock is granted to anyone, including its former holder",
		{.op = ACQUIRE,.settled = SETTLED,.row = EXPIRED,.used = UNUSED,.turn = FIRST},
	DLOCK_DO_GRANT, DLOCK_IS_GRANTED, 1},
	{"acquire: a row that is just being taken is busy, and so is an expired one that is fenced",
		{.op = ACQUIRE,.settled = SETTLED,.row = FREE | EXPIRED,.used = USED,.turn = FIRST},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a lapsed lock goes to the next one who wants it",
		{.op = ACQUIRE,.settled = SETTLED,.row = LAPSED,.used = UNUSED,.least = LONG_ENOUGH,.own = FOREIGN,.turn = FIRST},
	DLOCK_DO_GRANT, DLOCK_IS_GRANTED, 1},
	{"acquire: a lapsed lock that is fenced is busy",
		{.op = ACQUIRE,.settled = SETTLED,.row = LAPSED,.used = USED,.own = FOREIGN,.turn = FIRST},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a lapsed lock is busy for as long as it keeps the key at the least",
		{.op = ACQUIRE,.settled = SETTLED,.row = LAPSED,.used = UNUSED,.least = TOO_SHORT,.own = FOREIGN,.turn = FIRST},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a live lock is busy for a request without a higher priority",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = FIRST,.rank = NOT_HIGHER},
	NOTHING(DLOCK_IS_BUSY)},
	{"preemption: a holder without cleanup loses the lock at once",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.used = UNUSED,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = NO_CLEANUP},
	DLOCK_DO_GRANT, DLOCK_IS_GRANTED, 1},
	{"preemption: a holder with cleanup is asked to yield, whatever it does with the lock",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = IN_TIME},
	NOTHING(DLOCK_IS_ASKED)},
	{"preemption: when the time is up, a request with force gets the lock",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.used = UNUSED,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = TIME_UP,.force = FORCEFUL},
	DLOCK_DO_GRANT, DLOCK_IS_GRANTED, 1},
	{"preemption: a lock in use is busy when it could be taken",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.used = USED,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = TIME_UP,.force = FORCEFUL},
	NOTHING(DLOCK_IS_BUSY)},
	{"preemption: a lock in use is busy even if its holder has no cleanup",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.used = USED,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = NO_CLEANUP},
	NOTHING(DLOCK_IS_BUSY)},
	{"preemption: when the time is up, a request without force is refused",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = TIME_UP,.force = PATIENT},
	NOTHING(DLOCK_IS_REFUSED)},

	{"holder: a free key is not held",
		{.op = HOLDERS,.row = ABSENT | FREE},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"holder: an expired lock is not held, and never comes back",
		{.op = HOLDERS,.row = EXPIRED},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"holder: what cools is not held",
		{.op = HOLDERS,.row = COOLING},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"holder: another role is never the holder, whatever it names",
		{.op = HOLDERS,.row = HELD,.role = OTHER_ROLE},
	NOTHING(DLOCK_IS_HELD_BY_OTHER)},
	{"holder: with the wrong version, owner or session, or none, it is held by another",
		{.op = HOLDERS,.row = HELD,.role = SAME_ROLE,.naming = MISNAMED},
	NOTHING(DLOCK_IS_HELD_BY_OTHER)},
	{"refresh: the holder's grant is renewed, even if it has lapsed",
		{.op = REFRESH,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.hold = WITHIN},
	DLOCK_DO_RENEW, DLOCK_IS_HELD, 0},
	{"refresh, handover: not of a grant that was held for as long as allowed",
		{.op = REFRESH | HANDOVER,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.hold = HELD_OUT},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"release: the holder's grant ends, and the head's row stays",
		{.op = RELEASE,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.where = HEAD},
	DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, 0},
	{"release: the row of a place goes",
		{.op = RELEASE,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.where = PLACE,.cools = NO_COOLING},
	DLOCK_DO_REMOVE, DLOCK_IS_RELEASED, 0},
	{"release: the row of a place stays if it has to cool",
		{.op = RELEASE,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.where = PLACE,.cools = COOLS},
	DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, 0},
	{"check: the holder is told that it holds the lock, and nothing is written",
		{.op = CHECK,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.asked = NOT_ASKED},
	NOTHING(DLOCK_IS_HELD)},
	{"check: the holder is told that it was asked to yield",
		{.op = CHECK,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.asked = ASKED},
	NOTHING(DLOCK_IS_PREEMPTING)},
	{"fence: the holder's grant is pinned",
		{.op = FENCE,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.kind = ANY_KIND},
	DLOCK_DO_PIN, DLOCK_IS_HELD, 0},
	{"fence: the holder's exclusive grant is pinned where only such a grant counts",
		{.op = FENCE,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.where = HEAD,.kind = HEAD_ONLY},
	DLOCK_DO_PIN, DLOCK_IS_HELD, 0},
	{"fence: a place does not count where only an exclusive grant does",
		{.op = FENCE,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.where = PLACE,.kind = HEAD_ONLY},
	NOTHING(DLOCK_IS_HELD_BY_OTHER)},

	{"handover: the holder's grant gets a new version, even if it has lapsed",
		{.op = HANDOVER,.row = HELD,.role = SAME_ROLE,.naming = NAMED,.hold = WITHIN},
	DLOCK_DO_HAND_OVER, DLOCK_IS_GRANTED, 0},

	{"force: a free or expired lock is not held",
		{.op = FORCE,.row = ABSENT | FREE | EXPIRED},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"force: another version is not touched",
		{.op = FORCE,.row = HELD | COOLING,.naming = MISNAMED},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"force: a lock is taken away from any holder",
		{.op = FORCE,.row = HELD,.naming = NAMED,.where = HEAD},
	DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, 0},
	{"force: a place is taken away from any holder",
		{.op = FORCE,.row = HELD,.naming = NAMED,.where = PLACE,.cools = NO_COOLING},
	DLOCK_DO_REMOVE, DLOCK_IS_RELEASED, 0},
	{"force: a place that is taken away cools if it has to",
		{.op = FORCE,.row = HELD,.naming = NAMED,.where = PLACE,.cools = COOLS},
	DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, 0},
	{"force: ends the cooling",
		{.op = FORCE,.row = COOLING,.naming = NAMED},
	DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, 0},

	{"reaper: without a row there is nothing to do",
		{.op = REAP,.row = ABSENT},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: skips a row that another transaction is changing",
		{.op = REAP,.row = FREE | HELD | EXPIRED | COOLING,.settled = UNSETTLED},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: skips a live lock",
		{.op = REAP,.row = LIVE,.settled = SETTLED},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: keeps a lapsed lock for a while",
		{.op = REAP,.row = LAPSED,.settled = SETTLED,.lapsed = LATELY},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: removes a lock that lapsed long ago",
		{.op = REAP,.row = LAPSED,.settled = SETTLED,.lapsed = LONG_AGO},
	DLOCK_DO_REMOVE, DLOCK_IS_EXPIRED, 0},
	{"reaper: a lock that has expired and cools is no longer a grant",
		{.op = REAP,.row = COOLING,.settled = SETTLED,.left = OF_GRANT},
	DLOCK_DO_CLEAR, DLOCK_IS_EXPIRED, 0},
	{"reaper: keeps what cools",
		{.op = REAP,.row = COOLING,.settled = SETTLED,.left = LEFT_BEHIND},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: removes an expired lock at once",
		{.op = REAP,.row = EXPIRED,.settled = SETTLED},
	DLOCK_DO_REMOVE, DLOCK_IS_EXPIRED, 0},
	{"reaper: keeps a free row for a while",
		{.op = REAP,.row = FREE,.settled = SETTLED,.where = HEAD,.idle = RECENT},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: removes a row that has been free for long",
		{.op = REAP,.row = FREE,.settled = SETTLED,.where = HEAD,.idle = LONG_IDLE},
	DLOCK_DO_REMOVE, DLOCK_IS_IDLE, 0},
	{"reaper: removes a place that has cooled",
		{.op = REAP,.row = FREE,.settled = SETTLED,.where = PLACE},
	DLOCK_DO_REMOVE, DLOCK_IS_IDLE, 0},
};

static const DlockOp ops[] = {
	DLOCK_ACQUIRE, DLOCK_REFRESH, DLOCK_RELEASE, DLOCK_CHECK, DLOCK_FENCE,
	DLOCK_HANDOVER, DLOCK_FORCE, DLOCK_REAP
};

/* There is no default, so that the compiler warns of a missing operation. */
static int
op_bit(DlockOp op)
{
	switch (op)
	{
		case DLOCK_ACQUIRE:
			return ACQUIRE;
		case DLOCK_REFRESH:
			return REFRESH;
		case DLOCK_RELEASE:
			return RELEASE;
		case DLOCK_CHECK:
			return CHECK;
		case DLOCK_FENCE:
			return FENCE;
		case DLOCK_HANDOVER:
			return HANDOVER;
		case DLOCK_FORCE:
			return FORCE;
		case DLOCK_REAP:
			return REAP;
	}
	return 0;
}

/* The other fields of a row that does not exist must not matter. */
static const struct
{
	bool		exists;
	bool		held;
}			row_cases[] = {
	{true, true}, {true, false}, {false, false}, {false, true}
};

#define DAY			INT64CONST(86400000000)
#define TTL			(2 * DAY)

/* the current time, relative to the expiry */
static const int64 times[] = {-DAY, -1, 0, 1, DAY};

/* how long the grant keeps the key at the least, and after its end */
static const struct
{
	int64		at_least;
	int64		delay;
}			ending_cases[] = {
	{0, 0},
	{TTL, 0},
	{TTL + 1, 0},				/* renewed with a shorter TTL */
	{0, 1},
	{TTL - 1, DAY + 1},
	{TTL + 2, 1}
};

static const int64 lapses[] = {0, 1, DAY};

/* how long a grant may be held */
static const int64 max_holds[] = {0, DAY, TTL, 100 * DAY};

static const Oid our_role = 10;
static const struct
{
	Oid			role;
	int			fact;
}			role_cases[] = {
	{10, SAME_ROLE}, {11, OTHER_ROLE}, {InvalidOid, OTHER_ROLE}
};

#define VERSION		((INT64CONST(1) << 32) + 17)

typedef enum VersionFact
{
	NO_VERSION, RIGHT_VERSION, WRONG_VERSION
} VersionFact;

static const struct
{
	bool		by_version;
	int64		version;
	VersionFact fact;
}			version_cases[] = {
	{false, 0, NO_VERSION},
	{false, VERSION, NO_VERSION},
	{true, VERSION, RIGHT_VERSION},
	{true, VERSION - 1, WRONG_VERSION},
	{true, VERSION + 1, WRONG_VERSION},
	{true, 17, WRONG_VERSION},	/* the same low 32 bits */
	{true, -VERSION, WRONG_VERSION},
	{true, 0, WRONG_VERSION}
};

/* equal names at different addresses, as in the server */
static const char alice[] = "alice";
static const char alice_too[] = "alice";

static const struct
{
	const char *of_grant;
	const char *of_request;
	int			fact;
}			owner_cases[] = {
	{NULL, NULL, NO_OWNER},
	{alice, NULL, NO_OWNER},
	{alice, alice_too, SAME_OWNER},
	{"", "", SAME_OWNER},
	{alice, "bob", OTHER_OWNER},
	{alice, "alic", OTHER_OWNER},
	{alice, "alice ", OTHER_OWNER},
	{alice, "Alice", OTHER_OWNER},
	{alice, "", OTHER_OWNER},
	{"", alice, OTHER_OWNER},
	{NULL, alice, OTHER_OWNER},
	{NULL, "", OTHER_OWNER}
};

/* by version, owner, session, or several; all that are given must be right */
static int
naming(VersionFact version, int owner, bool pid_given, bool pid_right)
{
	if (version == WRONG_VERSION || owner == OTHER_OWNER ||
		(pid_given && !pid_right))
		return MISNAMED;
	if (version == NO_VERSION && owner == NO_OWNER && !pid_given)
		return MISNAMED;
	return NAMED;
}

static const int64 lingers[] = {0, 10000000};

/* how long the row has been free, relative to the linger */
static const struct
{
	int64		offset;
	int			fact;
}			idle_cases[] = {
	{-1, RECENT}, {0, LONG_IDLE}, {1, LONG_IDLE}
};

#define CLEANUP		INT64CONST(5000000)
#define FAR			INT64CONST(1000000000)

static const int64 cleanups[] = {0, CLEANUP};

/* who was asked, when, and until when we wait, relative to now */
typedef enum AskedFact
{
	NOBODY, ALL, LISTED, ANOTHER
} AskedFact;

static const struct
{
	AskedFact	asked;
	int64		ago;
	int64		until;
	int			fact;
}			yield_cases[] = {
	{NOBODY, 0, FAR, IN_TIME},	/* this is the first look */
	{NOBODY, 0, 1, IN_TIME},
	{NOBODY, 0, 0, TIME_UP},	/* a try leaves no time */
	{ALL, CLEANUP - 1, FAR, IN_TIME},
	{ALL, CLEANUP, FAR, TIME_UP},
	{ALL, 1, 0, TIME_UP},		/* our own wait ends first */
	{LISTED, CLEANUP - 1, FAR, IN_TIME},
	{LISTED, CLEANUP, FAR, TIME_UP},
	{LISTED, 1, 0, TIME_UP},
	{ANOTHER, FAR, FAR, IN_TIME}	/* that was for another grant */
};

static const struct
{
	int32		ours;
	int32		holders;
	int			fact;
}			rank_cases[] = {
	{0, 1, NOT_HIGHER}, {PG_INT32_MAX, PG_INT32_MAX, NOT_HIGHER},
	{PG_INT32_MAX, PG_INT32_MAX - 1, HIGHER}
};

/* the session that a grant ends with, and the one that a release names */
static const struct
{
	int32		of_grant;
	int32		of_request;
	bool		given;
	bool		right;
}			pid_cases[] = {
	{0, 0, false, false},
	{4711, 0, false, false},
	{4711, 4711, true, true},
	{4711, 4712, true, false},
	{0, 4711, true, false}
};

static bool
matters(int fact, int when)
{
	return when == 0 || (fact & when) != 0;
}

static bool
meets(const Facts *facts, const Facts *when)
{
	return matters(facts->op, when->op) &&
		matters(facts->row, when->row) &&
		matters(facts->settled, when->settled) &&
		matters(facts->role, when->role) &&
		matters(facts->owner, when->owner) &&
		matters(facts->naming, when->naming) &&
		matters(facts->idle, when->idle) &&
		matters(facts->own, when->own) &&
		matters(facts->turn, when->turn) &&
		matters(facts->rank, when->rank) &&
		matters(facts->yield, when->yield) &&
		matters(facts->force, when->force) &&
		matters(facts->asked, when->asked) &&
		matters(facts->where, when->where) &&
		matters(facts->used, when->used) &&
		matters(facts->left, when->left) &&
		matters(facts->least, when->least) &&
		matters(facts->cools, when->cools) &&
		matters(facts->lapsed, when->lapsed) &&
		matters(facts->kind, when->kind) &&
		matters(facts->hold, when->hold);
}

static long met[lengthof(rules)];
static long wrong[lengthof(rules)];
static long combinations = 0;
static long without_rule = 0;
static long with_two_rules = 0;
static long arguments_changed = 0;
static long wrong_row = 0;
static long differs_without_row = 0;
static long wrong_cooling = 0;

static void
show(const char *problem, const Facts *facts, const DlockState *state,
	 const DlockRequest *request, int64 now, DlockVerdict verdict)
{
	printf("# %s: op %d row %d settled %d role %d owner %d naming %d idle %d\n",
		   problem, facts->op, facts->row, facts->settled, facts->role,
		   facts->owner, facts->naming, facts->idle);
	printf("#   own %d turn %d rank %d yield %d force %d asked %d where %d used %d\n",
		   facts->own, facts->turn, facts->rank, facts->yield, facts->force,
		   facts->asked, facts->where, facts->used);
	printf("#   left %d least %d cools %d lapsed %d kind %d hold %d\n",
		   facts->left, facts->least, facts->cools, facts->lapsed, facts->kind, facts->hold);
	printf("#   grant: version %lld owner %s expires %lld idle since %lld\n",
		   (long long) state->version,
		   state->terms.owner != NULL ? state->terms.owner : "(none)",
		   (long long) state->expires, (long long) state->idle_since);
	printf("#   request: %s %lld owner %s linger %lld\n",
		   request->by_version ? "version" : "no version",
		   (long long) request->version,
		   request->terms.owner != NULL ? request->terms.owner : "(none)",
		   (long long) request->linger);
	printf("#   now %lld: action %d answer %d ends %d cools until %lld\n",
		   (long long) now, (int) verdict.action, (int) verdict.answer,
		   verdict.nends, (long long) verdict.cools_until);
}

/* A verdict must be about the row that exists, or about none. */
static bool
right_row(const Facts *facts, const DlockVerdict *verdict)
{
	if (facts->row == ABSENT)
		return verdict->row == DLOCK_NO_ROW || facts->settled == UNSETTLED;
	return verdict->action == DLOCK_DO_NOTHING || verdict->row == 0;
}

/* How long a grant that ends keeps others out; 0: no longer. */
static int64
cooling(const DlockState *state, bool is_lost, int64 now)
{
	int64		until = state->acquired + state->terms.at_least;

	if (is_lost && state->terms.delay > 0 && now + state->terms.delay > until)
		until = now + state->terms.delay;
	return until > now ? until : 0;
}

/* The end of the cooling must be the one that the contract says. */
static bool
right_cooling(const Facts *facts, const DlockState *state,
			  const DlockRequest *request, int64 now, const DlockVerdict *verdict)
{
	int64		expected = 0;

	if (verdict->action == DLOCK_DO_CLEAR && facts->row != COOLING)
		expected = cooling(state, request->op == DLOCK_FORCE || request->is_lost, now);
	else if (verdict->action == DLOCK_DO_CLEAR && request->op == DLOCK_REAP)
	{
		expected = state->acquired + state->terms.at_least;
		if (state->expires + state->terms.delay > expected &&
			(state->terms.delay > 0 || !state->gone))
			expected = state->expires + state->terms.delay;
	}
	return verdict->cools_until == expected;
}

static void
try_one(const Facts *facts, DlockState *state, const DlockRequest *request,
		const DlockTurn *turn, int64 now)
{
	DlockState	state_before = *state;
	const DlockRequest request_before = *request;
	const DlockTurn turn_before = *turn;
	DlockVerdict verdict = dlock_rules_decide(state, 1, request, turn, now);
	int			found = -1;

	combinations++;
	state_before.obstacle = state->obstacle;
	state_before.yields = state->yields;
	state_before.ends = state->ends;
	if (memcmp(state, &state_before, sizeof(*state)) != 0 ||
		memcmp(request, &request_before, sizeof(*request)) != 0 ||
		memcmp(turn, &turn_before, sizeof(*turn)) != 0)
		arguments_changed++;
	if (!right_row(facts, &verdict) && wrong_row++ == 0)
		show("wrong row", facts, state, request, now, verdict);
	if (!right_cooling(facts, state, request, now, &verdict) && wrong_cooling++ == 0)
		show("wrong cooling", facts, state, request, now, verdict);

	/* no rows must mean the same as a row that does not exist */
	if (facts->row == ABSENT && facts->settled == SETTLED)
	{
		DlockVerdict none = dlock_rules_decide(NULL, 0, request, turn, now);

		if ((none.action != verdict.action || none.answer != verdict.answer ||
			 none.row != verdict.row || none.nends != verdict.nends) &&
			differs_without_row++ == 0)
			show("differs without a row", facts, state, request, now, none);
	}

	for (int i = 0; i < (int) lengthof(rules); i++)
	{
		if (!meets(facts, &rules[i].when))
			continue;
		if (found >= 0 && with_two_rules++ == 0)
			show("two rules", facts, state, request, now, verdict);
		found = i;
	}
	if (found < 0)
	{
		if (without_rule++ == 0)
			show("no rule", facts, state, request, now, verdict);
		return;
	}

	met[found]++;
	if (verdict.action != rules[found].action ||
		verdict.answer != rules[found].answer ||
		verdict.nends != rules[found].nends)
	{
		if (wrong[found]++ == 0)
			show(rules[found].says, facts, state, request, now, verdict);
	}
}

static int	tests = 0;
static int	failures = 0;

static void
ok(bool passed, const char *name, long count)
{
	if (!passed)
		failures++;
	printf("%s %d - %s (%ld)\n", passed ? "ok" : "not ok", ++tests, name, count);
}

/* The next digit of a number whose digits choose the cases. */
static int
pick(long *rest, int ncases)
{
	int			chosen = *rest % ncases;

	*rest /= ncases;
	return chosen;
}

/* What time has made of the row, by the contract. */
static int
phase(const DlockState *state, int64 now)
{
	bool		has_ended = state->gone || now >= state->expires;

	if (!state->exists)
		return ABSENT;
	if (!state->held)
		return now < state->expires ? COOLING : FREE;
	if (!has_ended)
		return LIVE;
	if (state->terms.lazy && !state->gone)
		return LAPSED;
	if (now < state->acquired + state->terms.at_least)
		return COOLING;

	/* when a session went is not known, so its grant cools as if it expired */
	if (state->terms.delay > 0 && now < state->expires + state->terms.delay)
		return COOLING;
	return EXPIRED;
}

/*
 * Test combination n of an operation; false if there are fewer.  For what does
 * not matter to the operation, one value is enough.
 */
static bool
try_combination(DlockOp op, long n)
{
	const int64 expires = INT64CONST(800000000000000);
	bool		acquire = op == DLOCK_ACQUIRE;
	bool		reap = op == DLOCK_REAP;
	bool		ends = op == DLOCK_RELEASE || op == DLOCK_FORCE || reap;
	int			behind = acquire ? pick(&n, 2) : 0;
	int			cleanup = acquire ? pick(&n, lengthof(cleanups)) : 0;
	int			yield = acquire ? pick(&n, lengthof(yield_cases)) : 0;
	int			rank = acquire ? pick(&n, lengthof(rank_cases)) : 0;
	int			force = acquire ? pick(&n, 2) : 0;
	int			used = acquire ? pick(&n, 2) : 0;
	int			version = acquire || reap ? 0 : pick(&n, lengthof(version_cases));
	int			asked = op == DLOCK_CHECK ? pick(&n, 2) : 0;
	int			pid = op == DLOCK_RELEASE ? pick(&n, lengthof(pid_cases)) : 0;
	int			lost = op == DLOCK_RELEASE ? pick(&n, 2) : 0;
	int			head_only = op == DLOCK_FENCE ? pick(&n, 2) : 0;
	int			to_itself = op == DLOCK_HANDOVER ? pick(&n, 2) : 0;
	int			hold = acquire || op == DLOCK_REFRESH || op == DLOCK_HANDOVER ?
		pick(&n, lengthof(max_holds)) : 0;
	int			place = acquire ? 0 : pick(&n, 2);
	int			gone = pick(&n, 2);
	int			lazy = pick(&n, 2);
	int			ending = acquire || ends ? pick(&n, lengthof(ending_cases)) : 0;
	int			row = pick(&n, lengthof(row_cases));
	int			time = pick(&n, lengthof(times));
	int			unsettled = pick(&n, 2);
	int			role = reap ? 0 : pick(&n, lengthof(role_cases));
	int			owner = reap ? 0 : pick(&n, lengthof(owner_cases));
	int			linger = reap ? pick(&n, lengthof(lingers)) : 0;
	int			idle = reap ? pick(&n, lengthof(idle_cases)) : 0;
	int			lapse = reap ? pick(&n, lengthof(lapses)) : 0;
	int64		now = expires + times[time];
	DlockState	state;
	DlockRequest request;
	DlockTurn	turn;
	Facts		facts;

	if (n > 0)
		return false;

	/* fields that are not set below count as not given */
	memset(&state, 0, sizeof(state));
	memset(&request, 0, sizeof(request));
	memset(&turn, 0, sizeof(turn));

	state.exists = row_cases[row].exists;
	state.held = row_cases[row].held;
	state.unsettled = unsettled;
	state.used = used && state.exists && !unsettled;
	state.slot = place ? 4711 : DLOCK_HEAD;
	state.terms.capacity = place ? 2 : DLOCK_EXCLUSIVE;
	state.terms.role = our_role;
	state.version = VERSION;
	state.terms.owner = owner_cases[owner].of_grant;
	state.terms.lazy = lazy;
	state.terms.at_least = ending_cases[ending].at_least;
	state.terms.delay = ending_cases[ending].delay;
	state.acquired = expires - TTL;
	state.expires = expires;
	state.gone = gone;
	state.asked = asked;
	state.terms.priority = rank_cases[rank].holders;
	state.terms.cleanup = cleanups[cleanup];
	state.pid = pid_cases[pid].of_grant;
	state.idle_since = now - lingers[linger] - idle_cases[idle].offset;

	request.op = op;
	request.terms.role = role_cases[role].role;
	request.by_version = version_cases[version].by_version;
	request.version = version_cases[version].version;
	request.terms.owner = owner_cases[owner].of_request;
	request.terms.capacity = DLOCK_EXCLUSIVE;
	request.linger = lingers[linger];
	request.lapse = lapses[lapse];
	request.max_hold = max_holds[hold];
	request.pid = pid_cases[pid].of_request;
	request.is_lost = lost;
	request.exclusive_only = head_only;
	request.slot = to_itself ? state.slot : DLOCK_HEAD;
	turn.behind = behind;
	request.terms.priority = rank_cases[rank].ours;
	request.terms.force = force;
	turn.asking.all = yield_cases[yield].asked == ALL;
	turn.asking.since = now - yield_cases[yield].ago;
	turn.asking.n = yield_cases[yield].asked >= LISTED;
	turn.asking.one[0].version = yield_cases[yield].asked == LISTED ? VERSION : VERSION - 1;
	turn.asking.one[0].since = now - yield_cases[yield].ago;
	turn.until = now + yield_cases[yield].until;

	facts.op = op_bit(op);
	facts.row = phase(&state, now);
	facts.settled = unsettled ? UNSETTLED : SETTLED;
	facts.role = role_cases[role].fact;
	facts.owner = owner_cases[owner].fact;
	facts.naming = naming(version_cases[version].fact, owner_cases[owner].fact,
						  pid_cases[pid].given, pid_cases[pid].right);
	if (op == DLOCK_FORCE)
		facts.naming = request.version == VERSION ? NAMED : MISNAMED;
	if (op == DLOCK_HANDOVER)	/* its owner is the next one */
		facts.naming = version_cases[version].fact == RIGHT_VERSION ? NAMED : MISNAMED;
	facts.hold = max_holds[hold] != 0 && now - state.acquired >= max_holds[hold] ?
		HELD_OUT : WITHIN;
	facts.own = facts.role == SAME_ROLE && facts.owner == SAME_OWNER ? OWN : FOREIGN;
	if (facts.row == LAPSED && facts.hold == HELD_OUT)
		facts.own = FOREIGN;	/* its owner is like anybody who wants it */
	facts.turn = behind ? BEHIND : FIRST;
	facts.rank = rank_cases[rank].fact;
	facts.yield = cleanups[cleanup] == 0 ? NO_CLEANUP : yield_cases[yield].fact;
	facts.force = force ? FORCEFUL : PATIENT;
	facts.asked = asked ? ASKED : NOT_ASKED;
	facts.idle = idle_cases[idle].fact;
	facts.where = place ? PLACE : HEAD;
	facts.used = state.used ? USED : UNUSED;
	facts.left = state.held ? OF_GRANT : LEFT_BEHIND;
	facts.least = now < state.acquired + state.terms.at_least ? TOO_SHORT : LONG_ENOUGH;
	facts.cools = cooling(&state, op == DLOCK_FORCE || lost, now) != 0 ? COOLS : NO_COOLING;
	facts.lapsed = now - expires >= lapses[lapse] ? LONG_AGO : LATELY;
	facts.kind = head_only ? HEAD_ONLY : ANY_KIND;

	try_one(&facts, &state, &request, &turn, now);
	return true;
}

int
main(void)
{
	for (int op = 0; op < (int) lengthof(ops); op++)
		for (long n = 0; try_combination(ops[op], n); n++)
			;

	for (int i = 0; i < (int) lengthof(rules); i++)
		ok(met[i] > 0 && wrong[i] == 0, rules[i].says, met[i]);
	ok(without_rule == 0, "every combination matches a rule", combinations);
	ok(with_two_rules == 0, "no combination matches two rules", combinations);
	ok(wrong_row == 0, "a verdict names the row that it is about", combinations);
	ok(differs_without_row == 0, "no rows mean the same as a row that does not exist", combinations);
	ok(wrong_cooling == 0, "a grant that ends keeps others out for as long as it says", combinations);
	ok(arguments_changed == 0, "the arguments are not changed", combinations);
	printf("1..%d\n", tests);
	return failures == 0 ? 0 : 1;
}
