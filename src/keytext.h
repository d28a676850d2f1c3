/*-------------------------------------------------------------------------
 *
 * keytext.h
 *	  The text of a column's value in a lock key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_KEYTEXT_H
#define DLOCK_KEYTEXT_H

#include "access/tupdesc.h"

extern char *dlock_keytext(Datum value, Form_pg_attribute att);

#endif							/* DLOCK_KEYTEXT_H */
