/*-------------------------------------------------------------------------
 *
 * lock_rules_table.c
 *	  Prints the state tables of src/README from the rules themselves.
 *
 * "scripts/test --only gates states" checks that src/README contains them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/lock_rules.h"

/* only src/rules/lock_rules.o is linked, so use the C library's functions */
#undef printf
#undef snprintf

#define NOW			INT64CONST(1000000)
#define CLEANUP		INT64CONST(1000)
#define VERSION		INT64CONST(7)

static const char *const actions[] = {
	"", "GRANT", "RENEW", "MOVE", "HAND OVER", "PIN", "CLEAR", "REMOVE"
};
static const char *const answers[] = {
	"busy", "asked", "refused", "granted", "held", "preempting", "not_held",
	"held_by_other", "released", "expired", "idle"
};

static const struct
{
	DlockOp		op;
	const char *name;
}			ops[] = {
	{DLOCK_ACQUIRE, "ACQUIRE"}, {DLOCK_REFRESH, "REFRESH"},
	{DLOCK_RELEASE, "RELEASE"}, {DLOCK_CHECK, "CHECK"}, {DLOCK_FENCE, "FENCE"},
	{DLOCK_HANDOVER, "HANDOVER"}, {DLOCK_FORCE, "FORCE"}, {DLOCK_REAP, "REAP"}
};

/* The columns; a grant that is ours is live or has lapsed, which is the same. */
typedef enum Case
{
	FREE, EXPIRED, COOLING, OURS, OTHERS, OTHERS_LAPSED, NCASES, OURS_LAPSED
} Case;

static const struct
{
	const char *name;
	int			width;
}			cases[] = {
	{"free", 10}, {"expired", 10}, {"cooling", 10}, {"ours", 10},
	{"another's", 15}, {"... lapsed", 15}
};

static DlockState
make_state(Case c, bool unsettled)
{
	DlockState	state;

	memset(&state, 0, sizeof(state));
	state.exists = true;
	state.held = c != FREE && c != COOLING;
	state.unsettled = unsettled;
	state.slot = DLOCK_HEAD;
	state.terms.capacity = DLOCK_EXCLUSIVE;
	state.terms.role = 10;
	state.version = c == OTHERS || c == OTHERS_LAPSED ? VERSION + 1 : VERSION;
	state.terms.owner = c == OTHERS || c == OTHERS_LAPSED ? "other" : "me";
	state.terms.cleanup = CLEANUP;
	state.terms.lazy = c == OTHERS_LAPSED || c == OURS_LAPSED;
	state.expires = c == FREE || c == EXPIRED || state.terms.lazy ? NOW : NOW + 1;
	return state;
}

static DlockRequest
make_request(DlockOp op)
{
	DlockRequest request;

	memset(&request, 0, sizeof(request));
	request.op = op;
	request.terms.role = 10;
	request.terms.owner = "me";
	request.terms.capacity = DLOCK_EXCLUSIVE;
	request.lapse = 1;
	return request;
}

static const char *
word(DlockVerdict verdict)
{
	return verdict.action == DLOCK_DO_NOTHING ?
		answers[verdict.answer] : actions[verdict.action];
}

static const char *
decide(DlockOp op, Case c, bool unsettled)
{
	DlockState	state = make_state(c, unsettled);
	DlockRequest request = make_request(op);
	DlockTurn	turn = {0};

	/* any holder's, by its version */
	if (op == DLOCK_FORCE)
		request.version = state.version;
	if (op == DLOCK_HANDOVER)
	{
		request.by_version = true;
		request.version = VERSION;
	}
	return word(dlock_rules_decide(&state, 1, &request, &turn, NOW));
}

static void
print_operation(int i)
{
	bool		same = true;
	bool		busy = true;

	printf("\t%-12s", ops[i].name);
	for (int c = 0; c < NCASES; c++)
	{
		const char *settled = decide(ops[i].op, c, false);
		const char *unsettled = decide(ops[i].op, c, true);

		if (c == OURS && strcmp(settled, decide(ops[i].op, OURS_LAPSED, false)) != 0)
			settled = "?";
		same = same && strcmp(settled, unsettled) == 0;
		busy = busy && strcmp(unsettled, "busy") == 0;
		printf("%-*s", cases[c].width,
			   ops[i].op == DLOCK_ACQUIRE && c == OTHERS ? "see below" : settled);
	}
	printf("%s\n", busy ? "busy" : same ? "as committed" : "?");
}

/* An acquire of each kind, and what the key has. */
static const struct
{
	int32		slots;
	const char *name;
}			kinds[] = {
	{DLOCK_EXCLUSIVE, "exclusive"}, {2, "one of N"}, {DLOCK_SHARED, "shared"}
};

static const struct
{
	const char *name;
	int			width;
	Case		first;
	bool		is_head;
	int			n;				/* grants; all but the first are another's */
}			holders[] = {
	{"exclusive, ours", 18, OURS, true, 1},
	{"exclusive", 12, OTHERS, true, 1},
	{"a place, ours", 16, OURS, false, 1},
	{"one place", 12, OTHERS, false, 1},
	{"N places", 0, OTHERS, false, 2}
};

static void
print_kind(int kind)
{
	printf("\t%-12s", kinds[kind].name);
	for (int h = 0; h < (int) lengthof(holders); h++)
	{
		DlockState	states[2];
		DlockRequest request = make_request(DLOCK_ACQUIRE);
		DlockTurn	turn = {0};
		DlockVerdict verdict;

		for (int i = 0; i < holders[h].n; i++)
		{
			states[i] = make_state(i == 0 ? holders[h].first : OTHERS, false);
			if (!holders[h].is_head)
				states[i].slot = i + 1;
		}
		request.terms.capacity = kinds[kind].slots;
		verdict = dlock_rules_decide(states, holders[h].n, &request, &turn, NOW);
		printf("%-*s", holders[h].width,
			   verdict.answer == DLOCK_IS_BUSY ? "see below" :
			   verdict.upgrades ? "GRANT, alone" : word(verdict));
	}
	printf("\n");
}

/* An acquire of a key that another grant holds. */
static void
print_preemption(const char *when, bool behind, int32 priority, int64 cleanup,
				 int64 until, bool force)
{
	DlockState	state = make_state(OTHERS, false);
	DlockRequest request = make_request(DLOCK_ACQUIRE);
	DlockTurn	turn = {0};

	state.terms.cleanup = cleanup;
	request.terms.priority = priority;
	request.terms.force = force;
	turn.behind = behind;
	turn.until = until;
	printf("\t%-49s%s\n", when,
		   word(dlock_rules_decide(&state, 1, &request, &turn, NOW)));
}

int
main(void)
{
	printf("\t%-12s", "operation");
	for (int c = 0; c < NCASES; c++)
		printf("%-*s", cases[c].width, cases[c].name);
	printf("%s\n", "unsettled");
	for (int i = 0; i < (int) lengthof(ops); i++)
		print_operation(i);

	printf("\n\t%-12s", "ACQUIRE");
	for (int h = 0; h < (int) lengthof(holders); h++)
		printf("%-*s", holders[h].width, holders[h].name);
	printf("\n");
	for (int kind = 0; kind < (int) lengthof(kinds); kind++)
		print_kind(kind);

	printf("\n\tACQUIRE of a live key that is another's; the first line that applies counts\n");
	print_preemption("another request comes first", true, 1, 0, NOW, true);
	print_preemption("priority not above the holder's", false, 0, 0, NOW, true);
	print_preemption("the holder has no cleanup", false, 1, 0, NOW, false);
	print_preemption("the holder has time left", false, 1, CLEANUP, NOW + 1, true);
	print_preemption("force", false, 1, CLEANUP, NOW, true);
	print_preemption("otherwise", false, 1, CLEANUP, NOW, false);
	return 0;
}
