# dlock: TTL locks in plain SQL

EXTENSION = dlock
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" dlock.control)

MODULE_big = dlock
OBJS = \
	src/all.o \
	src/announce.o \
	src/args.o \
	src/await.o \
	src/census.o \
	src/circle.o \
	src/clock.o \
	src/contended.o \
	src/database.o \
	src/deadlock.o \
	src/desk.o \
	src/dlock.o \
	src/drafts.o \
	src/due.o \
	src/ends.o \
	src/events.o \
	src/find.o \
	src/found.o \
	src/fsm.o \
	src/funcs.o \
	src/grant.o \
	src/granter.o \
	src/graph.o \
	src/guc.o \
	src/health.o \
	src/hint.o \
	src/indexes.o \
	src/key.o \
	src/keytext.o \
	src/known.o \
	src/launcher.o \
	src/listing.o \
	src/lock.o \
	src/lwlocks.o \
	src/outlook.o \
	src/owners.o \
	src/pins.o \
	src/places.o \
	src/policy.o \
	src/policy_funcs.o \
	src/queue.o \
	src/quota.o \
	src/range.o \
	src/ready.o \
	src/reaper.o \
	src/record.o \
	src/role.o \
	src/row.o \
	src/scan.o \
	src/serve.o \
	src/session.o \
	src/session_end.o \
	src/shard.o \
	src/shard_funcs.o \
	src/shmem.o \
	src/shown.o \
	src/standby.o \
	src/stats.o \
	src/stats_funcs.o \
	src/store.o \
	src/subscriber.o \
	src/tally.o \
	src/ticket.o \
	src/ticket_funcs.o \
	src/ticket_room.o \
	src/trigger.o \
	src/using.o \
	src/version.o \
	src/views.o \
	src/wait.o \
	src/waiter.o \
	src/waitlog.o \
	src/worker.o \
	src/write.o \
	src/xact.o
PGFILEDESC = "dlock - TTL locks in plain SQL"

DATA = $(wildcard sql/dlock--*.sql)

PG_CPPFLAGS = -DDLOCK_VERSION='"$(EXTVERSION)"'
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare

# PostgreSQL 15 exports every symbol of a library, so that each call from one file
# to another goes through a table.  Later versions hide them.
ifeq ($(shell uname -s),Linux)
PG_CFLAGS += -fno-semantic-interposition
SHLIB_LINK += -Wl,-Bsymbolic
endif

REGRESS = install acquire slots acquire_all endings expiry errors xact fence keytext cascade roles many hints known census health rows table shard tickets
ISOLATION = try kinds late wait fenced_takeover snapshot reindex held_snapshot events recreate
TAP_TESTS = 1

EXTRA_CLEAN = test/fsm_test test/fsm_test.o test/fsm_rows_test test/fsm_rows_test.o \
	test/fsm_table test/fsm_table.o

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS does not know which headers an object was made of
$(OBJS): $(wildcard src/*.h)

# the rules of src/fsm.c, tested without a server
unit: test/fsm_test test/fsm_rows_test
	./test/fsm_test
	./test/fsm_rows_test

test/fsm_test: test/fsm_test.o src/fsm.o
	$(CC) $(CFLAGS) $^ $(LDFLAGS) -o $@

test/fsm_rows_test: test/fsm_rows_test.o src/fsm.o
	$(CC) $(CFLAGS) $^ $(LDFLAGS) -o $@

test/fsm_table: test/fsm_table.o src/fsm.o
	$(CC) $(CFLAGS) $^ $(LDFLAGS) -o $@

test/fsm_test.o test/fsm_rows_test.o test/fsm_table.o src/fsm.o: \
	src/fsm.h src/key.h src/state.h

# libdlock, which needs libpq alone; its own Makefile has more
client:
	$(MAKE) -C client

# the archive for PGXN, of what is committed
DISTNAME = dlock-$(shell sed -n 's/^   "version": "\(.*\)",/\1/p' META.json)

dist:
	git archive --format=zip --prefix=$(DISTNAME)/ --output=$(DISTNAME).zip HEAD

.PHONY: unit client dist
