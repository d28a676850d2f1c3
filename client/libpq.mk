# Where libpq is: PQ_CPPFLAGS and PQ_LIBS, for client/Makefile and client/cli/Makefile.
#
# libpq is found by PG_CONFIG if that is given, otherwise by pkg-config.  The
# header of PQExpBuffer (buffer.h) is among libpq's internal headers, whose folder
# pkg-config does not know.

ifdef PG_CONFIG
PQ_INCLUDE := $(shell $(PG_CONFIG) --includedir)
PQ_INTERNAL := $(shell $(PG_CONFIG) --pkgincludedir)/internal
PQ_LIBS := -L$(shell $(PG_CONFIG) --libdir) -lpq
else
PQ_INCLUDE := $(shell pkg-config --variable=includedir libpq)
PQ_INTERNAL := $(patsubst %/,%,$(dir $(firstword \
	$(wildcard $(addsuffix /internal/pqexpbuffer.h, \
	$(PQ_INCLUDE) $(PQ_INCLUDE)/postgresql $(PQ_INCLUDE)/pgsql)))))
PQ_LIBS := $(shell pkg-config --libs libpq)
endif

# last, so that no header there hides one of the system
PQ_CPPFLAGS := -I$(PQ_INCLUDE) -idirafter $(PQ_INTERNAL)
