/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Acquiring one lock or several, and adopting one that was acquired elsewhere.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

/* The options as the library knows them, checked. */
static dlock_status
take_options(const dlock_options *given, dlock_options *options, dlock_error *err)
{
	dlock_options_init(options);
	if (given != NULL && !dlock_handle_take_options(options, sizeof(*options), given, given->size))
		return dlock_fail(err, DLOCK_INVALID, "options were not initialized");
	options->size = sizeof(*options);
	if (options->ttl_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "ttl_ms must not be negative");
	if (options->wait_ms < -1)
		return dlock_fail(err, DLOCK_INVALID, "wait_ms must be -1 or more");
	if (options->cleanup_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "cleanup_ms must not be negative");
	if (options->slots < 1 || (options->shared && options->slots != 1))
		return dlock_fail(err, DLOCK_INVALID, "slots must be 1 or more, and 1 with shared");
	if (options->shared)
		options->slots = DLOCK_SHARED;
	if (options->at_least_ms < 0 || options->delay_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "at_least_ms and delay_ms must not be negative");
	if (options->max_hold_ms < 0 || (options->max_hold_ms > 0 && options->max_hold_ms < options->ttl_ms))
		return dlock_fail(err, DLOCK_INVALID, "max_hold_ms must be 0, or not less than ttl_ms");
	return DLOCK_OK;
}

static int64_t
wait_until(const dlock_options *options)
{
	return options->wait_ms < 0 ? DLOCK_NEVER : dlock_later(dlock_now(), options->wait_ms);
}

/* Set up an acquire of one lock, which has everything except its grant. */
static dlock_status
init(dlock_op *op, dlock_handle *handle, DlockOpKind kind, const char *key,
	 const dlock_options *options, int64_t until, dlock_error *err)
{
	char		owner[DLOCK_OWNER_SIZE];
	dlock_lock *lock = NULL;

	dlock_op_init(op, handle, kind, options->timeout_ms, until);
	op->options = *options;
	if (options->owner != NULL || dlock_random_owner(owner))
		lock = dlock_lock_make(handle, key, options->owner != NULL ? options->owner : owner, options);
	if (lock == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	dlock_op_set_lock(op, lock);
	return DLOCK_OK;
}

static dlock_status
run(dlock_op *op, dlock_lock **granted, dlock_error *err)
{
	dlock_status status = dlock_op_run(op, err);

	if (status == DLOCK_OK)
		*granted = op->lock;
	else
		dlock_lock_destroy(op->lock);
	return status;
}

/* Everything that may run out of memory comes before the grant. */
static dlock_status
acquire(dlock_handle *handle, const char *key, const dlock_options *options,
		int64_t until, dlock_lock **granted, dlock_error *err)
{
	dlock_op	op;
	DlockOpKind kind = options->session || !dlock_op_can_wait(options) ?
		DLOCK_OP_STATEMENT : DLOCK_OP_ACQUIRE;
	dlock_status status = dlock_background_start(handle, err);

	if (status == DLOCK_OK)
		status = init(&op, handle, kind, key, options, until, err);
	return status == DLOCK_OK ? run(&op, granted, err) : status;
}

/*
 * A lock that this handle already holds
 *
 * The server returns the same grant to the same owner, which is how a request is
 * repeated.  It knows nothing of a program whose functions acquire the same lock
 * within each other.  So that is counted here: lock->holds is how many releases
 * it takes to give the lock back, lock->users how many pointers to it are still
 * to be freed.
 *
 * All of these pointers are the same, so nobody can tell which of them is freed.  That
 * one was freed without a release shows when more releases are due than there are
 * pointers.  If another thread has released its own and not freed it yet, that may be
 * after the last release, and the lock ends by its TTL.  It is never given back while
 * somebody holds it.
 *
 * Two threads that ask for a key at the same time must not wait for each other's
 * grant, because the second one gets the lock of the first.  So a call that may
 * wait first waits for another call of this handle that acquires the same key.
 */

/* Does a lock of one kind serve a request for another? */
static bool
serves(int32_t held, int32_t asked)
{
	return held == 1 || asked == DLOCK_SHARED || held == asked;
}

/*
 * Find a lock that serves, and count it.  DLOCK_UNCHANGED: there is none;
 * DLOCK_INVALID: the request would wait for our own lock.  The caller has the
 * mutex.
 */
static dlock_status
find_held(dlock_handle *handle, const char *key, int32_t slots, dlock_lock **found)
{
	int64_t		now = dlock_now();
	bool		would_wait = false;

	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		if (lock->silent || lock->freed || strcmp(lock->key, key) != 0 ||
			dlock_lease_overdue(lock, now))
			continue;
		if (serves(lock->slots, slots))
		{
			lock->holds++;
			lock->users++;
			*found = lock;
			return DLOCK_OK;
		}
		would_wait = slots == 1;
	}
	return would_wait ? DLOCK_INVALID : DLOCK_UNCHANGED;
}

static bool
is_entering(const dlock_handle *handle, const char *key)
{
	for (const DlockEntry *entry = handle->entering; entry != NULL; entry = entry->next)
		if (strcmp(entry->key, key) == 0)
			return true;
	return false;
}

/*
 * DLOCK_OK: *lock is ours already.  DLOCK_UNCHANGED: the caller has to acquire
 * it, and to call leave() when that has ended.  until is 0 if
 * the call must not wait.
 */
static dlock_status
enter(dlock_handle *handle, DlockEntry *entry, const char *key,
	  int32_t slots, int64_t until, dlock_lock **lock, dlock_error *err)
{
	bool		in_time = true;
	dlock_status status;

	pthread_mutex_lock(&handle->mutex);
	do
		status = find_held(handle, key, slots, lock);
	while (status == DLOCK_UNCHANGED && until > 0 && is_entering(handle, key) &&
		   (in_time = dlock_loop_wait_for_change(handle, until)));
	if (status == DLOCK_UNCHANGED && in_time)
	{
		entry->key = key;
		entry->next = handle->entering;
		handle->entering = entry;
	}
	pthread_mutex_unlock(&handle->mutex);
	if (!in_time)
		return dlock_fail(err, DLOCK_BUSY, "lock \"%s\" is held by another client", key);
	if (status == DLOCK_INVALID)
		return dlock_fail(err, DLOCK_INVALID,
						  "lock \"%s\" is held by this handle, but not exclusively", key);
	return status;
}

/* The lock was acquired, and is in the list, or it was not. */
static void
leave(dlock_handle *handle, DlockEntry *entry)
{
	for (DlockEntry **at = &handle->entering; *at != NULL; at = &(*at)->next)
		if (*at == entry)
		{
			*at = entry->next;
			break;
		}
	dlock_loop_changed(handle);
}

/* Acquire it, unless the handle holds it already. */
static dlock_status
reenter(dlock_handle *handle, const char *key, const dlock_options *options,
		int64_t until, dlock_lock **lock, dlock_error *err)
{
	DlockEntry	entry;
	int32_t		slots = options->slots;
	dlock_status status = enter(handle, &entry, key, slots, options->wait_ms != 0 ? until : 0,
								lock, err);

	if (status != DLOCK_UNCHANGED)
		return status;
	status = acquire(handle, key, options, until, lock, err);
	pthread_mutex_lock(&handle->mutex);
	/* busy, perhaps because another thread has acquired it meanwhile */
	if (status == DLOCK_BUSY && find_held(handle, key, slots, lock) == DLOCK_OK)
	{
		dlock_error_clear(err);
		status = DLOCK_OK;
	}
	leave(handle, &entry);
	pthread_mutex_unlock(&handle->mutex);
	return status;
}

/*
 * What a program calls
 */

dlock_status
dlock_acquire(dlock_handle *handle, const char *key, const dlock_options *given,
			  dlock_lock **granted, dlock_error *err)
{
	dlock_options options;
	dlock_status status;

	dlock_error_clear(err);
	if (granted == NULL)
		return dlock_fail(err, DLOCK_INVALID, "lock must not be null");
	*granted = NULL;
	status = dlock_handle_may_ask(handle, err);
	if (status == DLOCK_OK)
		status = take_options(given, &options, err);
	if (status != DLOCK_OK)
		return status;
	if (key == NULL)
		return dlock_fail(err, DLOCK_INVALID, "key must not be null");
	return options.reentrant ? reenter(handle, key, &options, wait_until(&options), granted, err) :
		acquire(handle, key, &options, wait_until(&options), granted, err);
}

dlock_status
dlock_acquire_start(dlock_handle *handle, const char *key, const dlock_options *given,
					dlock_done done, void *arg, dlock_op **started, dlock_error *err)
{
	dlock_options options;
	dlock_op   *op;
	char	   *value = NULL;
	dlock_status status = dlock_handle_may_start(handle, err);

	if (started != NULL)
		*started = NULL;
	if (status == DLOCK_OK)
		status = take_options(given, &options, err);
	if (status != DLOCK_OK)
		return status;
	if (key == NULL || done == NULL)
		return dlock_fail(err, DLOCK_INVALID, "key and callback must not be null");
	if (options.session || options.reentrant)
		return dlock_fail(err, DLOCK_INVALID, "session and reentrant cannot be used here");
	if (!dlock_op_can_wait(&options))
		return dlock_fail(err, DLOCK_INVALID, "the value of a request that waits must not be longer than %d bytes",
						  DLOCK_MAX_TICKET_BYTES);

	/* the caller's texts may be gone before it is done */
	op = malloc(sizeof(dlock_op));
	if (options.value != NULL)
		value = strdup(options.value);
	if (op == NULL || (options.value != NULL && value == NULL))
		status = dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	else
		status = init(op, handle, DLOCK_OP_ACQUIRE, key, &options, wait_until(&options), err);
	if (op == NULL || status != DLOCK_OK)
	{
		free(value);
		free(op);
		return status;
	}
	op->options.value = op->value = value;
	op->options.owner = options.owner != NULL ? op->lock->owner : NULL;
	op->done = done;
	op->arg = arg;
	return dlock_handle_start(op, started, err);
}

dlock_status
dlock_adopt(dlock_handle *handle, const char *key, int64_t version, const char *owner,
			const dlock_options *given, dlock_lock **adopted, dlock_error *err)
{
	dlock_options options;
	dlock_lock *lock;
	dlock_op	op;
	dlock_status status;

	dlock_error_clear(err);
	if (adopted == NULL || key == NULL || version <= 0)
		return dlock_fail(err, DLOCK_INVALID, "lock and key must not be null, and version must be positive");
	*adopted = NULL;
	status = dlock_handle_may_ask(handle, err);
	if (status == DLOCK_OK)
		status = take_options(given, &options, err);
	if (status == DLOCK_OK)
		status = dlock_background_start(handle, err);
	if (status != DLOCK_OK)
		return status;
	lock = dlock_lock_make(handle, key, owner, &options);
	if (lock == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	lock->version = version;
	dlock_op_init(&op, handle, DLOCK_OP_ADOPT, options.timeout_ms, dlock_now());
	dlock_op_set_lock(&op, lock);
	return run(&op, adopted, err);
}

/*
 * Several locks at once: all of them or none
 *
 * They are granted by one statement and have the same owner and TTL, so they are
 * due at the same time and are renewed by one statement, too (background.c).
 * Otherwise they are locks like all others.
 */

static dlock_status
check_several(const char *const *keys, size_t n, const int32_t *slots, const int *shared,
			  const dlock_options *options, dlock_error *err)
{
	if (n < 1 || n > DLOCK_MAX_KEYS)
		return dlock_fail(err, DLOCK_INVALID, "there must be from 1 to %d keys", DLOCK_MAX_KEYS);
	for (size_t i = 0; i < n; i++)
	{
		if (keys[i] == NULL)
			return dlock_fail(err, DLOCK_INVALID, "key must not be null");
		if (slots != NULL && (slots[i] < 1 || (shared != NULL && shared[i] && slots[i] != 1)))
			return dlock_fail(err, DLOCK_INVALID, "slots must be 1 or more, and 1 with shared");
	}
	if (options->owner != NULL && !options->adopt)
		return dlock_fail(err, DLOCK_INVALID, "an owner of several keys needs adopt");
	if (options->cleanup_ms != 0 || options->force || options->at_least_ms != 0 ||
		options->delay_ms != 0 || options->lazy || options->reentrant)
		return dlock_fail(err, DLOCK_INVALID,
						  "cleanup_ms, force, at_least_ms, delay_ms, lazy and reentrant cannot be used for several keys");
	return DLOCK_OK;
}

/* False: no memory. */
static bool
make_locks(dlock_handle *handle, const char *const *keys, size_t n,
		   const int32_t *slots, const int *shared, const dlock_options *given, dlock_lock **locks)
{
	dlock_options options = *given;
	char		owner[DLOCK_OWNER_SIZE];

	if (options.owner == NULL && !dlock_random_owner(owner))
		return false;
	for (size_t i = 0; i < n; i++)
	{
		if (slots != NULL)
			options.slots = slots[i];
		if (shared != NULL)
			options.slots = shared[i] ? DLOCK_SHARED : slots != NULL ? slots[i] : 1;
		locks[i] = dlock_lock_make(handle, keys[i],
								   options.owner != NULL ? options.owner : owner, &options);
		if (locks[i] == NULL)
			return false;
	}
	return true;
}

dlock_status
dlock_acquire_all(dlock_handle *handle, const char *const *keys, size_t n,
				  const int32_t *slots, const int *shared, const dlock_options *given,
				  dlock_lock **locks, dlock_error *err)
{
	dlock_options options;
	DlockParamList list;
	dlock_op	op;
	int64_t		until;
	dlock_status status;

	dlock_error_clear(err);
	if (keys == NULL || locks == NULL)
		return dlock_fail(err, DLOCK_INVALID, "keys and locks must not be null");
	memset(locks, 0, n * sizeof(dlock_lock *));
	status = dlock_handle_may_ask(handle, err);
	if (status == DLOCK_OK)
		status = take_options(given, &options, err);
	if (status == DLOCK_OK)
		status = check_several(keys, n, slots, shared, &options, err);
	if (status != DLOCK_OK)
		return status;
	until = wait_until(&options);

	/* everything that may run out of memory comes before the grant */
	status = dlock_background_start(handle, err);
	if (status == DLOCK_OK && !make_locks(handle, keys, n, slots, shared, &options, locks))
		status = dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	if (status == DLOCK_OK)
	{
		dlock_op_init(&op, handle, DLOCK_OP_STATEMENT, options.timeout_ms, until);
		op.options = options;
		dlock_op_set_locks(&op, locks, n, &list);
		status = dlock_op_run(&op, err);
	}
	for (size_t i = 0; i < n && status != DLOCK_OK; i++)
	{
		dlock_lock_destroy(locks[i]);
		locks[i] = NULL;
	}
	return status;
}

/*
 * Elections; dlock_observe() is in inspect.c
 */

dlock_status
dlock_campaign(dlock_handle *handle, const char *key, const dlock_options *given,
			   dlock_lock **lock, dlock_error *err)
{
	dlock_options options;
	dlock_status status = take_options(given, &options, err);

	if (status != DLOCK_OK)
		return status;
	if (options.wait_ms <= 0)
		options.wait_ms = -1;
	/* they are taken once more */
	if (options.shared)
		options.slots = 1;
	return dlock_acquire(handle, key, &options, lock, err);
}
