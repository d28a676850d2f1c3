# libdlock: every role may send events, so it believes none of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use DlockClient;
use DlockTest;

client_build();

my $node = new_node('events', conf => "log_statement = all\n");
my $a = driver(conninfo($node));
my $b = driver(conninfo($node));
$node->safe_psql('postgres', 'CREATE ROLE mallory LOGIN');

# A psql of the one who forges.
sub forge
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', 'mallory' ]);
}

# This many events of a lock, each in a transaction of its own, none like another.
sub events_of
{
	my ($event, $lock, $count) = @_;

	return join "\n", map { qq(NOTIFY dlock, '{"event": "$event", "key": "$lock->{key}", "version": $lock->{version}, "n": $_}';) } 1 .. $count;
}

# What the renewal thread has asked of a key since then: questions, and which of
# them renew.
sub questions
{
	my ($offset, $key) = @_;
	my @asked = slurp_file($node->logfile, $offset) =~
	  /x\.refreshed, x\.state[^\n]*\n[^\n]*\$1 = '\{[^']*\b\Q$key\E\b[^']*\}', \$2 = '[^']*', \$3 = '[^']*', \$4 = '\{([tf,]*)\}'/g;

	return (scalar @asked, scalar grep { /t/ } @asked);
}

sub acquire
{
	my ($key, %options) = @_;
	my $lock = $a->ask('acquire', $key, ttl => 600000, renew => 1, %options);

	is($lock->{status}, 'ok', "$key: acquired");
	$lock->{key} = $key;
	return $lock;
}

#
# A flood of false events
#

my $offset = -s $node->logfile;
my $lock = acquire('flood');
# it asks once when it listens, of what it may have missed
wait_until('it listens', sub { return (questions($offset, 'flood'))[0] > 0 });
my $last = acquire('last');

$offset = -s $node->logfile;
my $start = time;
forge(events_of($_, $lock, 400)) foreach 'preempt', 'forced', 'expired';
# a question is about all that was heard, so there is none of the flood after this one
forge(events_of('preempt', $last, 1));
wait_until('it has asked', sub { return (questions($offset, 'last'))[0] > 0 });
my ($asked, $renewed) = questions($offset, 'flood');
my $seconds = time - $start;
note "$asked questions in $seconds seconds";
cmp_ok($asked, '>', 0, 'it has asked of the flood, too');
is($renewed, 0, 'false events cause no renewal');
# besides the first four
cmp_ok($asked, '<=', 4 * $seconds + 4, 'and four questions a second at most');
is($a->events, '', 'nobody is told');
is($a->ask('state', 'flood')->{owner}, 1, 'and nothing has changed');

# what is no event, and events of others, cost nothing at all
$offset = -s $node->logfile;
my $next = $lock->{version} + 1;
my @others = (
	'x', '{', qq("version": $lock->{version}),
	qq({"event": "forced", "key": "flood", "version": $next}),
	qq({"event": "forced", "key": "flood\\", \\"version\\": $lock->{version}", "version": 1}),
	qq({"event": "forced", "key": "another", "version": $lock->{version}}),
	qq({"event": "forced", "key": "flood", "version": $lock->{version}, "version": 1}),
	qq({"event": "other", "key": "flood", "version": $lock->{version}}));
forge("NOTIFY dlock, '$_'") foreach @others;
# this one shows that all before it have been heard
forge(events_of('preempt', $lock, 1));
wait_until('it has asked', sub { return (questions($offset, 'flood'))[0] > 0 });
is(join(' ', questions($offset, 'flood')), '1 0', 'what does not name a lock of ours is not asked about');

#
# A request to yield and a forced release in the midst of that
#

my $in = events_of('preempt', $lock, 100_000);
my $flood = IPC::Run::start(
	[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-U', 'mallory', '-d', $node->connstr('postgres') ],
	'<', \$in, '>', \my $out, '2>', \my $err);
my $yield = acquire('yield', cleanup => 60000);
$b->send('acquire', 'yield', wait => 50000, priority => 1);
is($a->event('preempted', 'yield')->{version}, $yield->{version}, 'asked to yield, and told');
is($a->ask('release', 'yield')->{status}, 'ok', 'it yields');
is($b->answer->{status}, 'ok', 'to the one who asked');
acquire('force');
$node->safe_psql('postgres', "SELECT dlock_force_release('force', 'test')");
is($a->event('lost', 'force')->{reason}, 'forced', 'taken away, and told');
$flood->pump_nb;
ok($flood->pumpable, 'the flood went on all the time');
$flood->kill_kill;
is($a->events, '', 'and there were no other events');

#
# The reason
#

# an event that the server did not confirm says nothing of what comes later
$lock = acquire('liar');
$offset = -s $node->logfile;
forge(events_of('forced', $lock, 1));
wait_until('it has asked', sub { return (questions($offset, 'liar'))[0] > 0 });
is($a->ask('refresh', 'liar')->{status}, 'ok', 'and has been answered: a refresh waits for that');
is($b->ask('release_key', 'liar', owner => $lock->{owner})->{status}, 'ok', 'released by one who knows its owner');
is($a->ask('check', 'liar')->{status}, 'lost', 'lost');
is($a->event('lost', 'liar')->{reason}, 'expired', 'but not forced');

# another one has it: that is the server's word, and needs no event
$lock = acquire('taken');
is($b->ask('release_key', 'taken', owner => $lock->{owner})->{status}, 'ok', 'released by one who knows its owner');
is($b->ask('acquire', 'taken')->{status}, 'ok', 'another one takes it');
is($a->ask('check', 'taken')->{status}, 'lost', 'lost');
is($a->event('lost', 'taken')->{reason}, 'forced', 'taken away');

#
# What happened before it listened is noticed when it does
#

$a->ask('close');
$a->ask('open', conninfo($node));
$lock = acquire('early', cleanup => 60000);
$b->send('acquire', 'early', wait => 50000, priority => 1);
is($a->event('preempted', 'early')->{version}, $lock->{version}, 'asked to yield at once, and told');
is($a->ask('release', 'early')->{status}, 'ok', 'it yields');
is($b->answer->{status}, 'ok', 'to the one who asked');

# nor does it miss what happens while it has no connection
$lock = acquire('cut');
my $connections = "application_name = 'libdlock' AND query LIKE '%x.refreshed%'";
$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity WHERE $connections AND state = 'idle'")
  or die 'the renewal thread has no connection';
$node->safe_psql('postgres', "SELECT dlock_force_release('cut', 'test'), pg_terminate_backend(pid) FROM pg_stat_activity WHERE $connections");
is($a->event('lost', 'cut')->{version}, $lock->{version}, 'lost while the connection was: noticed with the next one');

is($_->finish, '', 'nothing was printed') foreach $a, $b;
$node->stop;

done_testing();
