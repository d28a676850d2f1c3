# libdlock: a handle that is closed in a callback, or used after a fork; and
# what a server that lacks something says.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;

client_build();

my $node = new_node('misuse', conf => "log_disconnections = on\n");
my $mine = "FROM pg_stat_activity WHERE application_name = 'libdlock'";

#
# dlock_close() in a callback
#

my $a = driver(undef);
foreach my $round (1 .. 5)
{
	is($a->ask('open', conninfo($node), close => 1)->{status}, 'ok', 'opened');
	$a->ask('acquire', "closed $_", ttl => 600000, renew => 1) foreach 1 .. 3;
	$node->safe_psql('postgres', "SELECT dlock_force_release('closed 2', 'test')");
	ok($a->event('lost', 'closed 2'), 'a lock is lost, and the callback closes the handle');
	$a->ask('forget');
	$node->poll_query_until('postgres', "SELECT count(*) = 0 $mine") or die 'the connections stay';
	is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks"), 2, 'the others end by their TTL');
	is($a->events, '', 'and nothing more is told');
	$node->safe_psql('postgres', "SELECT dlock_force_release(key, 'test') FROM dlock_locks");
}

#
# A child has the handle of its parent
#

is($a->ask('open', conninfo($node))->{status}, 'ok', 'opened');
is($a->ask('acquire', 'parent', ttl => 600000, renew => 1)->{status}, 'ok', 'a lock');
# so that there are connections of the renewal thread, of a session lock, and in the pool
$node->poll_query_until('postgres', "SELECT count(*) = 1 $mine AND query LIKE '%x.refreshed%' AND state = 'idle'")
  or die 'the renewal thread has no connection';
is($a->ask('acquire', 'session', ttl => 600000, session => 1)->{status}, 'ok', 'a session lock');
is($a->ask('check', 'parent')->{status}, 'ok', 'checked');
is($node->safe_psql('postgres', "SELECT count(*) $mine"), 3, 'three connections');
my $pids = $node->safe_psql('postgres', "SELECT array_agg(pid ORDER BY pid) $mine");
my $offset = -s $node->logfile;
my $child = $a->ask('fork', 'parent');
is($child->{$_}, 'invalid', "$_ in a child") foreach qw(acquire campaign ping info watch release_key release refresh check);
is($child->{said}, 'fork', 'and it says why');
is(join(' ', map { $child->{$_} } qw(owner left reason)), '0 0 none', 'nothing is the child\'s');
is(join(' ', map { $child->{$_} } qw(ttl version)), '600000 1', 'though it may look at it');
is($child->{sockets}, '1-0', 'closing the handle closes its sockets');

is($a->ask('state', 'parent')->{owner}, 1, 'the parent has its lock');
is($a->ask($_, 'parent')->{status}, 'ok', "$_ in the parent") foreach qw(check refresh);
is($a->ask('check', 'session')->{status}, 'ok', 'the session lock too');
is($node->safe_psql('postgres', "SELECT array_agg(pid ORDER BY pid) $mine"), $pids, 'on the same connections');
unlike(slurp_file($node->logfile, $offset), qr/disconnection: .* database=postgres host=\[local\] application_name=libdlock|invalid message|protocol/,
	'the server has not noticed anything');
is($a->events, '', 'no events');
is($a->ask('release', $_)->{status}, 'ok', "$_: released") foreach qw(parent session);
$a->ask('close');

#
# What is missing
#

# a setting in the conninfo that the server does not know
is($a->ask('open', conninfo($node, more => "options='-c nonsense=1'"))->{status}, 'ok', 'opened');
my $answer = $a->ask('acquire', 'x');
is("$answer->{status} $answer->{sqlstate}", 'invalid 42704', 'an unknown setting in the conninfo');
$a->ask('close');

# an object that should be there, but is not
$node->safe_psql('postgres', q{
CREATE DATABASE odd;
\c odd
CREATE EXTENSION dlock;
ALTER EXTENSION dlock DROP FUNCTION dlock_check(text, bigint, text);
CREATE OR REPLACE FUNCTION dlock_check(key text, version bigint DEFAULT NULL, owner text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$ BEGIN RETURN pg_catalog.current_setting('dlock_none.setting'); END $$;});
is($a->ask('open', conninfo($node, dbname => 'odd'))->{status}, 'ok', 'opened');
$answer = $a->ask('ping');
is("$answer->{status} $answer->{sqlstate}", 'not_ready 42704', 'something is missing on the server');
$a->ask('close');

is($a->finish, '', 'nothing was printed');
$node->stop;

done_testing();
