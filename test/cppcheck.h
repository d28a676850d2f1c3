/*
 * What cppcheck has to know of PostgreSQL, whose headers it does not read.
 */
#define PG_VERSION_NUM 150000

#define LOG		15
#define ERROR	21

/* an error does not come back */
#define ereport(level, ...) \
	do { (void) (__VA_ARGS__); if ((level) >= ERROR) abort(); } while (0)
#define elog(level, ...) \
	do { (void) (__VA_ARGS__); if ((level) >= ERROR) abort(); } while (0)
