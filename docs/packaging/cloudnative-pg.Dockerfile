# An extension image for CloudNativePG: the folders lib and share of dlock, and
# nothing else (docs/install.md).  In the folder of the source, from a clean
# checkout:
#
#   docker build -f docs/packaging/cloudnative-pg.Dockerfile -t dlock:1.0-18-trixie .
#
# PG_MAJOR is 18 or later.  The image must be built on the distribution that the
# image of PostgreSQL in your cluster is based on.
#
# How far it was checked: the tests run its "make install" on PostgreSQL 18
# (test/t/operations/511_own_folder.pl).  Neither Docker nor CloudNativePG has
# run it.
ARG PG_MAJOR=18
ARG DISTRIBUTION=trixie

FROM postgres:$PG_MAJOR-$DISTRIBUTION AS build
ARG PG_MAJOR
RUN apt-get update && apt-get install -y --no-install-recommends \
    build-essential postgresql-server-dev-$PG_MAJOR
COPY . /dlock
RUN make -C /dlock PG_CONFIG=/usr/lib/postgresql/$PG_MAJOR/bin/pg_config with_llvm=no \
    DESTDIR=/out datadir=/share pkglibdir=/lib install

FROM scratch
COPY --from=build /out/lib /lib
COPY --from=build /out/share /share
COPY --from=build /dlock/LICENSE /licenses/dlock/
