/*-------------------------------------------------------------------------
 *
 * places.h
 *	  Which keys may have places, and how exclusive and shared requests meet.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_PLACES_H
#define DLOCK_ROWS_PLACES_H

#include "utils/relcache.h"

#include "database.h"
#include "rules/key.h"

/* How often rows of some keys had been claimed at one moment. */
typedef struct DlockClaims
{
	uint64		heads;
	uint64		places;
	uint64		own;			/* ... the request's own slot, if it has one */
} DlockClaims;

/* Has every key been marked that had places when the server started? */
typedef enum DlockPlacesKnown
{
	DLOCK_PLACES_UNKNOWN,
	DLOCK_PLACES_BEING_READ,	/* a pass of the reaper is under way */
	DLOCK_PLACES_KNOWN
} DlockPlacesKnown;

extern Size dlock_places_shmem_size(void);
extern void dlock_places_shmem_init(void);

extern int64 dlock_places_owner_slot(Oid role, const char *owner);
extern void dlock_places_init(void);
extern void dlock_places_mark(const DlockKey *key);
extern void dlock_places_unmark(uint64 hash);
extern int	dlock_places_pin(const DlockKey *key);
extern void dlock_places_unpin(int note, bool has_place);
extern bool dlock_places_marked(const DlockKey *key);
extern void dlock_places_read(const DlockKey *key, int64 slot, DlockClaims *claims);
extern bool dlock_places_unchanged(const DlockKey *key,
								   const DlockClaims *claims,
								   bool heads_count, bool places_count);
extern bool dlock_places_own_unchanged(const DlockKey *key, int64 slot,
									   const DlockClaims *claims);
extern void dlock_places_claim_head(const DlockKey *key);
extern void dlock_places_restored(const DlockKey *key, int64 slot);
extern void dlock_places_claim_place(const DlockKey *key, int64 slot);

extern bool dlock_places_guarded(Relation heap);
extern void dlock_places_forget(void);
extern void dlock_places_forget_database(Oid dboid);
extern bool dlock_places_pass_begins(DlockDatabase *db, Relation heap);
extern bool dlock_places_being_read(DlockDatabase *db);
extern void dlock_places_pass_ends(DlockDatabase *db);
extern bool dlock_places_known(DlockDatabase *db);

#endif							/* DLOCK_ROWS_PLACES_H */
