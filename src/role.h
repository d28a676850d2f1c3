/*-------------------------------------------------------------------------
 *
 * role.h
 *	  The role that an operation is judged by.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROLE_H
#define DLOCK_ROLE_H

extern void dlock_role_init(void);
extern Oid	dlock_role_current(void);
extern Oid	dlock_role_of_after_trigger(bool deferrable);

#endif							/* DLOCK_ROLE_H */
