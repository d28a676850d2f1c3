/*-------------------------------------------------------------------------
 *
 * dlock_async.h
 *	  libdlock for programs with an event loop: calls that do not block.
 *
 * dlock.h includes this.
 *
 * A call is started, and the program goes on.  When calls are done, the
 * descriptor of the handle is readable.  Then dlock_handle_process() calls back
 * for each of them.  One thread can have thousands under way: they share a few
 * connections, and a request that waits takes none.
 *
 * The library uses a thread of its own for this, so the program has no timeouts
 * to care for.  These functions may be called from any thread, and also in
 * callbacks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ASYNC_CALLS_H
#define DLOCK_ASYNC_CALLS_H

/* A call that was started and has not come to its end. */
typedef struct dlock_op dlock_op;

/*
 * Called by dlock_handle_process().  lock is that of the acquire if status is
 * DLOCK_OK, otherwise NULL; of a release, it is the lock.  err and op are valid
 * until this returns.  It must not call dlock_close().
 */
typedef void (*dlock_done) (dlock_op *op, dlock_status status, dlock_lock *lock,
							const dlock_error *err, void *arg);

/*
 * As dlock_acquire(), but session and reentrant must not be set, and the value of
 * a request that waits may have 1024 bytes at most.  DLOCK_OK: it was started, done
 * will be called, and *op (may be NULL) names it until then.  Otherwise done will
 * not be called.
 */
extern dlock_status dlock_acquire_start(dlock_handle *handle, const char *key,
										const dlock_options *options,
										dlock_done done, void *arg,
										dlock_op **op, dlock_error *err);

/* As dlock_release().  The lock must not be freed before done is called. */
extern dlock_status dlock_release_start(dlock_lock *lock, int64_t timeout_ms,
										dlock_done done, void *arg,
										dlock_op **op, dlock_error *err);

/*
 * The acquire is not wanted any more: done is called soon, with DLOCK_CANCELLED,
 * unless it has come to another end before.  A request that is in the queue is
 * withdrawn.  A release goes on.
 */
extern void dlock_op_cancel(dlock_op *op);

/*
 * A descriptor for poll(), the same one as long as the handle is open.  It is
 * readable when calls are done.  Do not read it.  -1: there is no descriptor left.
 */
extern int	dlock_handle_fd(dlock_handle *handle);

/*
 * Call back for all calls that are done; returns how many there were.  Never
 * waits.
 */
extern int	dlock_handle_process(dlock_handle *handle);

#endif							/* DLOCK_ASYNC_CALLS_H */
