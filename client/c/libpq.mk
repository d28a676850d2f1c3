# libpq is found by pkg-config (Debian: libpq-dev, pkgconf), or by PG_CONFIG if
# that is given, or if pkg-config does not find it: libpq 19 needs the .pc file of
# libcurl, which may be missing.
#
# The header of PQExpBuffer (base/util.h) is among libpq's internal headers, whose
# folder pkg-config does not know.  It comes last, so that no header there hides
# one of the system.
ifneq ($(shell pkg-config --cflags --libs libpq >/dev/null 2>&1 && echo yes),yes)
PG_CONFIG ?= pg_config
endif

ifdef PG_CONFIG
PQ_CPPFLAGS := -I$(shell $(PG_CONFIG) --includedir)
PQ_INTERNAL := $(shell $(PG_CONFIG) --pkgincludedir)/internal
PQ_LIBS := -L$(shell $(PG_CONFIG) --libdir) -lpq
else
PQ_CPPFLAGS := $(shell pkg-config --cflags libpq)
PQ_INCLUDE := $(shell pkg-config --variable=includedir libpq)
PQ_INTERNAL := $(patsubst %/,%,$(dir $(firstword \
	$(wildcard $(addsuffix /internal/pqexpbuffer.h, \
	$(PQ_INCLUDE) $(PQ_INCLUDE)/postgresql $(PQ_INCLUDE)/pgsql)))))
PQ_LIBS := $(shell pkg-config --libs libpq)
endif
PQ_CPPFLAGS += $(if $(PQ_INTERNAL),-idirafter $(PQ_INTERNAL))
