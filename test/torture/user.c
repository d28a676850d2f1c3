/*-------------------------------------------------------------------------
 *
 * user.c
 *	  A thread that uses locks of libdlock by calls that block.
 *
 * Several of them share the handle of the client, so their calls go together.
 * Most of the time a thread behaves correctly.  Sometimes it lets a lock expire,
 * sleeps through its lease, or writes with the token of a lock that it has lost,
 * which the fence must reject.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "grants.h"
#include "history.h"
#include "kinds.h"
#include "register.h"
#include "user.h"

#define SLOTS 3

static _Thread_local Slot *slots;

static void
do_acquire(Slot *slot)
{
	Wish		wish;
	dlock_error err;
	dlock_lock *lock;
	dlock_status status;
	bool		alone = true;

	for (int i = 0; i < SLOTS; i++)
		alone = alone && slots[i].lock == NULL;
	wish_make(&wish, slot, alone);
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].lock != NULL && strcmp(slots[i].key, wish.key) == 0)
			return;
	wish_called(&wish);
	status = dlock_acquire(handle, wish.key, &wish.options, &lock, &err);
	wish_done(&wish, slot, status, lock, &err);
}

static void
do_refresh(const Slot *slot)
{
	dlock_error err;
	long		number = next_ops(1);

	/* never shorter: the server's lease must not end before ours */
	int64_t		ttl = dlock_ttl_ms(slot->lock);
	dlock_status status;

	if (chance(20) && ttl < 6000)
		ttl += 500;
	history(now_us(), "call %d %ld refresh key=%s version=%lld ttl=%lld", client, number,
			slot->key, (long long) slot->version, (long long) ttl);
	status = dlock_refresh(slot->lock, ttl, -1, &err);
	if (status == DLOCK_OK)
		history(now_us(), "done %d %ld refresh ok", client, number);
	else if (status == DLOCK_LOST)
		history(now_us(), "done %d %ld refresh lost", client, number);
	else
		record_otherwise(client, number, "refresh", status, &err);
}

static void
do_release(Slot *slot)
{
	dlock_error err;
	long		number = release_called(slot);
	dlock_status status = dlock_release(slot->lock, -1, &err);

	release_done(number, status, &err);
	slot_drop(slot);
}

/* Use a lock as a program without a fence does. */
static void
do_use(const Slot *slot)
{
	int64_t		now = now_us();

	if (dlock_is_owner(slot->lock))
		history(now, "owns %d key=%s version=%lld", client, slot->key, (long long) slot->version);
}

static void
step(void)
{
	Slot	   *slot = &slots[below(SLOTS)];
	int			what = below(100);

	if (slot->lock == NULL)
	{
		if (what < 10)
			do_old_write();
		else if (what < 70)
			do_acquire(slot);
		else
			rest(below(20));
		return;
	}

	if (slot_is_asked(slot))
	{
		do_release(slot);
		return;
	}
	do_use(slot);
	if (what < 35)
		do_write(slot->key, slot->version, (int) dlock_left_ms(slot->lock));
	else if (what < 50)
		do_refresh(slot);
	else if (what < 85 || (what < 88 && slot->session))
		do_release(slot);		/* without it, the end of its connection does
								 * that */
	else if (what < 88)
		slot_drop(slot);
	else if (what < 89)
		rest(1000 + below(4000));
	else
		rest(below(100));
}

void
user_run(bool kinds)
{
	slots = calloc(SLOTS, sizeof(Slot));
	if (slots == NULL)
		abort();
	slots_watch(slots, SLOTS);
	while (!stopping)
	{
		if (kinds && chance(40))
			kinds_step();
		else
			step();
	}
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].lock != NULL)
			do_release(&slots[i]);
	if (kinds)
		kinds_end();
	register_close();
}
