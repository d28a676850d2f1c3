/*-------------------------------------------------------------------------
 *
 * fsm_test.c
 *	  Tests the whole transition table of src/fsm.c without a server.
 *
 * The test calls dlock_fsm_decide() with every combination of request, row,
 * caller, way of naming the grant and time, and compares the result with the
 * rules below.  These follow the contract and do not depend on the order of the
 * checks in the code.  Each combination must match exactly one rule, and each
 * rule must be matched, so the test finds both gaps and overlaps.
 *
 * To extend it: add a new operation to ops[] and op_bit().  Add anything else
 * that affects a decision as a field of Facts, compare it in meets(), and add a
 * list of its cases to try_combination().  The test then reports a combination
 * that no rule covers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "../src/fsm.h"

/* only src/fsm.o is linked, so use the C library's printf */
#undef printf

/* operations */
#define ACQUIRE		(1 << 0)
#define REFRESH		(1 << 1)
#define RELEASE		(1 << 2)
#define CHECK		(1 << 3)
#define FENCE		(1 << 4)
#define FORCE		(1 << 5)
#define REAP		(1 << 6)
#define HOLDERS		(REFRESH | RELEASE | CHECK | FENCE)

/* the row */
#define ABSENT		(1 << 0)
#define FREE		(1 << 1)
#define LIVE		(1 << 2)
#define EXPIRED		(1 << 3)

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
} Facts;

typedef struct Rule
{
	const char *says;
	Facts		when;
	DlockVerdict then;
} Rule;

#define NOTHING(answer)		{DLOCK_DO_NOTHING, answer, false, 0}

/* a field that does not matter to a rule is 0 */
static const Rule rules[] = {
	{"acquire: a key that another transaction is changing is busy",
		{.op = ACQUIRE,.settled = UNSETTLED},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: the same owner gets its grant again, renewed, even if others wait",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = OWN},
	{DLOCK_DO_RENEW, DLOCK_IS_GRANTED, false, 0}},
	{"acquire: a request does not overtake the queue, even if the key is free",
		{.op = ACQUIRE,.settled = SETTLED,.row = ABSENT | FREE | EXPIRED,.turn = BEHIND},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a request does not overtake the queue, whatever its priority",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = BEHIND},
	NOTHING(DLOCK_IS_BUSY)},
	{"acquire: a key that has no row, or a free one, is granted",
		{.op = ACQUIRE,.settled = SETTLED,.row = ABSENT | FREE,.turn = FIRST},
	{DLOCK_DO_GRANT, DLOCK_IS_GRANTED, false, 0}},
	{"acquire: an expired lock is granted to anyone, including its former holder",
		{.op = ACQUIRE,.settled = SETTLED,.row = EXPIRED,.turn = FIRST},
	{DLOCK_DO_GRANT, DLOCK_IS_GRANTED, false, 0}},
	{"acquire: a live lock is busy for a request without a higher priority",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = FIRST,.rank = NOT_HIGHER},
	NOTHING(DLOCK_IS_BUSY)},
	{"preemption: a holder without cleanup loses the lock at once",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = NO_CLEANUP},
	{DLOCK_DO_GRANT, DLOCK_IS_GRANTED, true, 0}},
	{"preemption: a holder with cleanup is asked to yield",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = IN_TIME},
	NOTHING(DLOCK_IS_ASKED)},
	{"preemption: when the time is up, a request with force gets the lock",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = TIME_UP,.force = FORCEFUL},
	{DLOCK_DO_GRANT, DLOCK_IS_GRANTED, true, 0}},
	{"preemption: when the time is up, a request without force is refused",
		{.op = ACQUIRE,.settled = SETTLED,.row = LIVE,.own = FOREIGN,.turn = FIRST,.rank = HIGHER,.yield = TIME_UP,.force = PATIENT},
	NOTHING(DLOCK_IS_REFUSED)},

	{"holder: a free key is not held",
		{.op = HOLDERS,.row = ABSENT | FREE},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"holder: an expired lock is not held, and never comes back",
		{.op = HOLDERS,.row = EXPIRED},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"holder: another role is never the holder, whatever it names",
		{.op = HOLDERS,.row = LIVE,.role = OTHER_ROLE},
	NOTHING(DLOCK_IS_HELD_BY_OTHER)},
	{"holder: with the wrong version, owner or session, or none, it is held by another",
		{.op = HOLDERS,.row = LIVE,.role = SAME_ROLE,.naming = MISNAMED},
	NOTHING(DLOCK_IS_HELD_BY_OTHER)},
	{"refresh: the holder's grant is renewed",
		{.op = REFRESH,.row = LIVE,.role = SAME_ROLE,.naming = NAMED},
	{DLOCK_DO_RENEW, DLOCK_IS_HELD, false, 0}},
	{"release: the holder's grant ends",
		{.op = RELEASE,.row = LIVE,.role = SAME_ROLE,.naming = NAMED},
	{DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, false, 0}},
	{"check: the holder is told that it holds the lock, and nothing is written",
		{.op = CHECK,.row = LIVE,.role = SAME_ROLE,.naming = NAMED,.asked = NOT_ASKED},
	NOTHING(DLOCK_IS_HELD)},
	{"check: the holder is told that it was asked to yield",
		{.op = CHECK,.row = LIVE,.role = SAME_ROLE,.naming = NAMED,.asked = ASKED},
	NOTHING(DLOCK_IS_PREEMPTING)},
	{"fence: the holder's grant is pinned",
		{.op = FENCE,.row = LIVE,.role = SAME_ROLE,.naming = NAMED},
	{DLOCK_DO_PIN, DLOCK_IS_HELD, false, 0}},

	{"force: a free or expired lock is not held",
		{.op = FORCE,.row = ABSENT | FREE | EXPIRED},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"force: a live lock is taken away from any holder",
		{.op = FORCE,.row = LIVE},
	{DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, false, 0}},

	{"reaper: without a row there is nothing to do",
		{.op = REAP,.row = ABSENT},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: skips a row that another transaction is changing",
		{.op = REAP,.row = FREE | LIVE | EXPIRED,.settled = UNSETTLED},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: skips a live lock",
		{.op = REAP,.row = LIVE,.settled = SETTLED},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: removes an expired lock at once",
		{.op = REAP,.row = EXPIRED,.settled = SETTLED},
	{DLOCK_DO_REMOVE, DLOCK_IS_EXPIRED, false, 0}},
	{"reaper: keeps a free row for a while",
		{.op = REAP,.row = FREE,.settled = SETTLED,.idle = RECENT},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: removes a row that has been free for long",
		{.op = REAP,.row = FREE,.settled = SETTLED,.idle = LONG_IDLE},
	{DLOCK_DO_REMOVE, DLOCK_IS_IDLE, false, 0}},
};

static const DlockOp ops[] = {
	DLOCK_ACQUIRE, DLOCK_REFRESH, DLOCK_RELEASE, DLOCK_CHECK, DLOCK_FENCE,
	DLOCK_FORCE, DLOCK_REAP
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

/* the current time, relative to the expiry */
static const struct
{
	int64		offset;
	int			row;
}			time_cases[] = {
	{-INT64CONST(86400000000), LIVE},
	{-1, LIVE},
	{0, EXPIRED},
	{1, EXPIRED},
	{INT64CONST(86400000000), EXPIRED}
};

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

/* when the holder was asked, and until when we wait, relative to now */
static const struct
{
	int64		asked_version;
	int64		asked_ago;
	int64		until;
	int			fact;
}			yield_cases[] = {
	{0, 0, FAR, IN_TIME},		/* this is the first look */
	{0, 0, 1, IN_TIME},
	{0, 0, 0, TIME_UP},			/* a try leaves no time */
	{VERSION, CLEANUP - 1, FAR, IN_TIME},
	{VERSION, CLEANUP, FAR, TIME_UP},
	{VERSION, 1, 0, TIME_UP},	/* our own wait ends first */
	{VERSION - 1, FAR, FAR, IN_TIME}	/* that was for another grant */
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
		matters(facts->asked, when->asked);
}

static long met[lengthof(rules)];
static long wrong[lengthof(rules)];
static long combinations = 0;
static long without_rule = 0;
static long with_two_rules = 0;
static long arguments_changed = 0;
static long wrong_row = 0;
static long differs_without_row = 0;

static void
show(const char *problem, const Facts *facts, const DlockState *state,
	 const DlockRequest *request, int64 now, DlockVerdict verdict)
{
	printf("# %s: op %d row %d settled %d role %d owner %d naming %d idle %d\n",
		   problem, facts->op, facts->row, facts->settled, facts->role,
		   facts->owner, facts->naming, facts->idle);
	printf("#   own %d turn %d rank %d yield %d force %d asked %d\n",
		   facts->own, facts->turn, facts->rank, facts->yield, facts->force,
		   facts->asked);
	printf("#   grant: version %lld owner %s expires %lld idle since %lld\n",
		   (long long) state->version,
		   state->owner != NULL ? state->owner : "(none)",
		   (long long) state->expires, (long long) state->idle_since);
	printf("#   request: %s %lld owner %s linger %lld\n",
		   request->by_version ? "version" : "no version",
		   (long long) request->version,
		   request->owner != NULL ? request->owner : "(none)",
		   (long long) request->linger);
	printf("#   now %lld: action %d answer %d\n",
		   (long long) now, (int) verdict.action, (int) verdict.answer);
}

/* A verdict must be about the row that exists, or about none. */
static bool
right_row(const Facts *facts, const DlockVerdict *verdict)
{
	if (facts->row == ABSENT)
		return verdict->row == DLOCK_NO_ROW || facts->settled == UNSETTLED;
	return verdict->action == DLOCK_DO_NOTHING || verdict->row == 0;
}

static void
try_one(const Facts *facts, const DlockState *state, const DlockRequest *request,
		const DlockTurn *turn, int64 now)
{
	const DlockState state_before = *state;
	const DlockRequest request_before = *request;
	const DlockTurn turn_before = *turn;
	DlockVerdict verdict = dlock_fsm_decide(state, 1, request, turn, now);
	int			found = -1;

	combinations++;
	if (memcmp(state, &state_before, sizeof(*state)) != 0 ||
		memcmp(request, &request_before, sizeof(*request)) != 0 ||
		memcmp(turn, &turn_before, sizeof(*turn)) != 0)
		arguments_changed++;
	if (!right_row(facts, &verdict) && wrong_row++ == 0)
		show("wrong row", facts, state, request, now, verdict);

	/* no rows must mean the same as a row that does not exist */
	if (facts->row == ABSENT && facts->settled == SETTLED)
	{
		DlockVerdict none = dlock_fsm_decide(NULL, 0, request, turn, now);

		if (memcmp(&none, &verdict, sizeof(none)) != 0 && differs_without_row++ == 0)
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
	if (verdict.action != rules[found].then.action ||
		verdict.answer != rules[found].then.answer ||
		verdict.preempts != rules[found].then.preempts)
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

/*
 * Test combination n of an operation; false if there are fewer.  For what does
 * not matter to the operation, one value is enough.
 */
static bool
try_combination(DlockOp op, long n)
{
	const int64 expires = INT64CONST(800000000000000);
	bool		acquire = op == DLOCK_ACQUIRE;
	int			behind = acquire ? pick(&n, 2) : 0;
	int			cleanup = acquire ? pick(&n, lengthof(cleanups)) : 0;
	int			yield = acquire ? pick(&n, lengthof(yield_cases)) : 0;
	int			rank = acquire ? pick(&n, lengthof(rank_cases)) : 0;
	int			force = acquire ? pick(&n, 2) : 0;
	int			version = acquire ? 0 : pick(&n, lengthof(version_cases));
	int			asked = acquire ? 0 : pick(&n, 2);
	int			pid = op == DLOCK_RELEASE ? pick(&n, lengthof(pid_cases)) : 0;
	int			gone = pick(&n, 2);
	int			row = pick(&n, lengthof(row_cases));
	int			time = pick(&n, lengthof(time_cases));
	int			unsettled = pick(&n, 2);
	int			role = pick(&n, lengthof(role_cases));
	int			owner = pick(&n, lengthof(owner_cases));
	int			linger = pick(&n, lengthof(lingers));
	int			idle = pick(&n, lengthof(idle_cases));
	int64		now = expires + time_cases[time].offset;
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
	state.role = our_role;
	state.version = VERSION;
	state.owner = owner_cases[owner].of_grant;
	state.expires = expires;
	state.gone = gone;
	state.asked = asked;
	state.priority = rank_cases[rank].holders;
	state.cleanup = cleanups[cleanup];
	state.pid = pid_cases[pid].of_grant;
	state.idle_since = now - lingers[linger] - idle_cases[idle].offset;

	request.op = op;
	request.role = role_cases[role].role;
	request.by_version = version_cases[version].by_version;
	request.version = version_cases[version].version;
	request.owner = owner_cases[owner].of_request;
	request.linger = lingers[linger];
	request.pid = pid_cases[pid].of_request;
	turn.behind = behind;
	request.priority = rank_cases[rank].ours;
	request.force = force;
	turn.asked_version = yield_cases[yield].asked_version;
	turn.asked_at = now - yield_cases[yield].asked_ago;
	turn.until = now + yield_cases[yield].until;

	facts.op = op_bit(op);
	if (!state.exists)
		facts.row = ABSENT;
	else if (!state.held)
		facts.row = FREE;
	else
		facts.row = gone ? EXPIRED : time_cases[time].row;
	facts.settled = unsettled ? UNSETTLED : SETTLED;
	facts.role = role_cases[role].fact;
	facts.owner = owner_cases[owner].fact;
	facts.naming = naming(version_cases[version].fact, owner_cases[owner].fact,
						  pid_cases[pid].given, pid_cases[pid].right);
	facts.own = facts.role == SAME_ROLE && facts.owner == SAME_OWNER ? OWN : FOREIGN;
	facts.turn = behind ? BEHIND : FIRST;
	facts.rank = rank_cases[rank].fact;
	facts.yield = cleanups[cleanup] == 0 ? NO_CLEANUP : yield_cases[yield].fact;
	facts.force = force ? FORCEFUL : PATIENT;
	facts.asked = asked ? ASKED : NOT_ASKED;
	facts.idle = idle_cases[idle].fact;

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
	ok(arguments_changed == 0, "the arguments are not changed", combinations);
	printf("1..%d\n", tests);
	return failures == 0 ? 0 : 1;
}
