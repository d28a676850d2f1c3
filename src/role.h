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
extern char *dlock_role_name(Oid role);

#endif							/* DLOCK_ROLE_H */
