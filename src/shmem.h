/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  Is dlock loaded, with its shared memory?
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SHMEM_H
#define DLOCK_SHMEM_H

extern void dlock_shmem_init(void);
extern void dlock_shmem_require(void);
extern bool dlock_shmem_is_attached(void);

#endif							/* DLOCK_SHMEM_H */
