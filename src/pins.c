/*-------------------------------------------------------------------------
 *
 * pins.c
 *	  The pages that a scan keeps pinned.
 *
 * Places of a key that were taken at about the same time are on the same page,
 * but their slots are in another order.
 *
 * A scan keeps no more pages than its share of all buffers, as PostgreSQL's own
 * scans do.  Otherwise many of them at the same time would leave none for others.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "compat.h"
#include "pins.h"

Buffer
dlock_pins_get(DlockPins *pins, Relation heap, BlockNumber block)
{
	int			max = Min(DLOCK_MAX_PINS, Max(NBuffers / MaxBackends, 1));
	int			i;

	for (i = 0; i < pins->n; i++)
		if (pins->blocks[i] == block)
			return pins->buffers[i];
	if (pins->n < max)
		pins->n++;
	else
	{
		i = pins->oldest;
		pins->oldest = (i + 1) % max;
		ReleaseBuffer(pins->buffers[i]);
	}
	pins->blocks[i] = block;
	pins->buffers[i] = ReadBuffer(heap, block);

	/* as any index scan does */
	dlock_heap_prune_opt(heap, pins->buffers[i]);
	return pins->buffers[i];
}

void
dlock_pins_release(DlockPins *pins)
{
	for (int i = 0; i < pins->n; i++)
		ReleaseBuffer(pins->buffers[i]);
	pins->n = 0;
}
