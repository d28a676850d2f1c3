# what a regression test of the C edition needs to run on the portable one
s/EXTENSION (IF (NOT )?EXISTS )?dlock\b/EXTENSION \1dlock_portable/
# the portable edition has no priority; these tests do not depend on it
s/, priority => [0-9]+//g
# psql 13 has no \getenv and shows only the last of several results, and PostgreSQL 13 has no multiranges
/^\\getenv root /d
s/^(SELECT dlock_fence\(.*\))\\; (INSERT .*)$/\2\n\1;/
s/::int4multirange//
# it cannot tell whether it is called outside of a transaction block
/^(s2: )?WARNING:  dlock_fence\(\) protects nothing/,/^HINT:/d
/^WARNING:  25P01$/d
# prepared transactions work; a request that waits for itself waits
/^-- PREPARE TRANSACTION/,$d
/^-- waits for itself/,$d
