/*-------------------------------------------------------------------------
 *
 * kinds.h
 *	  The kinds of locks that several hold, that cool, and several at once.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_KINDS_H
#define TORTURE_KINDS_H

extern void kinds_step(void);
extern void kinds_end(void);

#endif							/* TORTURE_KINDS_H */
