/*-------------------------------------------------------------------------
 *
 * statement_role.h
 *	  The role that a fence trigger judges.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FENCE_STATEMENT_ROLE_H
#define DLOCK_FENCE_STATEMENT_ROLE_H

#include "commands/trigger.h"

extern void dlock_statement_role_init(void);
extern Oid	dlock_statement_role_of_trigger(const TriggerData *data);
extern char *dlock_statement_role_name(Oid role);

#endif							/* DLOCK_FENCE_STATEMENT_ROLE_H */
