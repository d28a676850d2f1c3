/*-------------------------------------------------------------------------
 *
 * loop.c
 *	  A thread that uses locks of libdlock by calls that do not block.
 *
 * It has many requests under way, most of which wait in the server's queue, and
 * cancels some of them.  A request that was cancelled may have been granted, and
 * is then released by the library, so its outcome is unknown.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "grants.h"
#include "history.h"
#include "loop.h"
#include "register.h"

#define ERRANDS 8
#define TICK_MS 20

typedef enum Stage
{
	STAGE_FREE,
	STAGE_ASKED,
	STAGE_HELD,
	STAGE_RELEASED				/* the answer has not come */
} Stage;

/* A request, and the lock that comes of it, which is in the slot of its number. */
typedef struct Errand
{
	Stage		stage;
	Wish		wish;
	long		release;		/* the number of its release */
	dlock_op   *op;				/* ASKED */
	int64_t		cancel_at;		/* ASKED, in us; 0: it was or will not be */
	int64_t		until;			/* HELD: when to end it, in us */
} Errand;

static Errand errands[ERRANDS];
static Slot slots[ERRANDS];

static void
acquire_done(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err, void *arg)
{
	Errand	   *errand = arg;

	(void) op;
	wish_done(&errand->wish, &slots[errand - errands], status, lock, err);
	errand->stage = status == DLOCK_OK ? STAGE_HELD : STAGE_FREE;
	errand->op = NULL;
	errand->until = now_us() + (int64_t) below(300) * 1000;
}

static void
start_acquire(Errand *errand)
{
	Wish	   *wish = &errand->wish;
	dlock_error err;
	dlock_status status;

	/* the other errands continue, so it can wait without limit */
	wish_make(wish, &slots[errand - errands], true);
	if (wish->options.session)
		return;
	for (int i = 0; i < ERRANDS; i++)
		if (errands[i].stage != STAGE_FREE && strcmp(errands[i].wish.key, wish->key) == 0 && chance(80))
			return;
	errand->cancel_at = chance(15) ? now_us() + (int64_t) below(600) * 1000 : 0;
	errand->stage = STAGE_ASKED;
	wish_called(wish);
	status = dlock_acquire_start(handle, wish->key, &wish->options, acquire_done, errand,
								 &errand->op, &err);
	if (status == DLOCK_OK)
		return;
	record_otherwise(client, wish->number, "acquire", status, &err);
	errand->stage = STAGE_FREE;
}

static void
is_released(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err, void *arg)
{
	Errand	   *errand = arg;

	(void) op;
	(void) lock;
	release_done(errand->release, status, err);
	slot_drop(&slots[errand - errands]);
	errand->stage = STAGE_FREE;
}

static void
start_release(Errand *errand)
{
	Slot	   *slot = &slots[errand - errands];
	dlock_error err;
	dlock_status status;

	errand->stage = STAGE_RELEASED;
	errand->release = release_called(slot);
	status = dlock_release_start(slot->lock, -1, is_released, errand, NULL, &err);
	if (status != DLOCK_OK)
		is_released(NULL, status, slot->lock, &err, errand);
}

static void
step(Errand *errand)
{
	Slot	   *slot = &slots[errand - errands];
	int64_t		now = now_us();

	switch (errand->stage)
	{
		case STAGE_FREE:
			if (!stopping && chance(20))
				start_acquire(errand);
			break;
		case STAGE_ASKED:
			if ((errand->cancel_at != 0 && now >= errand->cancel_at) || stopping)
			{
				errand->cancel_at = 0;
				dlock_op_cancel(errand->op);
			}
			break;
		case STAGE_HELD:
			if (now < errand->until && !stopping && !slot_is_asked(slot))
				break;
			if (chance(20))
				do_write(slot->key, slot->version, 0);
			if (chance(95) || stopping)
				start_release(errand);
			else
			{
				slot_drop(slot);
				errand->stage = STAGE_FREE;
			}
			break;
		case STAGE_RELEASED:
			break;
	}
}

static bool
has_ended(void)
{
	for (int i = 0; i < ERRANDS; i++)
		if (errands[i].stage != STAGE_FREE)
			return false;
	return stopping;
}

void
loop_run(void)
{
	struct pollfd fd;

	fd.fd = dlock_handle_fd(handle);
	if (fd.fd < 0)
		abort();
	fd.events = POLLIN;
	slots_watch(slots, ERRANDS);
	while (!has_ended())
	{
		for (int i = 0; i < ERRANDS; i++)
			step(&errands[i]);
		fd.revents = 0;
		poll(&fd, 1, TICK_MS);
		dlock_handle_process(handle);
	}
	register_close();
}
