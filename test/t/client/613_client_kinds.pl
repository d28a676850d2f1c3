# libdlock: several holders of a key, how a grant ends, several keys at once, locks within
# locks, and grants that another process has acquired.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;
use DlockWait;

client_build();

my $node = new_node('kinds');
my ($a, $b, $c, $d) = map { driver(conninfo($node)) } 1 .. 4;

sub on_server
{
	my ($what, $key) = @_;

	return $node->safe_psql('postgres', "SELECT $what FROM dlock_locks WHERE key = '$key' ORDER BY version");
}

sub count_on_server
{
	my ($key) = @_;

	return $node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key = '$key'");
}

# How often the library has sent a statement since the log had that size.
sub statements
{
	my ($offset, $pattern) = @_;
	my @found = slurp_file($node->logfile, $offset) =~ /execute \S+: $pattern/g;

	return scalar @found;
}

#
# At most N at once
#

is(join(' ', map { $_->ask('acquire', 'sem', slots => 3, ttl => 60000)->{status} } $a, $b, $c, $d),
	'ok ok ok busy', 'three places, and no fourth');
is(on_server('slots', 'sem'), "3\n3\n3", 'three grants');
like($a->ask('infos', 'sem')->{grants}, qr{^\d+/3/held,\d+/3/held,\d+/3/held$}, 'dlock_get_info()');
my $newest = (split /\n/, on_server('version', 'sem'))[-1];
is($d->ask('info', 'sem')->{version}, $newest, 'dlock_get_info() is the newest of them');

# an open transaction that takes a place, or the whole of another key
{
	my $open = session($node);

	ask($open, "BEGIN; SELECT dlock_acquire('sem', slots => 10), dlock_acquire('taken')");
	like($a->ask('infos', 'sem')->{grants}, qr{^\d+/3/held,\d+/3/held,\d+/3/held,0/0/pending$}, 'dlock_get_info(): the grants, and what is pending');
	is($d->ask('info', 'sem')->{version}, $newest, 'dlock_get_info(): a grant');
	is($a->ask('infos', 'taken')->{grants}, '0/0/pending', 'dlock_get_info(): only pending');
	is($d->ask('info', 'taken')->{status}, 'not_held', 'dlock_get_info(): nobody holds it');
	ask($open, 'ROLLBACK');
	end_session($open);
	is($a->ask('infos', 'taken')->{count}, 0, 'dlock_get_info(): free again');
}
is($d->ask('info', 'sem')->{slots}, 3, 'and has its slots');
is($d->ask('watch', 'sem', version => $newest, wait => 0)->{status}, 'unchanged', 'as dlock_watch() sees it');
$d->send('acquire', 'sem', slots => 3, wait => 60000, ttl => 60000);
until_sql($node, "SELECT slots FROM dlock_waiters WHERE key = 'sem'", 3, 'the fourth waits');
is($a->ask('waiters', 'sem')->{slots}, 3, 'dlock_list_waiters() has its slots');
is($b->ask('release', 'sem')->{status}, 'ok', 'one is released');
is($d->answer->{status}, 'ok', 'and the fourth has it');
is(join(' ', map { $_->ask('check', 'sem')->{status} } $a, $c, $d), 'ok ok ok', 'the others still have theirs');
is(join(' ', map { $_->ask('release', 'sem')->{status} } $a, $c, $d), 'ok ok ok', 'all are released');
$_->ask('free', 'sem') foreach $a, $b, $c, $d;
is($a->ask('acquire', 'sem', slots => 1)->{status}, 'ok', 'one place is exclusive');
is(on_server('slots', 'sem'), 1, 'one place is exclusive, for the server, too');
is($b->ask('acquire', 'sem', slots => 3)->{status}, 'busy', 'one place is exclusive, indeed');
is($a->ask('release', 'sem')->{status}, 'ok', 'released');
$a->ask('free', 'sem');
is($a->ask('acquire', 'sem', slots => -2)->{status}, 'invalid', 'fewer than shared');
is($a->ask('acquire', 'sem', slots => 10001)->{sqlstate}, '22023', 'too many places');

# a place is renewed by itself: the one that is not renewed ends
$a->ask('acquire', 'own', slots => 2, ttl => 1000, renew => 1);
$b->ask('acquire', 'own', slots => 2, ttl => 1000);
is($b->event('lost', 'own')->{reason}, 'deadline', 'a place that is not renewed is lost');
is($c->ask('acquire', 'own', slots => 2, ttl => 60000, wait => 60000)->{status}, 'ok', 'and another has it');
is($a->ask('check', 'own')->{status}, 'ok', 'the one that is renewed is not');
is($a->events, '', 'without an event');
is(join(' ', map { $_->ask('release', 'own')->{status} } $a, $c), 'ok ok', 'released');
$_->ask('free', 'own') foreach $a, $b, $c;

#
# Readers and writers
#

is(join(' ', map { $_->ask('acquire', 'rw', slots => -1, ttl => 60000)->{status} } $a, $b, $c), 'ok ok ok', 'readers');
is(on_server("coalesce(slots::text, 'null')", 'rw'), "null\nnull\nnull", 'shared');
is($a->ask('info', 'rw')->{slots}, -1, 'dlock_get_info() says so');
is($d->ask('acquire', 'rw')->{status}, 'busy', 'no writer');
$d->send('acquire', 'rw', wait => 60000);
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'rw'", 1, 'a writer waits');
is($b->ask('force_release', 'rw', version => $b->ask('state', 'rw')->{version}, reason => 'test')->{status},
	'ok', 'one reader is taken away');
is($b->event('lost', 'rw')->{reason}, 'forced', 'and is told');
is($b->ask('force_release', 'rw', version => 999999, reason => 'test')->{status}, 'not_held', 'a version that is not there');
is(join(' ', map { $_->ask('release', 'rw')->{status} } $a, $c), 'ok ok', 'the others release');
is($d->answer->{status}, 'ok', 'the writer has it');
is($a->ask('acquire', 'rw', slots => -1)->{status}, 'busy', 'no reader');
is($d->ask('release', 'rw')->{status}, 'ok', 'released');
$_->ask('free', 'rw') foreach $a, $b, $c, $d;

# every reader is asked to yield, by an exclusive request of higher priority
$_->ask('acquire', 'yield', slots => -1, ttl => 60000, cleanup => 60000) foreach $a, $b;
$c->send('acquire', 'yield', priority => 3, wait => 60000);
foreach my $reader ($a, $b)
{
	ok($reader->event('preempted', 'yield'), 'a reader is asked to yield');
	is($reader->ask('check', 'yield')->{status}, 'preempting', 'it was');
	is($reader->ask('release', 'yield')->{status}, 'ok', 'and does');
}
is($c->answer->{status}, 'ok', 'then the writer has it');
is($c->ask('release', 'yield')->{status}, 'ok', 'released');
$_->ask('free', 'yield') foreach $a, $b, $c;

#
# How a grant ends
#

my $lock = $a->ask('acquire', 'least', at_least => 60000);
is($lock->{ttl}, 60000, 'at_least: the default TTL is as long');
is($a->ask('release', 'least')->{status}, 'ok', 'at_least: released');
is($b->ask('acquire', 'least')->{status}, 'busy', 'at_least: but still busy');
is($b->ask('info', 'least')->{state}, 'cooling', 'at_least: it is cooling');
is($a->ask('check', 'least')->{status}, 'not_held', 'at_least: and nobody holds it');
is($b->ask('observe', 'least', wait => 50)->{status}, 'unchanged', 'at_least: nobody leads');
is($b->ask('force_release', 'least', reason => 'test')->{status}, 'ok', 'at_least: an administrator ends that');
is($b->ask('acquire', 'least')->{status}, 'ok', 'at_least: free');
$_->ask('free', 'least') foreach $a, $b;
is($a->ask('acquire', 'short', at_least => 30000, ttl => 10000)->{sqlstate}, '22023', 'at_least: not above a TTL that is given');
is($a->ask('acquire', 'short', at_least => -1)->{status}, 'invalid', 'at_least: negative');

$a->ask('acquire', 'late', delay => 60000, ttl => 60000);
is($a->ask('release', 'late')->{status}, 'ok', 'delay: released');
$a->ask('free', 'late');
is($a->ask('acquire', 'late', delay => 60000, ttl => 60000)->{status}, 'ok', 'delay: free after a release');
$node->safe_psql('postgres', "SELECT dlock_force_release('late', 'test')");
ok($a->event('lost', 'late'), 'delay: taken away');
is($b->ask('acquire', 'late')->{status}, 'busy', 'delay: busy after that');
is($b->ask('info', 'late')->{state}, 'cooling', 'delay: it is cooling');
is($a->ask('acquire', 'both', delay => 1000, lazy => 1)->{sqlstate}, '22023', 'delay: not of a lazy lock');

$lock = $a->ask('acquire', 'lazy', lazy => 1, ttl => 300);
is($a->event('lost', 'lazy')->{reason}, 'deadline', 'lazy: lost at the deadline');
until_sql($node, "SELECT state FROM dlock_locks WHERE key = 'lazy'", 'lapsed', 'lazy: the server keeps it');
is($a->ask('state', 'lazy')->{owner}, 0, 'lazy: but it is not ours for certain');
is($b->ask('info', 'lazy')->{state}, 'lapsed', 'lazy: and others see that');
is($node->safe_psql('postgres', "SELECT dlock_check('lazy', $lock->{version})"), 'held', 'lazy: the server decides');
is($a->ask('release', 'lazy')->{status}, 'ok', 'lazy: released');
$a->ask('free', 'lazy');
$a->ask('acquire', 'lazy', lazy => 1, ttl => 300);
until_sql($node, "SELECT state FROM dlock_locks WHERE key = 'lazy'", 'lapsed', 'lazy: lapsed');
is($b->ask('acquire', 'lazy', ttl => 60000)->{status}, 'ok', 'lazy: another one has it at once');
is($a->ask('release', 'lazy')->{status}, 'held_by_other', 'lazy: and its holder learns');
$_->ask('free', 'lazy') foreach $a, $b;

#
# All or none
#

my $all = $a->ask('all', 'x,y,z', ttl => 60000, renew => 1);
is($all->{status}, 'ok', 'all: granted');
is($all->{versions}, join(',', map { on_server('version', $_) } qw(x y z)), 'all: in the order of the caller');
is($all->{ttl}, 60000, 'all: with the TTL');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE owner = '$all->{owner}'"), 3, 'all: one owner');
is($b->ask('all', 'w,z,v')->{status}, 'busy', 'all: one is busy');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key IN ('v', 'w')"), 0, 'all: and none is granted');
$b->send('all', 'w,z,v', wait => 60000, ttl => 60000);
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'z'", 1, 'all: waits');
is($a->ask('release_all', 'x,y,z')->{status}, 'ok', 'all: released');
is($b->answer->{status}, 'ok', 'all: granted to the one that waits');
is(join(' ', map { $a->ask('state', $_)->{owner} } qw(x y z)), '0 0 0', 'all: not ours any more');
is($a->ask('release_all', 'x,y,z')->{status}, 'not_held', 'all: not released twice');
is($b->ask('release_all', 'w,z,v')->{status}, 'ok', 'all: released');
$a->ask('free', $_) foreach qw(x y z);
$b->ask('free', $_) foreach qw(w z v);

# different kinds, and the options that are for one lock only
is($a->ask('all', 'x,y,z', slots => '-1,3,0', ttl => 60000)->{status}, 'ok', 'all: of different kinds');
is(join(' ', map { on_server("coalesce(slots::text, 'null')", $_) } qw(x y z)), 'null 3 1', 'all: they are');
is(join(' ', map { $b->ask('acquire', $_, slots => -1)->{status} } qw(x z)), 'ok busy', 'all: and behave so');
is($a->ask('release_all', 'x,y,z')->{status}, 'ok', 'all: released');
$a->ask('free', $_) foreach qw(x y z);
$b->ask('release', 'x');
$b->ask('free', 'x');
foreach my $option (qw(cleanup force at_least delay lazy reentrant))
{
	my $answer = $a->ask('all', 'x,y', $option => 1);
	is($answer->{status}, 'invalid', "all: $option is for one lock");
	like($answer->{message}, qr/cannot be used for several keys/, "all: $option: says so");
}
is($a->ask('all', 'x,y,x')->{sqlstate}, '22023', 'all: a key comes twice');
is($a->ask('all', 'x,y', slots => '0,-2')->{status}, 'invalid', 'all: invalid slots');
is($a->ask('all', 'many..1001')->{status}, 'invalid', 'all: too many keys');
is($a->ask('all', '')->{status}, 'invalid', 'all: no keys');
is($a->ask('release_all', '')->{status}, 'ok', 'all: nothing to release');

# one statement each
$node->append_conf('postgresql.conf', 'log_statement = all');
$node->reload;
is($a->ask('all', 'many..1000', ttl => 6000, renew => 1)->{status}, 'ok', 'all: a thousand keys');
my $mark = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
my $offset = -s $node->logfile;
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key LIKE 'many%' AND refreshed_at > '$mark'", 1000, 'all: renewed');
my @renewals = slurp_file($node->logfile, $offset) =~ /parameters: \$1 = '\{[^']*many7[^']*', \$2 = '[^']*', \$3 = '\{([^']*)', \$4 = '\{t/gi;
is(scalar @renewals, 1, 'all: by one statement');
is(scalar(() = $renewals[0] =~ /[0-9a-f]{32}/g), 1000, 'all: which names the owners');
$offset = -s $node->logfile;
is($a->ask('release_all', 'many..1000')->{status}, 'ok', 'all: released');
is(statements($offset, qr/SELECT u\.i, public\.dlock_release/), 1, 'all: by one statement');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key LIKE 'many%'"), 0, 'all: none is left');
$node->append_conf('postgresql.conf', 'log_statement = none');
$node->reload;
$a->ask('close');
$a->ask('open', conninfo($node));

# one of them is lost, and the others are not
$all = $a->ask('all', 'x,y,z', ttl => 60000, renew => 1);
$node->safe_psql('postgres', "SELECT dlock_force_release('y', 'test')");
my $event = $a->event('lost', 'y');
is($event->{version}, (split /,/, $all->{versions})[1], 'all: the loss of one names it');
is(join(' ', map { $a->ask('check', $_)->{status} } qw(x y z)), 'ok lost ok', 'all: the others are ours');
my $answer = $a->ask('release_all', 'x,y,z');
is($answer->{status}, 'not_held', 'all: the release says so');
like($answer->{message}, qr/lock "y" had expired/, 'all: and names it');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key IN ('x', 'y', 'z')"), 0, 'all: the others are released');
$a->ask('free', $_) foreach qw(x y z);

# one that is in use does not take the others with it
is($a->ask('all', 'x,y,z', ttl => 4000, renew => 1)->{status}, 'ok', 'all: granted');
my $psql = client($node, 'in use');
$psql->ask_it('BEGIN');
is($psql->ask_it("SELECT dlock_release('y', (SELECT version FROM dlock_locks WHERE key = 'y'))"), 'released', 'all: one is in use');
is($a->event('lost', 'y')->{reason}, 'deadline', 'all: that one is lost by the clock');
is(join(' ', map { $a->ask('state', $_)->{owner} } qw(x y z)), '1 0 1', 'all: the others are not');
$psql->ask_it('ROLLBACK');
close_clients($psql);
is($a->ask('release_all', 'x,z')->{status}, 'ok', 'all: released');
$a->ask('free', $_) foreach qw(x y z);
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key = 'y'", 0, 'all: gone');

# session locks share a connection, which stays until the last is released
is($a->ask('all', 'x,y,z', session => 1, ttl => 60000)->{status}, 'ok', 'all: session locks');
is($node->safe_psql('postgres', "SELECT count(DISTINCT pid), count(pid) FROM dlock_locks WHERE key IN ('x', 'y', 'z')"),
	'1|3', 'all: of one connection');
is($a->ask('release', 'x')->{status}, 'ok', 'all: the first is released');
$a->ask('free', 'x');
is($a->ask('release', 'z')->{status}, 'ok', 'all: and the last');
is($a->ask('check', 'y')->{status}, 'ok', 'all: the connection is there for the other one');
$a->ask('free', $_) foreach qw(y z);
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key = 'y'", 0, 'all: until it is freed');
is($a->ask('all', 'x,y', session => 1, ttl => 60000)->{status}, 'ok', 'all: session locks');
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM dlock_locks WHERE key = 'x'");
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key IN ('x', 'y')", 0, 'all: they end with their connection');
is(join(' ', map { $a->ask('check', $_)->{status} } qw(x y)), 'lost lost', 'all: and the client knows');
$a->ask('free', $_) foreach qw(x y);

# the answer is lost: one grant of each, or none
foreach my $wait (0, 60000)
{
	my $proxy = proxy($node, cut => qr/dlock_acquire_all/);
	my $e = driver(conninfo($node, host => $proxy->{host}, port => $proxy->{port}));

	$all = $e->ask('all', 'x,y', wait => $wait, ttl => 60000);
	is($all->{status}, 'ok', "all, wait $wait: asked again after a lost answer");
	is($all->{versions}, join(',', map { on_server('version', $_) } qw(x y)), "all, wait $wait: one grant of each");
	is($e->ask('release_all', 'x,y')->{status}, 'ok', "all, wait $wait: released");
	is($e->finish, '', 'finished');
}
my $proxy = proxy($node);
my $doubtful = driver(conninfo($node, host => $proxy->{host}, port => $proxy->{port}));
foreach my $time (1, 2)
{
	# the second time prepares it, so that there is nothing to do before the third
	is($doubtful->ask('all', 'x,y', ttl => 60000)->{status}, 'ok', 'all: granted');
	is($doubtful->ask('release_all', 'x,y')->{status}, 'ok', 'all: released');
	$doubtful->ask('free', $_) foreach qw(x y);
}
my $drawn = $node->safe_psql('postgres', 'SELECT last_value FROM dlock.versions');
$proxy->stop;
is($doubtful->ask('all', 'x,y', ttl => 60000, timeout => 200)->{status}, 'timeout', 'all: no answer');
$proxy->go;
until_sql($node, "SELECT last_value >= $drawn + 2 FROM dlock.versions", 't', 'all: granted nevertheless');
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key IN ('x', 'y')", 0, 'all: and released');
is($doubtful->finish, '', 'finished');

# requests in any order do not wait for each other in a circle
my @others = map { driver(conninfo($node)) } 1 .. 6;
my @orders = ('p,q,r', 'p,r,q', 'q,p,r', 'q,r,p', 'r,p,q', 'r,q,p');
foreach my $round (1 .. 5)
{
	$others[$_]->send('all', $orders[$_], wait => 60000, ttl => 60000) foreach 0 .. 5;
	my $done = 0;
	my %waits = map { $_ => 1 } 0 .. 5;
	while (%waits)
	{
		foreach my $i (sort keys %waits)
		{
			$others[$i]{run}->pump_nb;
			$others[$i]->digest;
			next unless @{ $others[$i]{answers} };
			$done++ if $others[$i]->answer->{status} eq 'ok' && $others[$i]->ask('release_all', $orders[$i])->{status} eq 'ok';
			$others[$i]->ask('free', $_) foreach qw(p q r);
			delete $waits{$i};
		}
	}
	is($done, 6, "all: round $round of any order");
}
$_->finish foreach @others;

#
# Locks within locks
#

$lock = $a->ask('acquire', 're', reentrant => 1, ttl => 60000);
my $inner = $a->ask('acquire', 're', reentrant => 1, ttl => 1000, value => 'other');
is("$inner->{status} $inner->{version} $inner->{ttl}", "ok $lock->{version} 60000", 'within: the same lock');
is($b->ask('acquire', 're', reentrant => 1)->{status}, 'busy', 'within: not for another handle');
is($a->ask('acquire', 're')->{status}, 'busy', 'within: not without the option');
is($a->ask('release', 're')->{status}, 'ok', 'within: the inner release');
is($a->ask('state', 're')->{owner}, 1, 'within: still ours');
is($node->safe_psql('postgres', "SELECT dlock_check('re', $lock->{version})"), 'held', 'within: for the server, too');
$a->ask('free', 're');
is($a->ask('check', 're')->{status}, 'ok', 'within: the outer one is there');
is($a->ask('release', 're')->{status}, 'ok', 'within: the outer release');
is($node->safe_psql('postgres', "SELECT dlock_check('re', $lock->{version})"), 'not_held', 'within: gives it back');
is($a->ask('release', 're')->{status}, 'not_held', 'within: once');
my $next = $a->ask('acquire', 're', reentrant => 1, ttl => 60000);
cmp_ok($next->{version}, '>', $lock->{version}, 'within: one that was released is acquired again');
$a->ask('close');
$a->ask('open', conninfo($node));
$node->safe_psql('postgres', "SELECT dlock_force_release('re', 'test')");

# within one that was acquired without the option, and freed without a release
$lock = $a->ask('acquire', 're', ttl => 60000);
is($a->ask('acquire', 're', reentrant => 1)->{version}, $lock->{version}, 'within: one without the option');
$a->ask('free', 're');
is($a->ask('release', 're')->{status}, 'ok', 'within: what was freed needs no release');
is(count_on_server('re'), 0, 'within: released');
$a->ask('free', 're');

# kinds
$lock = $a->ask('acquire', 're', slots => -1, reentrant => 1, ttl => 60000);
is($a->ask('acquire', 're', slots => -1, reentrant => 1)->{version}, $lock->{version}, 'within: a reader in a reader');
$answer = $a->ask('acquire', 're', reentrant => 1, wait => -1);
is($answer->{status}, 'invalid', 'within: a writer in a reader would wait for itself');
like($answer->{message}, qr/held by this handle, but not exclusively/, 'within: says so');
is(join(' ', map { $a->ask('release', 're')->{status} } 1, 2), 'ok ok', 'within: released');
$a->ask('free', 're') foreach 1, 2;
$lock = $a->ask('acquire', 're', reentrant => 1, ttl => 60000);
is($a->ask('acquire', 're', slots => $_, reentrant => 1)->{version}, $lock->{version}, "within: $_ in a writer") foreach -1, 3;
is(on_server('slots', 're'), 1, 'within: which stays one');

# the lock is lost
$node->safe_psql('postgres', "SELECT dlock_force_release('re', 'test')");
ok($a->event('lost', 're'), 'within: lost');
is($a->ask('release', 're')->{status}, 'lost', 'within: the inner release says so');
$next = $a->ask('acquire', 're', reentrant => 1, ttl => 60000);
is($next->{status}, 'ok', 'within: it is acquired anew');
cmp_ok($next->{version}, '>', $lock->{version}, 'within: which is another lock');
is($a->ask('release', 're')->{status}, 'lost', 'within: the old one is lost');
is($a->ask('release', 're')->{status}, 'held_by_other', 'within: and the last release asks the server');
is(on_server('version', 're'), $next->{version}, 'within: and its release does not concern the new one');
$a->ask('close');

# threads
$a->ask('open', conninfo($node));
is($a->ask('nest', '', threads => 1, count => 5)->{bad}, 0, 'within: freed without a release');
is(count_on_server('nest'), 0, 'within: nothing is left');
is($a->ask('nest', '', threads => 4, count => 50)->{bad}, 0, 'within: threads');
is(count_on_server('nest'), 0, 'within: nothing is left');
$a->send('nest', '', threads => 4, count => 5);
is($a->answer->{bad}, 0, 'within: and again');

# a call that waits for the key, and one of another thread: there is one request
$b->ask('acquire', 'nest', ttl => 60000);
$a->send('nest', '', threads => 4, count => 1);
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'nest'", 1, 'within: one of four threads waits');
is($b->ask('release', 'nest')->{status}, 'ok', 'released');
is($a->answer->{bad}, 0, 'within: all have had it');
$b->ask('free', 'nest');

#
# Adopting
#

$lock = $a->ask('acquire', 'grant', ttl => 2000, slots => 3, renew => 1);
my $adopted = $b->ask('adopt', 'grant', version => $lock->{version}, renew => 1);
is("$adopted->{status} $adopted->{version} $adopted->{owner}", "ok $lock->{version} -", 'adopt: the same grant');
cmp_ok(abs($adopted->{ttl} - 2000), '<=', 2, 'adopt: with its TTL');
$a->ask('close');
my $until = $node->safe_psql('postgres', "SELECT now() + '4s'");
until_sql($node, "SELECT refreshed_at > '$until' FROM dlock_locks WHERE key = 'grant'", 't', 'adopt: renewed by its new holder');
is($b->ask('check', 'grant')->{status}, 'ok', 'adopt: ours');
is($b->ask('release', 'grant')->{status}, 'ok', 'adopt: released');
is(count_on_server('grant'), 0, 'adopt: on the server, too');
$b->ask('free', 'grant');
$a->ask('open', conninfo($node));
is($a->ask('adopt', 'grant', version => $lock->{version})->{status}, 'lost', 'adopt: not what is gone');
is($a->ask('adopt', 'grant', version => 0)->{status}, 'invalid', 'adopt: not without a version');
$lock = $a->ask('acquire', 'grant', ttl => 60000, owner => 'me');
is($b->ask('adopt', 'grant', version => $lock->{version}, owner => 'you')->{status}, 'lost', 'adopt: not of another owner');
is($b->ask('adopt', 'grant', version => $lock->{version}, owner => 'me', ttl => 90000)->{ttl}, 90000, 'adopt: with another TTL');
is($a->ask('release', 'grant')->{status}, 'ok', 'adopt: released by the other');
is($b->ask('check', 'grant')->{status}, 'lost', 'adopt: so it is lost');

$_->finish foreach $a, $b, $c, $d;
$node->stop;
done_testing();
