/*-------------------------------------------------------------------------
 *
 * word.h
 *	  Sleeping until another thread changes a word.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WORD_H
#define DLOCK_WORD_H

#include <stdint.h>

extern void dlock_word_sleep(int *word, int seen, int64_t ms);
extern void dlock_word_wake_one(int *word);
extern void dlock_word_wake_all(int *word);

#endif							/* DLOCK_WORD_H */
