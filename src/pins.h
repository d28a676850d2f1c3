/*-------------------------------------------------------------------------
 *
 * pins.h
 *	  The pages that a scan keeps pinned.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PINS_H
#define DLOCK_PINS_H

#include "storage/buf.h"
#include "utils/relcache.h"

#define DLOCK_MAX_PINS	32

typedef struct DlockPins
{
	int			n;
	int			oldest;
	BlockNumber blocks[DLOCK_MAX_PINS];
	Buffer		buffers[DLOCK_MAX_PINS];
} DlockPins;

extern Buffer dlock_pins_get(DlockPins *pins, Relation heap, BlockNumber block);
extern void dlock_pins_release(DlockPins *pins);

#endif							/* DLOCK_PINS_H */
