/*-------------------------------------------------------------------------
 *
 * known.h
 *	  Which keys have no head, as far as this backend knows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_KNOWN_H
#define DLOCK_KNOWN_H

#include "places.h"

extern bool dlock_known_headless(const DlockKey *key, const DlockClaims *claims);
extern void dlock_known_note_headless(const DlockKey *key, const DlockClaims *claims);
extern void dlock_known_forget(void);

#endif							/* DLOCK_KNOWN_H */
