/*-------------------------------------------------------------------------
 *
 * fsm_table.c
 *	  Prints the state tables of src/README from the rules themselves.
 *
 * "scripts/test --only gates states" checks that src/README contains them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "../src/fsm.h"

/* only src/fsm.o is linked, so use the C library's functions */
#undef printf
#undef snprintf

#define NOW			INT64CONST(1000000)
#define CLEANUP		INT64CONST(1000)
#define VERSION		INT64CONST(7)

static const char *const actions[] = {
	"", "GRANT", "RENEW", "PIN", "CLEAR", "REMOVE"
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
	{DLOCK_FORCE, "FORCE"}, {DLOCK_REAP, "REAP"}
};

typedef enum Case
{
	FREE, EXPIRED, OURS, OTHERS, NCASES
} Case;

static const char *const cases[] = {"free", "expired", "live, ours", "live, another's"};

static DlockState
make_state(Case c, bool unsettled)
{
	DlockState	state;

	memset(&state, 0, sizeof(state));
	state.exists = true;
	state.held = c != FREE;
	state.unsettled = unsettled;
	state.role = 10;
	state.version = VERSION;
	state.owner = c == OTHERS ? "other" : "me";
	state.cleanup = CLEANUP;
	state.expires = c == EXPIRED ? NOW : NOW + 1;
	return state;
}

static DlockRequest
make_request(DlockOp op)
{
	DlockRequest request;

	memset(&request, 0, sizeof(request));
	request.op = op;
	request.role = 10;
	request.owner = "me";
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

	return word(dlock_fsm_decide(&state, 1, &request, &turn, NOW));
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

		same = same && strcmp(settled, unsettled) == 0;
		busy = busy && strcmp(unsettled, "busy") == 0;
		printf("%-17s", ops[i].op == DLOCK_ACQUIRE && c == OTHERS ? "see below" : settled);
	}
	printf("%s\n", busy ? "busy" : same ? "as committed" : "?");
}

/* An acquire of a key that another grant holds. */
static void
print_preemption(const char *when, bool behind, int32 priority, int64 cleanup,
				 int64 until, bool force)
{
	DlockState	state = make_state(OTHERS, false);
	DlockRequest request = make_request(DLOCK_ACQUIRE);
	DlockTurn	turn = {0};

	state.cleanup = cleanup;
	request.priority = priority;
	request.force = force;
	turn.behind = behind;
	turn.until = until;
	printf("\t%-49s%s\n", when,
		   word(dlock_fsm_decide(&state, 1, &request, &turn, NOW)));
}

int
main(void)
{
	printf("\t%-12s", "operation");
	for (int c = 0; c < NCASES; c++)
		printf("%-17s", cases[c]);
	printf("%s\n", "unsettled");
	for (int i = 0; i < (int) lengthof(ops); i++)
		print_operation(i);

	printf("\n\tACQUIRE of a live key that is another's; the first line that applies counts\n");
	print_preemption("another request comes first", true, 1, 0, NOW, true);
	print_preemption("priority not above the holder's", false, 0, 0, NOW, true);
	print_preemption("the holder has no cleanup", false, 1, 0, NOW, false);
	print_preemption("the holder has time left", false, 1, CLEANUP, NOW + 1, true);
	print_preemption("force", false, 1, CLEANUP, NOW, true);
	print_preemption("otherwise", false, 1, CLEANUP, NOW, false);
	return 0;
}
