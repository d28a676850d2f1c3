/*-------------------------------------------------------------------------
 *
 * sql.h
 *	  The statements.  Their parameters are described in sql.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SQL_H
#define DLOCK_SQL_H

extern const char dlock_sql_lookup[];
extern const char dlock_sql_probe[];
extern const char dlock_sql_listen[];
extern const char dlock_sql_try[];
extern const char dlock_sql_wait[];
extern const char dlock_sql_try_all[];
extern const char dlock_sql_wait_all[];
extern const char dlock_sql_release[];
extern const char dlock_sql_check[];
extern const char dlock_sql_refresh_key[];
extern const char dlock_sql_adopt[];
extern const char dlock_sql_refresh[];
extern const char dlock_sql_force_release[];
extern const char dlock_sql_release_all[];
extern const char dlock_sql_renew[];
extern const char dlock_sql_orphans[];
extern const char dlock_sql_info[];
extern const char dlock_sql_list[];
extern const char dlock_sql_list_hot[];
extern const char dlock_sql_waiters[];
extern const char dlock_sql_watch[];
extern const char dlock_sql_health[];
extern const char dlock_sql_stats[];
extern const char dlock_sql_wait_times[];
extern const char dlock_sql_contended[];

#endif							/* DLOCK_SQL_H */
