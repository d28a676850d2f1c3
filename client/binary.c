/*-------------------------------------------------------------------------
 *
 * binary.c
 *	  Arrays as parameters, in the server's binary format.
 *
 * The arrays of a flight have many elements, and a server takes longer to parse their
 * text than to look up a key.  In this format nothing has to be quoted or parsed.  It
 * is that of array_recv() and of the elements' own receive functions, with integers
 * in network byte order.
 *
 *-------------------------------------------------------------------------
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "binary.h"

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

/* Of milliseconds.  What does not fit is refused by the server, as its text would be. */
static int64_t
microseconds(const char *text)
{
	int64_t		ms = strtoll(text, NULL, 10);

	return ms > INT64_MAX / 1000 ? INT64_MAX : ms * 1000;
}

/* One of n elements, which have to be added. */
void
dlock_binary_begin(PQExpBuffer array, DlockType type, int n)
{
	put(array, 1, 4);			/* dimensions */
	put(array, 1, 4);			/* there may be nulls */
	put(array, (uint64_t) oids[type], 4);
	put(array, (uint64_t) n, 4);
	put(array, 1, 4);			/* the subscript of the first */
}

/* The next element; NULL is null. */
void
dlock_binary_add(PQExpBuffer array, DlockType type, const char *text)
{
	if (text == NULL)
	{
		put(array, UINT32_MAX, 4);
		return;
	}
	switch (type)
	{
		case DLOCK_TYPE_NONE:
			break;
		case DLOCK_TYPE_TEXT:
			put(array, strlen(text), 4);
			appendPQExpBufferStr(array, text);
			break;
		case DLOCK_TYPE_INT4:
			put(array, 4, 4);
			put(array, (uint64_t) strtoll(text, NULL, 10), 4);
			break;
		case DLOCK_TYPE_INT8:
			put(array, 8, 4);
			put(array, (uint64_t) strtoll(text, NULL, 10), 8);
			break;
		case DLOCK_TYPE_BOOL:
			put(array, 1, 4);
			put(array, text[0] == 't', 1);
			break;
		case DLOCK_TYPE_INTERVAL:
			put(array, 16, 4);
			put(array, (uint64_t) microseconds(text), 8);
			put(array, 0, 8);	/* days, months */
			break;
	}
}
