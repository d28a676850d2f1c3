/*-------------------------------------------------------------------------
 *
 * arrays.c
 *	  Several grants as parameters of a statement, which are arrays.
 *
 *-------------------------------------------------------------------------
 */
#include "arrays.h"
#include "util.h"

/* Another element follows. */
void
dlock_array_next(PQExpBuffer array)
{
	appendPQExpBufferChar(array, array->len == 0 ? '{' : ',');
}

/* An element; NULL is null. */
void
dlock_array_text(PQExpBuffer array, const char *text)
{
	dlock_array_next(array);
	if (text != NULL)
		dlock_append_quoted(array, text);
	else
		appendPQExpBufferStr(array, "NULL");
}

/* Returns false if memory has run out. */
bool
dlock_array_end(PQExpBuffer array)
{
	if (array->len == 0)
		appendPQExpBufferChar(array, '{');
	appendPQExpBufferChar(array, '}');
	return !PQExpBufferBroken(array);
}

void
dlock_arrays_init(DlockArrays *arrays)
{
	initPQExpBuffer(&arrays->keys);
	initPQExpBuffer(&arrays->versions);
	initPQExpBuffer(&arrays->owners);
}

void
dlock_arrays_add(DlockArrays *arrays, const dlock_lock *lock)
{
	dlock_array_text(&arrays->keys, lock->key);
	dlock_array_next(&arrays->versions);
	appendPQExpBuffer(&arrays->versions, "%lld", (long long) lock->version);
	dlock_array_text(&arrays->owners, lock->owner);
}

/* Set the first three parameters.  Returns false if memory has run out. */
bool
dlock_arrays_params(DlockArrays *arrays, const char **params)
{
	bool		good = dlock_array_end(&arrays->keys);

	good = dlock_array_end(&arrays->versions) && good;
	good = dlock_array_end(&arrays->owners) && good;
	params[0] = arrays->keys.data;
	params[1] = arrays->versions.data;
	params[2] = arrays->owners.data;
	return good;
}

void
dlock_arrays_free(DlockArrays *arrays)
{
	termPQExpBuffer(&arrays->keys);
	termPQExpBuffer(&arrays->versions);
	termPQExpBuffer(&arrays->owners);
}
