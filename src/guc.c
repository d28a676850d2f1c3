/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  dlock's settings.
 *
 * Ordinary users cannot change the settings that weaken the guarantees (the
 * maximum TTL, whether grants are durable), because such a change would leak
 * from one client of a connection pooler to the next.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"

#include "guc.h"
#include "rules/key.h"

int			dlock_default_ttl;
int			dlock_max_ttl;
int			dlock_reap_interval;
int			dlock_max_tickets;
bool		dlock_require_sync;
bool		dlock_durable_grants;
bool		dlock_durable_releases;
int			dlock_log_ends;
bool		dlock_only_served;
bool		dlock_allow_direct_writes;
char	   *dlock_token;
char	   *dlock_connection_fence;
char	   *dlock_require_fence;

static const struct config_enum_entry log_ends_options[] = {
	{"none", DLOCK_LOG_NO_ENDS, false},
	{"lost", DLOCK_LOG_LOST, false},
	{"all", DLOCK_LOG_ALL_ENDS, false},
	{NULL, 0, false}
};

static bool
check_token(char **newval, void **extra, GucSource source)
{
	const char *p = *newval;

	/* every version fits into 19 digits; the trigger parses the number */
	if (p == NULL || *p == '\0')
		return true;
	if (strspn(p, "0123456789") == strlen(p) && strlen(p) <= 19)
		return true;
	GUC_check_errdetail("A fencing token is the number that dlock_acquire returned.");
	return false;
}

/* A key may contain colons; a version does not. */
static bool
check_fence(char **newval, void **extra, GucSource source)
{
	const char *p = *newval;
	char	   *end;
	int64		version;

	if (p == NULL || *p == '\0')
		return true;
	errno = 0;
	version = strtoi64(p, &end, 10);
	if (isdigit((unsigned char) *p) && errno == 0 && version > 0 && *end == ':' &&
		end[1] != '\0' && strlen(end + 1) <= DLOCK_MAX_KEY)
		return true;
	GUC_check_errdetail("A fence is the version of a grant, a colon, and the key of its lock, for instance 17:leader.");
	return false;
}

static bool
check_prefix(char **newval, void **extra, GucSource source)
{
	if (*newval == NULL || strlen(*newval) <= DLOCK_MAX_KEY)
		return true;
	GUC_check_errdetail("No key is longer than %d bytes.", DLOCK_MAX_KEY);
	return false;
}

/* What a commit waits for. */
static void
define_durability(void)
{
	DefineCustomBoolVariable("dlock.require_sync",
							 "Refuses to grant locks while too few synchronous standbys confirm commits.",
							 NULL,
							 &dlock_require_sync,
							 false,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("dlock.durable_grants",
							 "Makes a commit that contains a grant wait until the grant is durable.",
							 "Such a commit waits for its WAL flush and for the synchronous "
							 "standbys, if any, regardless of synchronous_commit.",
							 &dlock_durable_grants,
							 true,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("dlock.durable_releases",
							 "Makes a commit that contains a release wait until the release is durable.",
							 "Without it, a crash may undo a release, and the lock is held "
							 "again until its TTL ends.",
							 &dlock_durable_releases,
							 false,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
}

/* What fences go by: the trigger, and the connection. */
static void
define_fences(void)
{
	DefineCustomStringVariable("dlock.token",
							   "Sets the fencing token that dlock_fence_trigger checks.",
							   "Use SET LOCAL, so that the token is unset when the transaction ends.",
							   &dlock_token,
							   "",
							   PGC_USERSET, 0,
							   check_token, NULL, NULL);

	DefineCustomStringVariable("dlock.fence",
							   "Commits what was written only while this grant is held.",
							   "The version of the grant, a colon, and the key of its lock. Where "
							   "connections are pooled, use SET LOCAL.",
							   &dlock_connection_fence,
							   "",
							   PGC_USERSET, 0,
							   check_fence, NULL, NULL);

	DefineCustomStringVariable("dlock.require_fence",
							   "Commits what was written only if dlock.fence names a key with this prefix.",
							   NULL,
							   &dlock_require_fence,
							   "",
							   PGC_SUSET, 0,
							   check_prefix, NULL, NULL);
}

void
dlock_guc_init(void)
{
	DefineCustomIntVariable("dlock.default_ttl",
							"Sets the TTL of grants that do not specify one.",
							NULL,
							&dlock_default_ttl,
							20 * 1000, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_ttl",
							"Sets the maximum TTL of a grant.",
							NULL,
							&dlock_max_ttl,
							24 * 60 * 60 * 1000, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.reap_interval",
							"Sets how often the reaper looks for expired locks.",
							"Zero turns the reaper off. The next acquire can take an expired "
							"lock whether or not the reaper has run.",
							&dlock_reap_interval,
							1000, 0, INT_MAX / 100,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);

	/* later it would be an error, and hide the one that says what to do */
	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("dlock.max_tickets",
								"Sets how many tickets can wait at the same time.",
								NULL,
								&dlock_max_tickets,
								10000, 0, 1000000,
								PGC_POSTMASTER, 0,
								NULL, NULL, NULL);

	DefineCustomEnumVariable("dlock.log_ends",
							 "Sets which ends of grants are logged.",
							 "\"lost\" logs grants that expired, were preempted or were "
							 "forcibly released; \"all\" also logs those that were released.",
							 &dlock_log_ends,
							 DLOCK_LOG_LOST, log_ends_options,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("dlock.only_served",
							 "Reports an error if a lock is not held and its shard is not served.",
							 "For clients that may have sent a request to the wrong server.",
							 &dlock_only_served,
							 false,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("dlock.allow_direct_writes",
							 "Allows UPDATE, DELETE and TRUNCATE of table dlock.locks.",
							 "For repairs and tests. Holders are not told.",
							 &dlock_allow_direct_writes,
							 false,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	define_durability();
	define_fences();
	MarkGUCPrefixReserved("dlock");
}
