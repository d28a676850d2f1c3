/*
 * What cppcheck has to know about PostgreSQL, whose headers it does not read.
 */
#define PG_VERSION_NUM 150000

#define UINT64_FORMAT "%lu"
#define INT64_FORMAT "%ld"
#define INTERVAL_NOT_FINITE(i)	((i)->month == INT32_MAX)

#define LOG		15
#define ERROR	21

/* an error does not return */
#define ereport(level, ...) \
	do { (void) (__VA_ARGS__); if ((level) >= ERROR) abort(); } while (0)
#define elog(level, ...) \
	do { (void) (__VA_ARGS__); if ((level) >= ERROR) abort(); } while (0)

/* loops that look like calls */
#define dlist_foreach(iter, head) \
	for (memset(&(iter), 0, sizeof(iter)); dlist_step(&(iter), head);)
#define dlist_reverse_foreach(iter, head)	dlist_foreach(iter, head)
#define dlist_foreach_modify(iter, head)	dlist_foreach(iter, head)
#define slist_foreach(iter, head)	dlist_foreach(iter, head)
#define slist_foreach_modify(iter, head)	dlist_foreach(iter, head)
#define foreach(cell, list) \
	for ((cell) = list_head(list); (cell) != NULL; (cell) = lnext(list, cell))

/* and blocks that look like statements */
#define PG_ENSURE_ERROR_CLEANUP(function, arg)	{ (void) (function); (void) (arg)
#define PG_END_ENSURE_ERROR_CLEANUP(function, arg) }
