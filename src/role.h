/*-------------------------------------------------------------------------
 *
 * role.h
 *	  The role that a fence trigger judges.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROLE_H
#define DLOCK_ROLE_H

#include "commands/trigger.h"

extern void dlock_role_init(void);
extern Oid	dlock_role_of_trigger(const TriggerData *data);

#endif							/* DLOCK_ROLE_H */
