/*-------------------------------------------------------------------------
 *
 * params.c
 *	  Arrays as parameters of a statement, in the server's binary format.
 *
 * An array has an element for each of many requests or locks, and a server takes
 * longer to parse its text than to look up a key.  In this format nothing has to be
 * quoted or parsed.  It is that of array_recv() and of the elements' own receive
 * functions, with integers in network byte order.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/* The OIDs of the types, which are the same on every server. */
static const int32_t oids[] = {
	[DLOCK_TYPE_TEXT] = 25,
	[DLOCK_TYPE_INT4] = 23,
	[DLOCK_TYPE_INT8] = 20,
	[DLOCK_TYPE_BOOL] = 16,
	[DLOCK_TYPE_INTERVAL] = 1186
};

static void
put(PQExpBuffer to, uint64_t number, int size)
{
	char		bytes[8];

	for (int i = 0; i < size; i++)
		bytes[i] = (char) (number >> (8 * (size - 1 - i)));
	appendBinaryPQExpBuffer(to, bytes, (size_t) size);
}

/* The server refuses an interval that is too long, as it would refuse its text. */
static int64_t
microseconds(const char *milliseconds)
{
	int64_t		ms = strtoll(milliseconds, NULL, 10);

	return ms > INT64_MAX / 1000 ? INT64_MAX : ms * 1000;
}

/* To be freed with dlock_params_free(). */
void
dlock_params_init(DlockParamList *list)
{
	initPQExpBuffer(&list->bytes);
	list->n = 0;
}

void
dlock_params_free(DlockParamList *list)
{
	termPQExpBuffer(&list->bytes);
}

/* The next parameter is a text, which stays the caller's; NULL is null. */
void
dlock_params_add_text(DlockParamList *list, const char *text)
{
	list->values[list->n] = text;
	list->lengths[list->n] = 0;
	list->formats[list->n++] = 0;
}

/* The next parameter is an array; n elements have to be added to it. */
void
dlock_params_add_array(DlockParamList *list, DlockType type, int n)
{
	list->starts[list->n] = list->bytes.len;
	list->values[list->n] = NULL;
	list->formats[list->n++] = 1;
	put(&list->bytes, n > 0, 4);	/* dimensions */
	put(&list->bytes, 1, 4);	/* there may be nulls */
	put(&list->bytes, (uint64_t) oids[type], 4);
	if (n == 0)
		return;
	put(&list->bytes, (uint64_t) n, 4);
	put(&list->bytes, 1, 4);	/* the subscript of the first */
}

/* The next element of the last array; NULL is null. */
void
dlock_params_add_element(DlockParamList *list, DlockType type, const char *text)
{
	PQExpBuffer to = &list->bytes;

	if (text == NULL)
	{
		put(to, UINT32_MAX, 4);
		return;
	}
	switch (type)
	{
		case DLOCK_TYPE_NONE:
			break;
		case DLOCK_TYPE_TEXT:
			put(to, strlen(text), 4);
			appendPQExpBufferStr(to, text);
			break;
		case DLOCK_TYPE_INT4:
			put(to, 4, 4);
			put(to, (uint64_t) strtoll(text, NULL, 10), 4);
			break;
		case DLOCK_TYPE_INT8:
			dlock_params_add_number(list, strtoll(text, NULL, 10));
			break;
		case DLOCK_TYPE_BOOL:
			put(to, 1, 4);
			put(to, text[0] == 't', 1);
			break;
		case DLOCK_TYPE_INTERVAL:
			put(to, 16, 4);
			put(to, (uint64_t) microseconds(text), 8);
			put(to, 0, 8);		/* days, months */
			break;
	}
}

/* The next element of an array of DLOCK_TYPE_INT8. */
void
dlock_params_add_number(DlockParamList *list, int64_t number)
{
	put(&list->bytes, 8, 4);
	put(&list->bytes, (uint64_t) number, 8);
}

/* All are there, and values, lengths and formats can be used.  False: no memory. */
bool
dlock_params_finish(DlockParamList *list)
{
	size_t		end = list->bytes.len;

	for (int i = list->n - 1; i >= 0; i--)
		if (list->formats[i] == 1)
		{
			list->values[i] = list->bytes.data + list->starts[i];
			list->lengths[i] = (int) (end - list->starts[i]);
			end = list->starts[i];
		}
	return !PQExpBufferDataBroken(list->bytes);
}
