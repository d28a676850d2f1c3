/*-------------------------------------------------------------------------
 *
 * lock_rules_rows_test.c
 *	  Tests the rules of src/rules/lock_rules.c for a key with several rows.
 *
 * A key has a head, or none, and up to three places.  The test puts every
 * combination of such rows to dlock_rules_decide(), with every kind of acquire and
 * with a handover of each row, and compares the verdict with that of expect(), which follows the contract
 * and shares no code with lock_rules.c: what a row means to others is a fact of its
 * case here, not something to be found out.  test/unit/lock_rules_test.c tests how these
 * facts follow from the columns of a row and the time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "rules/lock_rules.h"

/* only src/rules/lock_rules.o is linked, so use the C library's printf */
#undef printf

#define NOW			INT64CONST(800000000000000)
#define SECOND		INT64CONST(1000000)
#define MAX_PLACES	3
#define MAX_ROWS	(MAX_PLACES + 1)
#define OUR_ROLE	10
#define OUR_SLOT	(DLOCK_OWNED_SLOTS + 5)
#define PRIORITY	5

/* What a row means to a request of somebody else. */
typedef enum Meaning
{
	NOTHING_THERE,
	IS_OVER,					/* ends with the next grant, if it is in the
								 * way */
	GIVES_WAY,					/* the same, but is still its holder's */
	HOLDER,
	WALL						/* nothing helps but waiting */
} Meaning;

typedef enum Whose
{
	NOBODYS, ANOTHERS, OURS
} Whose;

/*
 * The cases of a row.  Times are relative to now.  "Ours" means the role and
 * owner of those requests that have an owner.
 */
typedef struct RowCase
{
	const char *name;
	Whose		whose;
	Meaning		meaning;
	bool		is_usable;		/* by its holder */
	bool		exists;
	bool		held;
	bool		unsettled;
	bool		used;
	bool		lazy;
	int64		expires;
	int64		at_least;
	int64		delay;
	int32		priority;
	int64		cleanup;
} RowCase;

#define TTL		(20 * SECOND)
#define LIVE	.exists = true, .held = true, .expires = SECOND
#define LATE	.exists = true, .held = true, .expires = -SECOND

static const RowCase cases[] = {
	{"live, equal priority", ANOTHERS, HOLDER, true, LIVE,.priority = PRIORITY},
	{"live, lower priority", ANOTHERS, HOLDER, true, LIVE,.priority = 1},
	{"live, lowest priority", ANOTHERS, HOLDER, true, LIVE,.priority = 0},
	{"live, lower, short cleanup", ANOTHERS, HOLDER, true, LIVE,.priority = 1,.cleanup = SECOND},
	{"live, lower, long cleanup", ANOTHERS, HOLDER, true, LIVE,.priority = 1,.cleanup = 10 * SECOND},
	{"live, lower, fenced", ANOTHERS, HOLDER, true, LIVE,.priority = 1,.used = true},
	{"live, ours", OURS, HOLDER, true, LIVE,.priority = 9},
	{"live, ours, fenced", OURS, HOLDER, true, LIVE,.used = true},
	{"live, being changed", ANOTHERS, WALL, true, LIVE,.unsettled = true},
	{"live, ours, being changed", OURS, WALL, false, LIVE,.unsettled = true},
	{"lapsed", ANOTHERS, GIVES_WAY, true, LATE,.lazy = true,.priority = 9},
	{"lapsed, fenced", ANOTHERS, WALL, true, LATE,.lazy = true,.used = true},
	{"lapsed, at_least not over", ANOTHERS, WALL, true, LATE,.lazy = true,.at_least = TTL + 2 * SECOND},
	{"lapsed, ours", OURS, GIVES_WAY, true, LATE,.lazy = true},
	{"expired", ANOTHERS, IS_OVER, false, LATE,.priority = 9},
	{"expired, fenced", ANOTHERS, WALL, false, LATE,.used = true},
	{"expired, ours", OURS, IS_OVER, false, LATE},
	{"expired, delayed", ANOTHERS, WALL, false, LATE,.delay = 2 * SECOND},
	{"expired, delayed, ours", OURS, WALL, false, LATE,.delay = 2 * SECOND},
	{"cooling", NOBODYS, WALL, false,.exists = true,.expires = 1},
	{"free", NOBODYS, NOTHING_THERE, false,.exists = true},
	{"free, being taken", NOBODYS, WALL, false,.exists = true,.used = true},
	{"not committed", NOBODYS, WALL, false,.unsettled = true},
};

/* The requests.  All have the same priority. */
typedef struct RequestCase
{
	int32		slots;
	bool		has_owner;
	bool		anew;			/* not the grant that the owner has */
	bool		force;
	bool		behind;
	int64		asked_ago;		/* all holders; 0: not asked yet */
	int64		until;			/* how much longer we wait */
} RequestCase;

static const int32 kinds[] = {DLOCK_EXCLUSIVE, DLOCK_SHARED, 2, 3};
static const int64 asked[] = {0, SECOND};
static const int64 untils[] = {0, 60 * SECOND};

typedef struct Key
{
	int			nrows;
	int			head;			/* a case, or -1: no row */
	int			nplaces;
	int			places[MAX_PLACES];
	DlockState	rows[MAX_ROWS];
	const RowCase *kinds[MAX_ROWS];
} Key;

/* What is expected. */
typedef struct Expected
{
	const char *rule;
	DlockAction action;
	DlockAnswer answer;
	int			row;			/* if there is an action */
	bool		upgrades;
	bool		ends[MAX_ROWS];
	bool		yields[MAX_ROWS];
} Expected;

#define RULES(X) \
	X(open_answer, "an owner whose row is in the balance is busy") \
	X(retry, "an owner that asks again gets the same grant") \
	X(anew, "an owner that asks for another grant is busy as long as it has one") \
	X(downgrade, "an owner's exclusive grant becomes a place at once, whoever waits") \
	X(queue, "no newcomer overtakes the queue") \
	X(wall, "busy, as long as what is in the way can only be waited for") \
	X(rank, "busy, as long as a holder has the same priority or a higher one") \
	X(refused, "refused, if a holder has not yielded in time") \
	X(asking, "asked, as long as a holder has time left") \
	X(in_use, "busy, if one that would have to end is in use") \
	X(alone, "an owner of a place who is the only one gets the whole key") \
	X(granted, "granted, if nothing is in the way") \
	X(takes, "granted, if what is in the way gives way") \
	X(handed, "a grant that is held is handed over, whatever else there is") \
	X(one_place, "a place is not handed over to an owner that has one") \
	X(not_held, "a grant that is not held is not handed over")

#define DECLARE(name, text) static const char rule_##name[] = text;
RULES(DECLARE)
#define LIST(name, text) rule_##name,
static const char *const rules[] = {RULES(LIST)};
static long met[lengthof(rules)];
static long wrong[lengthof(rules)];

static bool
is_head(const Key *key, int i)
{
	return key->head >= 0 && i == 0;
}

static bool
is_ours(const Key *key, const RequestCase *request, int i)
{
	return request->has_owner && key->kinds[i]->whose == OURS;
}

static Expected
busy(const char *rule)
{
	Expected	e = {.rule = rule,.answer = DLOCK_IS_BUSY,.row = DLOCK_NO_ROW};

	return e;
}

/*
 * Who makes room first among the places: what gives way, in the order of the
 * rows, then the lowest, the youngest.
 */
static bool
makes_room_before(const Key *key, int i, int j)
{
	const RowCase *a = key->kinds[i];
	const RowCase *b = key->kinds[j];

	if (a->meaning != b->meaning)
		return a->meaning < b->meaning;
	if (a->meaning <= GIVES_WAY)
		return i < j;
	if (a->meaning == HOLDER && a->priority != b->priority)
		return a->priority < b->priority;
	return key->rows[i].version > key->rows[j].version;
}

/* The row that a new grant is written to. */
static int
row_taken(const Key *key, const RequestCase *request)
{
	for (int i = 0; i < key->nrows; i++)
		if (key->rows[i].exists &&
			(request->slots == DLOCK_EXCLUSIVE ? is_head(key, i) :
			 request->has_owner && key->rows[i].slot == OUR_SLOT))
			return i;
	return DLOCK_NO_ROW;
}

/* Is it another place of several? */
static bool
is_competing(const Key *key, int taken, int i)
{
	return !is_head(key, i) && i != taken && key->kinds[i]->meaning != NOTHING_THERE;
}

/* Which rows have to end before the request can be granted. */
static void
in_the_way(const Key *key, const RequestCase *request, int own, bool *way)
{
	int			taken = row_taken(key, request);
	int			nplaces = 0;

	for (int i = 0; i < key->nrows; i++)
	{
		way[i] = i != own && key->kinds[i]->meaning != NOTHING_THERE &&
			(is_head(key, i) || request->slots == DLOCK_EXCLUSIVE);
		if (is_competing(key, taken, i))
			nplaces++;
	}
	if (request->slots == DLOCK_EXCLUSIVE || request->slots == DLOCK_SHARED)
		return;
	for (; nplaces >= request->slots; nplaces--)
	{
		int			first = -1;

		for (int i = 0; i < key->nrows; i++)
			if (!way[i] && is_competing(key, taken, i) &&
				(first < 0 || makes_room_before(key, i, first)))
				first = i;
		way[first] = true;
	}
}

/* Does the holder have time left to yield? */
static bool
has_time(const RowCase *row, const RequestCase *request)
{
	return request->until > 0 && request->asked_ago < row->cleanup;
}

static Expected
expect(const Key *key, const RequestCase *request)
{
	Expected	e = {.action = DLOCK_DO_GRANT,.answer = DLOCK_IS_GRANTED,.row = DLOCK_NO_ROW};
	bool		way[MAX_ROWS];
	bool		wall = false,
				outranked = false,
				late = false,
				asking = false,
				in_use = false,
				any = false;
	int			own = -1;

	for (int i = 0; i < key->nrows; i++)
	{
		if (!is_ours(key, request, i) &&
			!(request->has_owner && key->rows[i].slot == OUR_SLOT))
			continue;
		if (key->kinds[i]->is_usable && !request->anew)
			own = i;
		else if (key->kinds[i]->meaning >= HOLDER)
			return busy(request->anew ? rule_anew : rule_open_answer);
	}

	if (own >= 0 && (request->slots == DLOCK_EXCLUSIVE) == is_head(key, own))
	{
		e.rule = rule_retry;
		e.action = DLOCK_DO_RENEW;
		e.row = own;
		return e;
	}
	if (own >= 0 && is_head(key, own))
	{
		e.rule = rule_downgrade;
		e.action = DLOCK_DO_MOVE;
		e.row = own;
		return e;
	}
	e.upgrades = own >= 0;
	if (request->behind && !e.upgrades)
		return busy(rule_queue);

	in_the_way(key, request, own, way);
	for (int i = 0; i < key->nrows; i++)
	{
		const RowCase *row = key->kinds[i];

		e.ends[i] = way[i] || i == own;
		e.yields[i] = way[i] && row->meaning == HOLDER && row->cleanup > 0;
		any = any || way[i];
		wall = wall || (way[i] && row->meaning == WALL);
		outranked = outranked || (way[i] && row->meaning == HOLDER && row->priority >= PRIORITY);
		late = late || (e.yields[i] && !has_time(row, request));
		asking = asking || (e.yields[i] && has_time(row, request));
		in_use = in_use || (e.ends[i] && row->used);
	}

	if (wall)
		e.rule = rule_wall;
	else if (outranked)
		e.rule = rule_rank;
	else if (late && !request->force)
		e.rule = rule_refused;
	else if (asking)
		e.rule = rule_asking;
	else if (in_use)
		e.rule = rule_in_use;
	else
	{
		e.row = row_taken(key, request);
		e.rule = any ? rule_takes : e.upgrades ? rule_alone : rule_granted;
		return e;
	}
	e.action = DLOCK_DO_NOTHING;
	e.answer = e.rule == rule_refused ? DLOCK_IS_REFUSED :
		e.rule == rule_asking ? DLOCK_IS_ASKED : DLOCK_IS_BUSY;
	return e;
}

static void
fill_row(DlockState *state, const RowCase *row, int number, bool head)
{
	memset(state, 0, sizeof(*state));
	state->exists = row->exists;
	state->held = row->held;
	state->unsettled = row->unsettled;
	state->used = row->used;
	state->terms.lazy = row->lazy;
	state->slot = head ? DLOCK_HEAD :
		row->whose == OURS ? OUR_SLOT : 100 + number;
	state->terms.capacity = head ? DLOCK_EXCLUSIVE : DLOCK_SHARED;
	state->terms.role = OUR_ROLE;
	state->version = 100 + number;
	if (row->held)
		state->terms.owner = row->whose == OURS ? "me" : "another";
	state->terms.priority = row->priority;
	state->terms.cleanup = row->cleanup;
	state->terms.at_least = row->at_least;
	state->terms.delay = row->delay;
	state->acquired = NOW + row->expires - TTL;
	state->expires = row->exists ? NOW + row->expires : 0;
}

static long combinations = 0;
static long mismatched_ends = 0;

static void
show(const Key *key, const RequestCase *request, const Expected *e,
	 const DlockVerdict *v)
{
	printf("# request: slots %d, %s, force %d, behind %d, asked %lld us ago, until %lld\n",
		   request->slots, request->anew ? "anew" : request->has_owner ? "with owner" : "without owner",
		   request->force, request->behind, (long long) request->asked_ago,
		   (long long) request->until);
	for (int i = 0; i < key->nrows; i++)
		printf("#   %s: %s, ends %d (expected %d), yields %d (%d)\n",
			   is_head(key, i) ? "head" : "place", key->kinds[i]->name,
			   key->rows[i].ends, e->ends[i], key->rows[i].yields, e->yields[i]);
	printf("#   expected action %d answer %d row %d, got %d %d %d\n",
		   (int) e->action, (int) e->answer, e->row, (int) v->action,
		   (int) v->answer, v->row);
}

/* A verdict is about rows that exist, and counts those that end. */
static bool
is_as_expected(const Key *key, const Expected *e, const DlockVerdict *v)
{
	int			nends = 0;

	if (v->action != e->action || v->answer != e->answer || v->upgrades != e->upgrades)
		return false;
	if (v->action != DLOCK_DO_NOTHING && v->row != e->row)
		return false;

	/* what the caller looks at: who is asked, and what a grant ends */
	for (int i = 0; i < key->nrows; i++)
	{
		if (v->action == DLOCK_DO_GRANT && key->rows[i].ends != e->ends[i])
			return false;
		if (v->answer == DLOCK_IS_ASKED && key->rows[i].yields != e->yields[i])
			return false;
		nends += e->ends[i];
	}
	return v->action != DLOCK_DO_GRANT || v->nends == nends;
}

/*
 * How many holders have to end, as the deadlock check counts them, must agree:
 * what gives way does not count.
 */
static void
compare_must_end(const Key *key, const RequestCase *request,
				 const DlockRequest *what, const Expected *e)
{
	int			expected = 0;
	bool		way[MAX_ROWS];
	int			own = -1;

	if (e->rule == rule_open_answer || e->action == DLOCK_DO_RENEW ||
		e->action == DLOCK_DO_MOVE)
		return;
	for (int i = 0; i < key->nrows; i++)
		if (is_ours(key, request, i) && key->kinds[i]->is_usable && !request->anew)
			own = i;
	in_the_way(key, request, own, way);
	for (int i = 0; i < key->nrows; i++)
	{
		/* whatever room there is, an owner has one place */
		if (request->anew && is_ours(key, request, i))
			way[i] = true;
		expected += way[i] && key->kinds[i]->meaning >= HOLDER;
	}
	if (dlock_rules_must_end(key->rows, key->nrows, what, NOW) != expected &&
		mismatched_ends++ == 0)
	{
		DlockVerdict v = {0};

		printf("# must end: expected %d, got %d\n", expected,
			   dlock_rules_must_end(key->rows, key->nrows, what, NOW));
		show(key, request, e, &v);
	}
}

static void
try_request(Key *key, const RequestCase *request)
{
	DlockRequest what = {.op = DLOCK_ACQUIRE};
	DlockTurn	turn = {0};
	Expected	e = expect(key, request);
	DlockVerdict v;

	what.terms.role = OUR_ROLE;
	what.terms.owner = request->has_owner ? "me" : NULL;
	what.slot = request->has_owner ? OUR_SLOT : 0;
	what.terms.capacity = request->slots;
	what.terms.priority = PRIORITY;
	what.terms.force = request->force;
	what.terms.anew = request->anew;
	turn.behind = request->behind;
	turn.until = NOW + request->until;
	turn.asking.all = request->slots == DLOCK_EXCLUSIVE && request->asked_ago > 0;
	turn.asking.since = NOW - request->asked_ago;
	if (!turn.asking.all && request->asked_ago > 0)
		for (int i = 0; i < key->nrows; i++)
		{
			turn.asking.one[turn.asking.n].version = key->rows[i].version;
			turn.asking.one[turn.asking.n++].since = NOW - request->asked_ago;
		}

	v = dlock_rules_decide(key->rows, key->nrows, &what, &turn, NOW);
	combinations++;
	for (int i = 0; i < (int) lengthof(rules); i++)
		if (rules[i] == e.rule)
		{
			met[i]++;
			if (!is_as_expected(key, &e, &v) && wrong[i]++ == 0)
				show(key, request, &e, &v);
		}
	compare_must_end(key, request, &what, &e);
}

/* Can its holder use it, as committed? */
static bool
is_held(const RowCase *row)
{
	return row->held && (row->expires > 0 || row->lazy);
}

/* A handover of row i to "us", by its version. */
static void
try_handover(Key *key, int i)
{
	DlockRequest what = {.op = DLOCK_HANDOVER};
	DlockTurn	turn = {0};
	RequestCase request = {.has_owner = true};
	Expected	e = busy(rule_not_held);
	DlockVerdict v;

	what.terms.role = OUR_ROLE;
	what.terms.owner = "me";
	what.slot = OUR_SLOT;
	what.by_version = true;
	what.version = key->rows[i].version;

	e.answer = DLOCK_IS_NOT_HELD;
	for (int j = 0; j < key->nrows; j++)
		if (is_held(key->kinds[j]))
			e.answer = DLOCK_IS_HELD_BY_OTHER;
	if (is_held(key->kinds[i]))
	{
		e.rule = rule_handed;
		e.action = DLOCK_DO_HAND_OVER;
		e.answer = DLOCK_IS_GRANTED;
		e.row = i;
	}
	for (int j = 0; j < key->nrows && e.rule == rule_handed && !is_head(key, i); j++)
		if (j != i && key->rows[j].slot == OUR_SLOT &&
			key->kinds[j]->meaning >= GIVES_WAY)
			e = busy(rule_one_place);

	v = dlock_rules_decide(key->rows, key->nrows, &what, &turn, NOW);
	combinations++;
	for (int r = 0; r < (int) lengthof(rules); r++)
		if (rules[r] == e.rule)
		{
			met[r]++;
			if (!is_as_expected(key, &e, &v) && wrong[r]++ == 0)
				show(key, &request, &e, &v);
		}
}

/* One owner has one row; an expired one may be left beside it. */
static bool
is_possible(const Key *key)
{
	int			ours = 0;
	int			our_places = 0;

	for (int i = 0; i < key->nrows; i++)
		if (key->kinds[i]->whose == OURS)
		{
			if (key->kinds[i]->is_usable || key->kinds[i]->meaning >= HOLDER)
				ours++;
			if (!is_head(key, i))
				our_places++;
		}
	return ours <= 1 && our_places <= 1;
}

static void
try_key(Key *key)
{
	key->nrows = 0;
	if (key->head >= 0)
	{
		key->kinds[0] = &cases[key->head];
		fill_row(&key->rows[key->nrows++], &cases[key->head], 0, true);
	}
	for (int i = 0; i < key->nplaces; i++)
	{
		key->kinds[key->nrows] = &cases[key->places[i]];
		fill_row(&key->rows[key->nrows++], &cases[key->places[i]], i + 1, false);
	}
	if (!is_possible(key))
		return;

	for (int i = 0; i < key->nrows; i++)
		try_handover(key, i);
	for (int kind = 0; kind < (int) lengthof(kinds); kind++)
		for (int n = 0; n < 64; n++)
		{
			RequestCase request;

			/* without an owner, every request is anew */
			if ((n & 32) != 0 && (n & 1) == 0)
				continue;

			request.slots = kinds[kind];
			request.has_owner = (n & 1) != 0;
			request.force = (n & 2) != 0;
			request.behind = (n & 4) != 0;
			request.asked_ago = asked[(n >> 3) & 1];
			request.until = untils[(n >> 4) & 1];
			request.anew = (n & 32) != 0;
			try_request(key, &request);
		}
}

/* All lists of up to three places. */
static void
try_places(Key *key)
{
	try_key(key);
	if (key->nplaces == MAX_PLACES)
		return;
	for (int i = 0; i < (int) lengthof(cases); i++)
	{
		key->places[key->nplaces++] = i;
		try_places(key);
		key->nplaces--;
	}
}

#define MANY	100000

/* More rows than a request can ask to yield, each of the given case. */
static DlockAnswer
try_many(int nrows, const RowCase *row)
{
	static DlockState rows[MANY];
	DlockRequest what = {.op = DLOCK_ACQUIRE};
	DlockTurn	turn = {0};

	for (int i = 0; i < nrows; i++)
		fill_row(&rows[i], row, i + 1, false);
	what.terms.role = OUR_ROLE;
	what.terms.capacity = 2;
	what.terms.priority = PRIORITY;
	turn.until = NOW + SECOND;
	return dlock_rules_decide(rows, nrows, &what, &turn, NOW).answer;
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

int
main(void)
{
	const RowCase lapsed = {"lapsed", ANOTHERS, GIVES_WAY, true, LATE,.lazy = true};
	const RowCase lower = {"lower", ANOTHERS, HOLDER, true, LIVE,.cleanup = SECOND};
	const RowCase idle = {"lower", ANOTHERS, HOLDER, true, LIVE};
	clock_t		began;
	Key			key;

	memset(&key, 0, sizeof(key));
	for (key.head = -1; key.head < (int) lengthof(cases); key.head++)
		try_places(&key);

	for (int i = 0; i < (int) lengthof(rules); i++)
		ok(met[i] > 0 && wrong[i] == 0, rules[i], met[i]);
	ok(mismatched_ends == 0, "what has to end is counted alike everywhere", combinations);
	ok(try_many(100, &lapsed) == DLOCK_IS_GRANTED,
	   "any number of lapsed grants gives way to a semaphore", 100);
	ok(try_many(DLOCK_MAX_ASKED + 1, &lower) == DLOCK_IS_ASKED,
	   "as many holders are asked as can be remembered", DLOCK_MAX_ASKED);
	ok(try_many(DLOCK_MAX_ASKED + 2, &lower) == DLOCK_IS_BUSY,
	   "busy, if more would have to be asked", DLOCK_MAX_ASKED + 1);
	began = clock();
	ok(try_many(MANY, &idle) == DLOCK_IS_GRANTED &&
	   clock() - began < 5 * CLOCKS_PER_SEC,
	   "many holders give way to a semaphore, in reasonable time", MANY);
	printf("1..%d\n", tests);
	return failures == 0 ? 0 : 1;
}
