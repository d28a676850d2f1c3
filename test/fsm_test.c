/*-------------------------------------------------------------------------
 *
 * fsm_test.c
 *	  The whole transition table of src/fsm.c, without a server.
 *
 * Every combination of what is asked, what the row says, who asks, how the
 * grant is named and what time it is, is put to dlock_fsm_decide() and
 * compared with the rules below.  These are written from the contract: they
 * know nothing of the order in which the code asks its questions.  Each
 * combination must meet exactly one rule, and each rule must be met, so
 * neither a gap nor an overlap goes unseen.
 *
 * To extend it: a new operation goes to ops[] and op_bit(); a new thing that
 * decides becomes a field of Facts and one more list of cases in
 * try_combination().  The combinations that no rule speaks of are then listed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "../src/fsm.h"

/* only src/fsm.o is linked, so stay with the C library's own */
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

/* the role of the one who asks, beside that of the grant */
#define SAME_ROLE	(1 << 0)
#define OTHER_ROLE	(1 << 1)

/* the owner of the one who asks, beside that of the grant */
#define NO_OWNER	(1 << 0)	/* not given */
#define SAME_OWNER	(1 << 1)
#define OTHER_OWNER (1 << 2)	/* or the grant has none */

/* version and owner together */
#define NAMED		(1 << 0)
#define MISNAMED	(1 << 1)

/* a row that is not held: since when? */
#define RECENT		(1 << 0)	/* less than the linger */
#define LONG_IDLE	(1 << 1)

#define ANY			(~0)

typedef struct Facts
{
	int			op;
	int			row;
	int			settled;
	int			role;
	int			owner;
	int			naming;
	int			idle;
} Facts;

typedef struct Rule
{
	const char *says;
	Facts		when;
	DlockVerdict then;
} Rule;

#define NOTHING(answer)		{DLOCK_DO_NOTHING, answer}

static const Rule rules[] = {
	{"try: a key in another transaction's hands is busy",
		{ACQUIRE, ANY, UNSETTLED, ANY, ANY, ANY, ANY},
	NOTHING(DLOCK_IS_BUSY)},
	{"try: a key that has no row, or a free one, is granted",
		{ACQUIRE, ABSENT | FREE, SETTLED, ANY, ANY, ANY, ANY},
	{DLOCK_DO_GRANT, DLOCK_IS_GRANTED}},
	{"try: an expired lock is free to anybody, a former holder included",
		{ACQUIRE, EXPIRED, SETTLED, ANY, ANY, ANY, ANY},
	{DLOCK_DO_GRANT, DLOCK_IS_GRANTED}},
	{"try: the same owner gets its grant back, renewed",
		{ACQUIRE, LIVE, SETTLED, SAME_ROLE, SAME_OWNER, ANY, ANY},
	{DLOCK_DO_RENEW, DLOCK_IS_GRANTED}},
	{"try: the owner's name in another role's mouth is worth nothing",
		{ACQUIRE, LIVE, SETTLED, OTHER_ROLE, SAME_OWNER, ANY, ANY},
	NOTHING(DLOCK_IS_BUSY)},
	{"try: without the owner's name, a live lock is busy for all",
		{ACQUIRE, LIVE, SETTLED, ANY, NO_OWNER | OTHER_OWNER, ANY, ANY},
	NOTHING(DLOCK_IS_BUSY)},

	{"holder: what is free is not held",
		{HOLDERS, ABSENT | FREE, ANY, ANY, ANY, ANY, ANY},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"holder: what has expired is not held, and never comes back",
		{HOLDERS, EXPIRED, ANY, ANY, ANY, ANY, ANY},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"holder: another role is never the holder, whatever it names",
		{HOLDERS, LIVE, ANY, OTHER_ROLE, ANY, ANY, ANY},
	NOTHING(DLOCK_IS_HELD_BY_OTHER)},
	{"holder: another version, another owner or neither is another's",
		{HOLDERS, LIVE, ANY, SAME_ROLE, ANY, MISNAMED, ANY},
	NOTHING(DLOCK_IS_HELD_BY_OTHER)},
	{"refresh: the holder's grant is renewed",
		{REFRESH, LIVE, ANY, SAME_ROLE, ANY, NAMED, ANY},
	{DLOCK_DO_RENEW, DLOCK_IS_HELD}},
	{"release: the holder's grant ends",
		{RELEASE, LIVE, ANY, SAME_ROLE, ANY, NAMED, ANY},
	{DLOCK_DO_CLEAR, DLOCK_IS_RELEASED}},
	{"check: the holder hears that he is, and nothing is written",
		{CHECK, LIVE, ANY, SAME_ROLE, ANY, NAMED, ANY},
	NOTHING(DLOCK_IS_HELD)},
	{"fence: the holder's grant is pinned",
		{FENCE, LIVE, ANY, SAME_ROLE, ANY, NAMED, ANY},
	{DLOCK_DO_PIN, DLOCK_IS_HELD}},

	{"force: what is free or expired is not held",
		{FORCE, ABSENT | FREE | EXPIRED, ANY, ANY, ANY, ANY, ANY},
	NOTHING(DLOCK_IS_NOT_HELD)},
	{"force: a live lock is taken away from anybody",
		{FORCE, LIVE, ANY, ANY, ANY, ANY, ANY},
	{DLOCK_DO_CLEAR, DLOCK_IS_RELEASED}},

	{"reaper: no row, nothing to do",
		{REAP, ABSENT, ANY, ANY, ANY, ANY, ANY},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: leaves a row in another transaction's hands",
		{REAP, FREE | LIVE | EXPIRED, UNSETTLED, ANY, ANY, ANY, ANY},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: leaves a live lock",
		{REAP, LIVE, SETTLED, ANY, ANY, ANY, ANY},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: removes an expired lock at once",
		{REAP, EXPIRED, SETTLED, ANY, ANY, ANY, ANY},
	{DLOCK_DO_REMOVE, DLOCK_IS_EXPIRED}},
	{"reaper: keeps a free row for a while",
		{REAP, FREE, SETTLED, ANY, ANY, ANY, RECENT},
	NOTHING(DLOCK_IS_BUSY)},
	{"reaper: removes a row that has long been free",
		{REAP, FREE, SETTLED, ANY, ANY, ANY, LONG_IDLE},
	{DLOCK_DO_REMOVE, DLOCK_IS_IDLE}},
};

static const DlockOp ops[] = {
	DLOCK_ACQUIRE, DLOCK_REFRESH, DLOCK_RELEASE, DLOCK_CHECK, DLOCK_FENCE,
	DLOCK_FORCE, DLOCK_REAP
};

/* Without a default, so that the compiler tells of an operation left out. */
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

/* A grant or its remains; what an absent row says must not matter. */
static const struct
{
	bool		exists;
	bool		held;
}			row_cases[] = {
	{true, true}, {true, false}, {false, false}, {false, true}
};

/* now, from the expiry */
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
	{true, 17, WRONG_VERSION},	/* the same in 32 bits */
	{true, -VERSION, WRONG_VERSION},
	{true, 0, WRONG_VERSION}
};

/* two pointers to the same name, as in the server */
static const char alice[] = "alice";
static const char alice_too[] = "alice";

static const struct
{
	const char *of_grant;
	const char *of_claim;
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

/* by version, by owner or both; what is given must be right */
static int
naming(VersionFact version, int owner)
{
	if (version == WRONG_VERSION || owner == OTHER_OWNER)
		return MISNAMED;
	if (version == NO_VERSION && owner == NO_OWNER)
		return MISNAMED;
	return NAMED;
}

static const int64 lingers[] = {0, 10000000};

/* how long the row has been free, from the linger */
static const struct
{
	int64		offset;
	int			fact;
}			idle_cases[] = {
	{-1, RECENT}, {0, LONG_IDLE}, {1, LONG_IDLE}
};

static bool
meets(const Facts *facts, const Facts *when)
{
	return (facts->op & when->op) &&
		(facts->row & when->row) &&
		(facts->settled & when->settled) &&
		(facts->role & when->role) &&
		(facts->owner & when->owner) &&
		(facts->naming & when->naming) &&
		(facts->idle & when->idle);
}

static long met[lengthof(rules)];
static long wrong[lengthof(rules)];
static long combinations = 0;
static long without_rule = 0;
static long with_two_rules = 0;
static long arguments_changed = 0;

static void
show(const char *problem, const Facts *facts, const DlockState *state,
	 const DlockClaim *claim, int64 now, DlockVerdict verdict)
{
	printf("# %s: op %d row %d settled %d role %d owner %d naming %d idle %d\n",
		   problem, facts->op, facts->row, facts->settled, facts->role,
		   facts->owner, facts->naming, facts->idle);
	printf("#   grant: version %lld owner %s expires %lld idle since %lld\n",
		   (long long) state->version,
		   state->owner != NULL ? state->owner : "(none)",
		   (long long) state->expires, (long long) state->idle_since);
	printf("#   claim: %s %lld owner %s linger %lld\n",
		   claim->by_version ? "version" : "no version",
		   (long long) claim->version,
		   claim->owner != NULL ? claim->owner : "(none)",
		   (long long) claim->linger);
	printf("#   now %lld: action %d answer %d\n",
		   (long long) now, (int) verdict.action, (int) verdict.answer);
}

static void
try_one(const Facts *facts, const DlockState *state, const DlockClaim *claim,
		int64 now)
{
	const DlockState state_before = *state;
	const DlockClaim claim_before = *claim;
	DlockVerdict verdict = dlock_fsm_decide(state, claim, now);
	int			found = -1;

	combinations++;
	if (memcmp(state, &state_before, sizeof(*state)) != 0 ||
		memcmp(claim, &claim_before, sizeof(*claim)) != 0)
		arguments_changed++;

	for (int i = 0; i < (int) lengthof(rules); i++)
	{
		if (!meets(facts, &rules[i].when))
			continue;
		if (found >= 0 && with_two_rules++ == 0)
			show("two rules", facts, state, claim, now, verdict);
		found = i;
	}
	if (found < 0)
	{
		if (without_rule++ == 0)
			show("no rule", facts, state, claim, now, verdict);
		return;
	}

	met[found]++;
	if (verdict.action != rules[found].then.action ||
		verdict.answer != rules[found].then.answer)
	{
		if (wrong[found]++ == 0)
			show(rules[found].says, facts, state, claim, now, verdict);
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

/* The next digit of a number whose digits are the cases. */
static int
pick(long *rest, int ncases)
{
	int			chosen = *rest % ncases;

	*rest /= ncases;
	return chosen;
}

/* Puts combination n to the test; false: there are not so many. */
static bool
try_combination(long n)
{
	const int64 expires = INT64CONST(800000000000000);
	int			op = pick(&n, lengthof(ops));
	int			row = pick(&n, lengthof(row_cases));
	int			time = pick(&n, lengthof(time_cases));
	int			unsettled = pick(&n, 2);
	int			role = pick(&n, lengthof(role_cases));
	int			version = pick(&n, lengthof(version_cases));
	int			owner = pick(&n, lengthof(owner_cases));
	int			linger = pick(&n, lengthof(lingers));
	int			idle = pick(&n, lengthof(idle_cases));
	int64		now = expires + time_cases[time].offset;
	DlockState	state;
	DlockClaim	claim;
	Facts		facts;

	if (n > 0)
		return false;

	/* what is not set here is as if not asked for */
	memset(&state, 0, sizeof(state));
	memset(&claim, 0, sizeof(claim));

	state.exists = row_cases[row].exists;
	state.held = row_cases[row].held;
	state.unsettled = unsettled;
	state.role = our_role;
	state.version = VERSION;
	state.owner = owner_cases[owner].of_grant;
	state.expires = expires;
	state.idle_since = now - lingers[linger] - idle_cases[idle].offset;

	claim.op = ops[op];
	claim.role = role_cases[role].role;
	claim.by_version = version_cases[version].by_version;
	claim.version = version_cases[version].version;
	claim.owner = owner_cases[owner].of_claim;
	claim.linger = lingers[linger];

	facts.op = op_bit(ops[op]);
	if (!state.exists)
		facts.row = ABSENT;
	else if (!state.held)
		facts.row = FREE;
	else
		facts.row = time_cases[time].row;
	facts.settled = unsettled ? UNSETTLED : SETTLED;
	facts.role = role_cases[role].fact;
	facts.owner = owner_cases[owner].fact;
	facts.naming = naming(version_cases[version].fact, owner_cases[owner].fact);
	facts.idle = idle_cases[idle].fact;

	try_one(&facts, &state, &claim, now);
	return true;
}

int
main(void)
{
	while (try_combination(combinations))
		;

	for (int i = 0; i < (int) lengthof(rules); i++)
		ok(met[i] > 0 && wrong[i] == 0, rules[i].says, met[i]);
	ok(without_rule == 0, "every combination has a rule", combinations);
	ok(with_two_rules == 0, "no combination has two", combinations);
	ok(arguments_changed == 0, "the arguments are left alone", combinations);
	printf("1..%d\n", tests);
	return failures == 0 ? 0 : 1;
}
