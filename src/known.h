/*-------------------------------------------------------------------------
 *
 * known.h
 *	  What this backend knows of keys that it has looked at.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_KNOWN_H
#define DLOCK_KNOWN_H

#include "places.h"

extern bool dlock_known_headless(const DlockKey *key, const DlockClaims *claims);
extern bool dlock_known_room(const DlockKey *key, const DlockClaims *claims,
							 int slots);
extern void dlock_known_note_headless(const DlockKey *key, const DlockClaims *claims);
extern void dlock_known_note_places(const DlockKey *key, const DlockClaims *claims,
									int n);
extern void dlock_known_forget(void);

#endif							/* DLOCK_KNOWN_H */
