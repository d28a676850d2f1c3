# dlock: TTL locks in plain SQL

EXTENSION = dlock
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" dlock.control)

MODULE_big = dlock
OBJS = \
	src/clock.o \
	src/database.o \
	src/dlock.o \
	src/guc.o \
	src/journal.o \
	src/shmem.o \
	src/worker.o \
	src/fence/connection_fence.o \
	src/fence/fence_trigger.o \
	src/fence/key_text.o \
	src/fence/statement_role.o \
	src/functions/arguments.o \
	src/functions/functions.o \
	src/functions/listing.o \
	src/health/direct_writes.o \
	src/health/health.o \
	src/health/standby.o \
	src/lock/acquire.o \
	src/lock/events.o \
	src/lock/grant.o \
	src/lock/grant_end.o \
	src/lock/lock.o \
	src/lock/session.o \
	src/lock/watch.o \
	src/lock/xact.o \
	src/policy/policy.o \
	src/policy/policy_functions.o \
	src/queue/backend_wait.o \
	src/queue/deadlock.o \
	src/queue/queue.o \
	src/queue/ready_list.o \
	src/queue/wait_log.o \
	src/queue/wait_report.o \
	src/rows/find.o \
	src/rows/expiry.o src/rows/place_count.o \
	src/rows/places.o \
	src/rows/row.o \
	src/rows/row_hint.o \
	src/rows/scan.o \
	src/rows/table.o \
	src/rows/version.o \
	src/rows/write.o \
	src/rules/lock_rules.o \
	src/shard/shard.o \
	src/shard/shard_functions.o \
	src/stats/contended_keys.o \
	src/stats/stats.o \
	src/stats/stats_functions.o \
	src/tickets/granter.o \
	src/tickets/ticket_grant.o \
	src/tickets/ticket.o \
	src/tickets/ticket_functions.o \
	src/tickets/ticket_memory.o \
	src/workers/launcher.o \
	src/workers/reaper.o
PGFILEDESC = "dlock - TTL locks in plain SQL"

DATA = $(wildcard sql/dlock--*.sql)

PG_CPPFLAGS = -I$(srcdir)/src -DDLOCK_VERSION='"$(EXTVERSION)"'
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare

# PostgreSQL 15 exports every symbol of a library, so that each call from one file
# to another goes through a table.  Later versions hide them.
ifeq ($(shell uname -s),Linux)
PG_CFLAGS += -fno-semantic-interposition
SHLIB_LINK += -Wl,-Bsymbolic
endif

REGRESS = install acquire slots acquire_all endings handover limit max_hold expiry errors transactions fence connection_fence row_keys cascade roles many wrong_hints no_head room health rows table shard tickets
ISOLATION = try late wait fenced_takeover snapshot reindex held_snapshot events recreate
TAP_TESTS = 1

# "make installcheck" looks for these beside sql/ and expected/ otherwise
ISOLATION_OPTS = --inputdir=$(srcdir)/test
PROVE_TESTS = test/t/*/*.pl

UNIT = test/unit/lock_rules_test test/unit/lock_rules_rows_test
EXTRA_CLEAN = $(UNIT) $(UNIT:=.o) test/unit/lock_rules_table test/unit/lock_rules_table.o

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# the tests change the table of locks by SQL; test/regress.conf does this for other servers
installcheck: export PGOPTIONS += -c dlock.allow_direct_writes=on

# PGXS does not know which headers an object was made of
$(OBJS): $(wildcard src/*.h src/*/*.h)

# the rules of src/rules, tested without a server
unit: $(UNIT)
	./test/unit/lock_rules_test
	./test/unit/lock_rules_rows_test

$(UNIT) test/unit/lock_rules_table: %: %.o src/rules/lock_rules.o
	$(CC) $(CFLAGS) $^ $(LDFLAGS) -o $@

$(UNIT:=.o) test/unit/lock_rules_table.o src/rules/lock_rules.o: $(wildcard src/rules/*.h)

# libdlock and the command line, which need libpq alone
client:
	$(MAKE) -C client/c

# the archive for PGXN, of what is committed
DISTNAME = dlock-$(shell sed -n 's/^   "version": "\(.*\)",/\1/p' META.json)

dist:
	git archive --format=zip --prefix=$(DISTNAME)/ --output=$(DISTNAME).zip HEAD

.PHONY: unit client dist
