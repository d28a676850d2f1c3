# The command line: all commands that make a single call.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockCli;
use DlockWait;

my $node = new_node('cli', conf => "max_connections = 40\n");
my $none = qr/^$/;

server_is($node);

#
# acquire, check, refresh, release
#

my ($code, $version) = dlock('acquire', 'a', '--ttl=10min');
is($code, 0, 'acquire');
like($version, qr/^[0-9]+\n$/, 'prints the version alone');
chomp $version;
is($version, $node->safe_psql('postgres', "SELECT version FROM dlock_locks WHERE key = 'a'"),
	'it is the version');
is($node->safe_psql('postgres', "SELECT ttl FROM dlock_locks WHERE key = 'a'"), '00:10:00', 'with the TTL');
like($node->safe_psql('postgres', "SELECT owner FROM dlock_locks WHERE key = 'a'"),
	qr/^.+:[0-9]+:[0-9a-f]{16}$/, 'the owner tells where it came from');

dlock_is([ 'acquire', 'a' ], 75, $none,
	qr/^dlock: error: lock "a" is busy\ndlock: detail: It is held with version $version by role \w+, owner \S+, and expires in (?:10m 00s|9m \d\ds) unless renewed\.\ndlock: hint: Use --wait to queue\.$/,
	'busy');
dlock_is([ 'acquire', 'a', '--wait=50ms' ], 75, $none, qr/lock "a" is busy\ndlock: detail: .*$/, 'busy after a wait');
dlock_is([ 'check', 'a', $version ], 0, qr/^held$/, $none, 'check');
dlock_is([ 'check', 'a', $version + 1 ], 76, qr/^held_by_other$/, $none, 'check of another version');
dlock_is([ 'check', 'free', 1 ], 76, qr/^not_held$/, $none, 'check of a free key');
dlock_is([ 'refresh', 'a', $version, '--ttl', '1h' ], 0, qr/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d(:\d\d)?$/, $none, 'refresh');
is($node->safe_psql('postgres', "SELECT ttl FROM dlock_locks WHERE key = 'a'"), '01:00:00', 'the new TTL');
dlock_is(
	[ 'refresh', 'a', $version + 1 ], 76, $none,
	qr/^dlock: error: lock "a" is not held with version @{[ $version + 1 ]}\ndlock: detail: It is held with version $version by .*\ndlock: hint: If that grant is yours, name its version or owner; if not, stop the work/,
	'refresh of another version');
dlock_is([ 'refresh', 'a', $version, '--owner=x' ], 76, $none,
	qr/^dlock: error: lock "a" is not held with version $version by owner "x"\ndlock: detail: .*\ndlock: hint: If that grant is yours/, 'refresh of another owner');
dlock_is([ 'refresh', 'free', 1 ], 76, $none,
	qr/^dlock: error: lock "free" is not held with version 1\ndlock: detail: It has expired, .*\ndlock: hint: Stop the work .*, and acquire the lock again\.$/, 'refresh of a free key');
$node->safe_psql('postgres', 'CREATE ROLE stranger LOGIN');
dlock_is([ 'refresh', 'a', $version, '-U', 'stranger' ], 76, $none,
	qr/^dlock: error: lock "a" is not held with version $version by this role\ndlock: detail: .*\ndlock: hint: Connect as role "\w+" \(-U\)/, 'refresh as another role');
dlock_is([ 'release', 'a', $version + 1 ], 76, qr/^held_by_other$/, $none, 'release of another version');
dlock_is([ 'release', 'a', $version ], 0, qr/^released$/, $none, 'release');
dlock_is([ 'release', 'a', $version ], 76, qr/^not_held$/, $none, 'release again');

# by owner, and with the other options
dlock_is([ 'acquire', 'b', '--owner=me', '--value=text', '--priority=3', '--cleanup=1min', '--ttl=1h' ],
	0, qr/^\d+$/, $none, 'acquire with all options');
is( $node->safe_psql('postgres', "SELECT owner, value, priority FROM dlock_locks WHERE key = 'b'"),
	'me|text|3', 'they arrive');
dlock_is([ 'acquire', 'b', '--owner=me', '--ttl=1h' ], 75, $none, qr/lock "b" is busy.*owner me.*Use --adopt to take it over/s,
	'the same owner is busy like anybody, and it says why');
dlock_is([ 'exec', 'b', '--owner=me', '--', 'echo', 'ran' ], 75, $none, qr/An owner names one request, and that one has the lock/,
	'exec does not run under the grant of another request');
dlock_is([ 'elect', 'b', '--owner=me', '--wait=0', '--', 'echo', 'ran' ], 75, $none, qr/Use --adopt to take it over/, 'nor does elect');
my ($again) = (dlock('acquire', 'b', '--owner=me', '--ttl=1h', '--adopt'))[1];
is($again, (dlock('acquire', 'b', '--owner=me', '--ttl=1h', '--adopt'))[1], '--adopt: the same owner gets the same lock');
dlock_is([ 'acquire', 'x', '--adopt' ], 64, $none, qr/--adopt needs --owner/, '--adopt of nobody');
dlock_is([ 'check', 'b', '--owner=me' ], 0, qr/^held$/, $none, 'check by owner');
dlock_is([ 'check', 'b', '--owner=you' ], 76, qr/^held_by_other$/, $none, 'check by another owner');
dlock_is([ 'release', 'b', '--owner=me' ], 0, qr/^released$/, $none, 'release by owner');

# handover
my $blue = (dlock('acquire', 'h', '--owner=blue', '--ttl=1h'))[1] + 0;
my $green = (dlock('handover', 'h', $blue, '--to=green'))[1];
like($green, qr/^\d+\n$/, 'handover prints the new version');
cmp_ok($green, '>', $blue, 'which is higher');
dlock_is([ 'check', 'h', '--owner=green' ], 0, qr/^held$/, $none, 'the next owner has it');
dlock_is([ 'handover', 'h', $blue, '--to=red' ], 76, $none,
	qr/^dlock: error: lock "h" is not held with version $blue\ndlock: detail: It is held with version \d+ by .*owner green/, 'handover of what is another\'s');
is(dlock_json('handover', 'h', $green + 0, '--to=red', '--ttl=2h', '--json')->{result}, 'handed_over', 'handover as JSON');
is($node->safe_psql('postgres', "SELECT owner, ttl FROM dlock_get('h')"), 'red|02:00:00', 'with another TTL');
dlock_is([ 'handover', 'h', 1 ], 64, $none, qr/no owner given/, 'handover to nobody');
dlock_is([ 'handover', 'h', '--to=x' ], 64, $none, qr/no version given/, 'handover of no version');
dlock_is([ 'exec', 'h', '--owner=red', '--adopt', '--', dlock_program(), 'handover', '--to=next' ], 76, qr/^\d+$/, qr/lost/,
	'handover within exec, which then has lost its lock');
dlock_is([ 'release', 'h', '--owner=next' ], 0, qr/^released$/, $none, 'and the next owner releases it');

# the environment that exec sets
{
	my ($is, $out) = dlock('acquire', 'c', '--ttl=1h');
	my %env = (DLOCK_KEY => 'c', DLOCK_VERSION => 0 + $out);

	is((dlock('check', { env => \%env }))[1], "held\n", 'check without arguments');
	is((dlock('check', 'c', { env => \%env }))[1], "held\n", 'check without a version');
	is((dlock('check', 'd', { env => \%env }))[0], 64, 'the version is that of its own key only');
	is((dlock('release', { env => \%env }))[1], "released\n", 'release without arguments');
}

# preempting means that the lock is still ours
{
	my $low = (dlock('acquire', 'p', '--cleanup=1h', '--ttl=1h'))[1] + 0;
	my $high = start_dlock('acquire', 'p', '--priority=5', '--wait=1h', '--ttl=1h');

	$node->poll_query_until('postgres', "SELECT state = 'preempting' FROM dlock_locks WHERE key = 'p'");
	dlock_is([ 'check', 'p', $low ], 0, qr/^preempting$/, $none, 'check of one that is to yield');
	is(dlock_json('check', 'p', $low, '--json')->{result}, 'preempting', 'JSON says so too');

	my $info = dlock_json('info', 'p', '--json');
	is($info->{state}, 'preempting', 'info: the state');
	is($info->{requestor}{priority}, 5, 'info: the priority of the request');
	cmp_ok($info->{requestor}{left}, '>', 3000, 'info: for how long');
	like((dlock('info', 'p'))[1], qr/^requested by .*priority 5/m, 'info for people');

	# long enough to listen: without the event, libdlock takes it for a holder that did not yield
	dlock_is([ 'acquire', 'p', '--priority=4', '--wait=2s' ], 75, $none, qr/lock "p" is busy/, 'a lower one only queues');
	dlock('release', 'p', $low);
	my ($end, $out) = end_dlock($high);
	is($end, 0, 'the one that waited has it');
	cmp_ok($out, '>', $low, 'with a higher version');
	dlock('release', 'p', 0 + $out);
}

# a holder that does not yield
{
	my $low = (dlock('acquire', 'q', '--cleanup=1h', '--ttl=1h'))[1] + 0;

	dlock_is([ 'acquire', 'q', '--priority=1', '--wait=50ms' ],
		75, $none, qr/the holder of lock "q" did not yield.*hint: Use --force/s, 'refused');
	dlock_is([ 'acquire', 'q', '--priority=1', '--wait=50ms', '--force', '--ttl=1h' ],
		0, qr/^\d+$/, $none, 'by force');
	dlock_is([ 'check', 'q', $low ], 76, qr/^held_by_other$/, $none, 'it is gone');
}

# a signal ends the wait and leaves nothing behind
{
	my $holder = (dlock('acquire', 'w', '--ttl=1h'))[1] + 0;
	my $waiter = start_dlock('acquire', 'w', '--wait=forever', '--ttl=1h');

	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'w'");
	kill 'INT', $waiter->{pid};
	is((end_dlock($waiter))[0], 130, 'SIGINT ends a waiting acquire');
	ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM dlock_waiters WHERE key = 'w'"),
		'it has left the queue');
	dlock('release', 'w', $holder);
	is((dlock('info', 'w'))[0], 76, 'nobody has it');
}

#
# force-release
#

($version) = (dlock('acquire', 'f', '--ttl=1h'))[1] + 0;
dlock_is([ 'force-release', 'f' ], 64, $none, qr/no --reason given/, 'a reason is needed');
dlock_is([ 'force-release', 'f', '--reason', 'a test' ], 0, qr/^$version$/, $none, 'force-release');
dlock_is([ 'force-release', 'f', '--reason', 'a test' ], 76, $none, qr/lock "f" is not held/, 'force-release of a free key');
my ($forced, $forced_code) = dlock_json_code('force-release', 'f', '--reason=x', '--json');
is_deeply($forced, { key => 'f', result => 'not_held' }, 'force-release: JSON');
is($forced_code, 76, 'with the same code');

#
# JSON
#

my $granted = dlock_json('acquire', "k\"\\\n\x{1}", '--ttl=90s', '--json');
is($granted->{key}, "k\"\\\n\x{1}", 'a key with everything in it');
is($granted->{result}, 'granted', 'granted');
is($granted->{ttl}, 90, 'its TTL');
my $key = $granted->{key};
is_deeply(
	[ dlock_json_code('acquire', $key, '--json') ],
	[ { key => $key, result => 'busy' }, 75 ],
	'busy in JSON');
like(dlock_json('refresh', $key, $granted->{version}, '--json')->{expires_at},
	qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'refresh in JSON');
is_deeply([ dlock_json_code('refresh', $key, 1, '--json') ], [ { key => $key, result => 'lost' }, 76 ], 'lost in JSON');
is_deeply([ dlock_json_code('check', $key, $granted->{version}, '--json') ], [ { key => $key, result => 'held' }, 0 ], 'check in JSON');
like((dlock('ls', '--sort=key'))[1], qr/^k"\\\\\\x0a\\x01 +$granted->{version} /m, 'nothing of it reaches the terminal');
is_deeply([ dlock_json_code('release', $key, $granted->{version}, '--json') ], [ { key => $key, result => 'released' }, 0 ], 'release in JSON');

#
# ls, info, top
#

$node->safe_psql('postgres', 'SELECT dlock_force_release(key, $$$$) FROM dlock_locks');
like((dlock('ls'))[1], qr/^KEY +VERSION +STATE .*\n$/, 'ls: nothing but the heading');
is_deeply(dlock_json('ls', '--json'), [], 'ls: an empty array');
dlock('acquire', 'job:1', '--ttl=1h', '--value=first', '--owner=one');
dlock('acquire', 'job:2', '--ttl=10min');
dlock('acquire', 'jo%', '--ttl=30min', '--owner=x');
my $waiter = start_dlock('acquire', 'job:2', '--wait=1h', '--owner=patient');
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM dlock_waiters');

my $ls = (dlock('ls'))[1];
like($ls, qr/^jo% .*\njob:1 .*\njob:2 /m, 'ls: by key');
like($ls, qr/^job:1 +\d+ +held +1 +59m \d\ds +1h 00m +\d+.* +0 +0 +\w+ +one +first$/m, 'ls: a row');
like($ls, qr/^job:2 .* 1 +0 +\w+ /m, 'ls: a client waits');
my @lines = split /\n/, $ls;
is(index($lines[1], 'held'), index($lines[0], 'STATE'), 'ls: aligned');
is(join(' ', map { $_->{key} } @{ dlock_json('ls', '--json', '--sort=remaining') }), 'job:2 jo% job:1', 'ls: by remaining');
is(join(' ', map { $_->{key} } @{ dlock_json('ls', '--json', '--sort=waiters') }), 'job:2 jo% job:1', 'ls: by waiters');
is(join(' ', map { $_->{key} } @{ dlock_json('ls', '--json', '--sort=held') }), 'job:1 job:2 jo%', 'ls: by time held');
is(join(' ', map { $_->{key} } @{ dlock_json('ls', 'job*', '--json') }), 'job:1 job:2', 'ls: a pattern');
is(join(' ', map { $_->{key} } @{ dlock_json('ls', 'job:?', '--json', '--limit=1') }), 'job:1', 'ls: a limit');
is(join(' ', map { $_->{key} } @{ dlock_json('ls', 'jo%', '--json') }), 'jo%', 'ls: no pattern of LIKE');
is(join(' ', map { $_->{key} } @{ dlock_json('ls', '\\*', '--json') }), '', 'ls: a star');

# A long list comes in pages, with the keys that are only waited for in between.
$node->safe_psql('postgres', q{SELECT count(dlock_acquire('page:' || lpad(i::text, 4, '0'), '1h')) FROM generate_series(1, 2500) i});
my @pages = map { sprintf 'page:%04d', $_ } 1 .. 2500;
is_deeply([ map { $_->{key} } @{ dlock_json('ls', 'page:*', '--json') } ], \@pages, 'ls: three pages in JSON');
is_deeply([ map { $_->{key} } @{ dlock_json('ls', 'page:*', '--json', '--holders') } ], \@pages, 'ls: of holders');
is_deeply([ (dlock('ls', 'page:*'))[1] =~ /^(\S+)/mg ], [ 'KEY', @pages ], 'ls: one table with one heading');
is(scalar @{ dlock_json('ls', 'page:*', '--json', '--sort=held') }, 2500, 'ls: in another order');
is_deeply([ map { $_->{key} } @{ dlock_json('ls', 'page:*', '--json', '--limit=1001') } ], [ @pages[ 0 .. 1000 ] ], 'ls: a limit');
is_deeply([ map { $_->{key} } @{ dlock_json('ls', 'page:?5*', '--json', '--limit=2') } ], [ 'page:0500', 'page:0501' ], 'ls: a pattern in the middle');

# It prints as it comes: while the first page fills the pipe, the last one is not read yet.
{
	local %ENV = (%ENV, dlock_env());

	open my $list, '-|', dlock_program(), 'ls', 'page:*', '--json' or die "could not start dlock: $!";
	sysread $list, my $first, 1000;
	like($first, qr/"page:0001"/, 'ls: the first page');
	$node->safe_psql('postgres', q{SELECT dlock_force_release(key, '') FROM dlock_list('page:*')});
	my $rest = do { local $/; <$list> };
	ok(close $list, 'ls: to the end');
	unlike($rest, qr/"page:2500"/, 'ls: before the last one is read');
}

# What is given up does not run on at the server.
{
	my $session = session($node);

	ask($session, 'BEGIN; LOCK TABLE dlock.locks IN ACCESS EXCLUSIVE MODE');
	dlock_is([ 'ls', '--timeout=1s' ], 69, $none, qr/no answer from the server/, 'ls of a table that is locked');
	until_sql($node, q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dlock%'}, 1, 'its statement ends, the other client waits on');
	end_session($session);
}

my $row = dlock_json('ls', 'job:1', '--json')->[0];
is_deeply(
	[ map { $row->{$_} } qw(key held owner value state priority ttl waiting watching pid requestor) ],
	[ 'job:1', JSON::PP::true, 'one', 'first', 'held', 0, 3600, 0, 0, undef, undef ],
	'ls: the fields');
cmp_ok($row->{remaining}, '>', 3000, 'ls: what remains');
is($row->{role}, $node->safe_psql('postgres', 'SELECT current_user'), 'ls: the role');

my $waiters = dlock_json('ls', '--waiters', '--json');
is(scalar @$waiters, 1, 'ls --waiters');
is_deeply([ map { $waiters->[0]{$_} } qw(key owner position priority watches) ],
	[ 'job:2', 'patient', 1, 0, JSON::PP::false ], 'ls --waiters: the fields');
like((dlock('ls', '--waiters'))[1], qr/^KEY +POSITION .*\njob:2 +1 +exclusive +0 .* patient$/m, 'ls --waiters for people');

my $info = (dlock('info', 'job:2'))[1];
like($info, qr/^key +job:2\nstate +held\nversion +\d+\n/, 'info');
like($info, qr/^waiting +1\nwatching +0\n\nKEY .*\njob:2 +1 .* patient$/m, 'info: the queue');
is(dlock_json('info', 'job:2', '--json')->{waiters}[0]{owner}, 'patient', 'info: in JSON');
dlock_is([ 'info', 'jo*' ], 76, qr/^key +jo\*\nstate +not held\nwaiting +0\n/, $none, 'info of a free key, which is not a pattern');
is(dlock_json('info', 'nothing', '--json')->{held}, JSON::PP::false, 'info of a free key in JSON');
is((dlock('info', 'jo%'))[0], 0, 'info of a key that looks like a pattern');

my $frame = (dlock('top'))[1];
like($frame, qr/^ dlock top .*\n3 held, 1 waiting \(the longest for [^)]+\), next expiry in 9m \d\ds\n/,
	'top: the first lines');
like($frame, qr/^HOT KEY .*\njob:2 +1 /m, 'top: a hot key');
like($frame, qr/^KEY .*\njob:2 .*\njo% .*\njob:1 /m, 'top: the locks');
unlike($frame, qr/\033/, 'top: nothing for a terminal where there is none');
my $top = dlock_json('top', '--json');
is($top->{held}, 3, 'top: in JSON');
is($top->{waiters}[0]{key}, 'job:2', 'top: waiters in JSON');

kill 'TERM', $waiter->{pid};
is((end_dlock($waiter))[0], 143, 'SIGTERM ends a waiting acquire');

# a key that an open transaction is taking
{
	my $session = session($node);

	ask($session, 'BEGIN');
	ask($session, "SELECT dlock_acquire('open')");
	my $run = start_dlock('acquire', 'open', '--wait=1h', '--owner=w');
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'open'");
	my $pid = ask($session, 'SELECT pg_backend_pid()');
	my %pending = (version => undef, state => 'pending', using_pid => $pid + 0);

	like((dlock('ls', 'open'))[1], qr/^open +- +pending +0 .* 1 +- .*-$/m, 'ls: pending');
	like((dlock('ls', 'open', '--holders'))[1], qr/^open +- +pending +-.*-$/m, 'ls --holders: the same');
	is_deeply(
		dlock_json('ls', 'open', '--json'),
		[ { key => 'open', held => JSON::PP::false, %pending, holders => [ \%pending ], waiting => 1, watching => 0 } ],
		'ls: the same in JSON');
	like((dlock('top', 'open', '--once'))[1], qr/^open +- +pending/m, 'top: the same');
	like((dlock('top', 'open', '--once'))[1], qr/^0 held, 1 pending, 1 waiting/m, 'top: it is no holder');
	my ($code, $out) = dlock('info', 'open');
	is($code, 0, 'info: it is not free');
	like($out, qr/^state +pending\nin use by +an open transaction of process $pid\b.*\nwaiting +1\n/m, 'info: who it is');
	is(dlock_json('info', 'open', '--json')->{using_pid}, $pid, 'info: in JSON');
	dlock_is([ 'acquire', 'open' ], 75, $none, qr/^dlock: detail: It is held by nobody, but an open transaction of process $pid keeps it busy\.$/m,
		'the message of a refused acquire');
	end_session($session);
	is((end_dlock($run))[0], 0, 'it gets it');
}

# a grant that an open transaction uses
{
	my $session = session($node);
	my $used = $node->safe_psql('postgres', "SELECT dlock_acquire('used', '1h')");

	ask($session, "BEGIN; SELECT dlock_fence('used', $used)");
	my $pid = ask($session, 'SELECT pg_backend_pid()');
	like((dlock('info', 'used'))[1], qr/^state +held\n.*^in use by +an open transaction of process $pid\n/ms, 'info: held, and in use');
	is(dlock_json('info', 'used', '--json')->{using_pid}, $pid, 'info: in JSON');
	end_session($session);
	is(dlock_json('info', 'used', '--json')->{using_pid}, undef, 'info: not in use any more');
	$node->safe_psql('postgres', "SELECT dlock_release('used', $used)");
}

# an owner that we may not see is not the same as none
{
	$node->safe_psql('postgres', "CREATE ROLE secretive LOGIN; CREATE ROLE curious LOGIN;
		SET ROLE secretive; SELECT dlock_acquire('secret', '1h', owner => 'me', value => 'v');
		SET ROLE curious; SELECT dlock_acquire('plain', '1h')");
	my $run = start_dlock('acquire', 'plain', '--wait=1h', '--owner=w', '-U', 'secretive');
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'plain'");
	my $listed = (dlock('ls', '-U', 'curious'))[1];
	like($listed, qr/^secret .* secretive +\(hidden\) +\(hidden\)$/m, 'ls: owner and value are hidden');
	like($listed, qr/^plain .* curious +- +-$/m, 'ls: there is none');
	like((dlock('ls', '--holders', '-U', 'curious'))[1], qr/^secret .* \(hidden\) +\(hidden\)$/m, 'ls --holders: hidden');
	like((dlock('ls', '--waiters', '-U', 'curious'))[1], qr/^plain .* \(hidden\)$/m, 'ls --waiters: hidden');
	like((dlock('top', '--once', '-U', 'curious'))[1], qr/^secret .* \(hidden\) +\(hidden\)$/m, 'top: hidden');
	like((dlock('info', 'secret', '-U', 'curious'))[1], qr/^owner +\(hidden\)\nvalue +\(hidden\)\n/m, 'info: hidden');
	my $info = dlock_json('info', 'secret', '--json', '-U', 'curious');
	is_deeply([ @{$info}{qw(owner value hidden)} ], [ undef, undef, JSON::PP::true ], 'info: in JSON');
	is(dlock_json('info', 'plain', '--json', '-U', 'curious')->{hidden}, JSON::PP::false, 'info: in JSON, not hidden');
	like((dlock('ls', '-U', 'secretive'))[1], qr/^secret .* me +v$/m, 'ls: its own role sees them');
	$node->safe_psql('postgres', 'GRANT pg_read_all_stats TO curious');
	like((dlock('ls', '-U', 'curious'))[1], qr/^secret .* me +v$/m, 'ls: so does a role that sees all');
	kill 'TERM', $run->{pid};
	end_dlock($run);
	$node->safe_psql('postgres', "SELECT count(dlock_force_release(key, '')) FROM dlock_locks WHERE key IN ('secret', 'plain')");
}

#
# watch
#

{
	my $run = start_dlock('watch', 'seen', '--count=4');
	my $lines = sub {
		my ($n) = @_;

		wait_until("there are $n lines",
			sub { IPC::Run::pump_nb($run->{h}); return ($run->{out} =~ tr/\n//) >= $n; });
	};

	$lines->(1);
	my $first = (dlock('acquire', 'seen', '--ttl=1h', '--owner=o', '--value=v'))[1] + 0;
	$lines->(2);
	dlock('release', 'seen', $first);
	$lines->(3);
	my $second = (dlock('acquire', 'seen', '--ttl=1h'))[1] + 0;
	my ($end, $out) = end_dlock($run);
	my $at = qr/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d(?::\d\d)?  seen/m;

	is($end, 0, 'watch ends after its lines');
	like($out, qr/${at}  free\n${at}  version $first  role \w+  owner o  value v\n${at}  free\n${at}  version $second  role /,
		'watch: what happened');

	$run = start_dlock('watch', 'seen', '--until-free', '--json');
	$lines->(1);
	dlock('release', 'seen', $second);
	($end, $out) = end_dlock($run);
	my @changes = map { JSON::PP::decode_json($_) } split /\n/, $out;

	is($end, 0, 'watch ends when it is free');
	is(join(' ', map { $_->{event} } @changes), 'held free', 'watch: an object a line');
	is($changes[0]{version}, $second, 'watch: the version');
	like($changes[0]{time}, qr/Z$/, 'watch: the time');
}

#
# Connections
#

my ($host, $port) = ($node->host, $node->port);
my %nowhere = (env => { PGHOST => '/nonexistent', PGPORT => 1 });

is((dlock('ls', '-h', $host, '-p', $port, '-d', 'postgres', \%nowhere))[0], 0, '-h, -p, -d');
is((dlock('ls', "--host=$host", "--port=$port", '--dbname=postgres', \%nowhere))[0], 0, '--host, --port, --dbname');
is((dlock('ls', '-d', "host='$host' port=$port dbname=postgres", \%nowhere))[0], 0, 'a connection string');
is((dlock('ls', '-h', '/nonexistent', '-d', "host='$host' port=$port", \%nowhere))[0], 0, 'which counts more');
(my $encoded = $host) =~ s,/,%2F,g;
is((dlock('ls', '-d', "postgresql://$encoded:$port/postgres", \%nowhere))[0], 0, 'a URI');
is((dlock('ls', '-d', "postgresql://$encoded:$port/postgres", '-h', 'x', \%nowhere))[0], 64, 'a URI and a host');
my $out = (dlock('ls', '--timeout=200ms', \%nowhere))[2];
like($out, qr/^dlock: error: .*nonexistent.*\ndlock: hint: Check that the server is running, and where: -h and -p/, 'unreachable');
dlock_is([ 'ls', '-p', 'abc' ], 64, $none, qr/invalid port "abc", must be a number/, 'a port that is none');
dlock_is([ 'acquire', 's', '--slots=10001' ], 64, $none, qr/--slots must be between 1 and 10000; --shared is/, 'too many places');
foreach my $command (
	[ 'acquire', 'k' ], [ 'refresh', 'k', 1 ], [ 'release', 'k', 1 ], [ 'check', 'k', 1 ], [ 'info', 'k' ],
	[ 'ls' ], [ 'top' ], [ 'watch', 'k' ], [ 'force-release', 'k', '--reason=x' ], [ 'exec', 'k', 'true' ])
{
	is((dlock(@$command, '--timeout=200ms', \%nowhere))[0], 69, "$command->[0]: unreachable")
	  unless $command->[0] eq 'exec';
}
is((dlock('exec', 'k', '--timeout=200ms', '--', 'touch', 'never', \%nowhere))[0], 69, 'exec: unreachable');
dlock_is([ 'ls', '-d', 'nonsense=1' ], 64, $none, qr/^dlock: error: .*nonsense/, 'a bad connection string');
dlock_is([ 'ls', '-d', 'there_is_none' ], 77, $none, qr/^dlock: error: .*there_is_none.*\ndlock: hint: Check -d/, 'no such database');
dlock_is([ 'ls', '-U', 'nobody' ], 77, $none, qr/^dlock: error: .*nobody.*\ndlock: hint: The server needs a role for you: .*createuser NAME/, 'no such role');
dlock_is([ 'ls', '-d', 'template1' ], 78, $none, qr/^dlock: error: .*\ndlock: hint: .*CREATE EXTENSION/, 'no extension');
$node->safe_psql('postgres', 'CREATE ROLE poor LOGIN');
dlock_is([ 'force-release', 'x', '--reason=x', '-U', 'poor' ], 77, $none, qr/permission denied.*\ndlock: hint: .*ask an administrator for the privilege/, 'no privilege');
$node->safe_psql('postgres', 'ALTER ROLE poor CONNECTION LIMIT 0');
dlock_is([ 'acquire', 'x', '-U', 'poor' ], 69, $none, qr/too many connections.*\ndlock: hint: Use --wait to try until a connection is free/, 'a full server');
dlock_is([ 'acquire', 'x', '--wait=100ms', '-U', 'poor' ], 69, $none, qr/too many connections.*\ndlock: hint: Try again later/, '... and --wait was given');
dlock_is([ 'ls', '-U', 'poor' ], 69, $none, qr/too many connections.*\ndlock: hint: Try again later/, 'a command that does not wait');
dlock_is([ 'acquire', 'x' x 1025 ], 64, $none, qr/^dlock: error: .*1,?024/, 'what the server does not take');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dlock%' AND backend_type = 'client backend'"),
	0, 'no connection is left');

#
# Usage
#

my @usage = (
	[ ['nonsense'], qr/unknown command "nonsense"(?!,)/ ],
	[ ['exce'], qr/unknown command "exce", did you mean "exec"\?/ ],
	[ ['force'], qr/unknown command "force", did you mean "force-release"\?/ ],
	[ [ 'acquire', 'a', '--wiat=1s' ], qr/unknown option "--wiat=1s", did you mean --wait\?/ ],
	[ [ 'ls', '--hosst', 'x' ], qr/unknown option "--hosst", did you mean --host\?/ ],
	[ ['acquire'], qr/no key given/ ],
	[ [ 'acquire', '' ], qr/the key must not be empty/ ],
	[ [ 'acquire', 'a', 'b' ], qr/too many arguments, the first one is "b"/ ],
	[ [ 'acquire', 'a', '--nonsense' ], qr/unknown option "--nonsense"(?!,)/ ],
	[ [ 'acquire', 'a', '-x' ], qr/unknown option "-x"/ ],
	[ [ 'acquire', 'a', '--ttl' ], qr/option "--ttl" needs an argument/ ],
	[ [ 'acquire', 'a', '--ttl=x' ], qr/invalid duration "x" for --ttl/ ],
	[ [ 'acquire', 'a', '--ttl=' ], qr/invalid duration "" for --ttl/ ],
	[ [ 'acquire', 'a', '--ttl=-1s' ], qr/invalid duration/ ],
	[ [ 'acquire', 'a', '--ttl=1 week' ], qr/invalid duration/ ],
	[ [ 'acquire', 'a', '--ttl=0x10' ], qr/invalid duration/ ],
	[ [ 'acquire', 'a', '--ttl=0' ], qr/--ttl must be greater than 0/ ],
	[ [ 'acquire', 'a', '--priority=-1' ], qr/invalid --priority/ ],
	[ [ 'acquire', 'a', '--priority=2147483648' ], qr/invalid --priority/ ],
	[ [ 'acquire', 'a', '--count=1' ], qr/"dlock acquire" has no option --count/ ],
	[ [ 'check', 'a' ], qr/no version and no --owner given/ ],
	[ [ 'check', 'a', 'b' ], qr/invalid version "b"/ ],
	[ [ 'check', 'a', '0' ], qr/invalid version "0"/ ],
	[ [ 'exec', 'a' ], qr/no command given after key "a"/ ],
	[ [ 'exec', 'a', '--' ], qr/no command given after key "a"/ ],
	[ [ 'exec', '--', 'true' ], qr/no command given after key "true"/ ],
	[ [ 'exec', 'a', '--ttl=4s', '--kill-after=2s', 'true' ], qr/must not be more than a quarter/ ],
	[ [ 'exec', 'a', '--on-preempt=X', 'true' ], qr/unknown signal "X"/ ],
	[ [ 'elect', 'a', '--observe', 'true' ], qr/--observe runs no command/ ],
	[ [ 'ls', '--sort=size' ], qr/invalid order "size"/ ],
	[ [ 'top', '--interval=1ms' ], qr/at least 100ms/ ]);
foreach my $case (@usage)
{
	my ($args, $message) = @$case;

	dlock_is($args, 64, $none, qr/^dlock: error: .*$message.*\ndlock: hint: Try "dlock.* --help"/, "dlock @$args");
}

my @commands = qw(exec elect acquire refresh release check info ls top watch force-release stats health shard);
my ($help_code, $help) = dlock('--help');
like($help, qr/--dbname.*^Exit codes:\n.*^   75  busy.*^Those of health are 0 ok/ms, '--help: how to connect, and the exit codes');
like((dlock())[2], qr/^Usage:.*^  exec +run a command.*"dlock COMMAND --help"/ms, 'without a command: what there is');
is((dlock())[0], 64, 'without a command: exit code');
is((dlock('list', 'no such key'))[1], (dlock('ls', 'no such key'))[1], 'list is ls');
dlock_is([ 'exec', 'hinted', '--', './a; ./b' ], 127, $none, qr/could not execute ".\/a; .\/b".*hint: .*sh -c '...'/s, 'one word that is a command line');
dlock_is([ 'exec', 'hinted', '--', '/no/such' ], 127, $none, qr/^dlock: error: could not execute "\/no\/such": [^\n]*\n\z/, 'a command that is not there');
is($help_code, 0, '--help');
like($help, qr/^  \Q$_\E +\S/m, "--help names $_") foreach @commands;
foreach my $command (@commands)
{
	my ($is, $text, $complaint) = dlock($command, '--help');

	is($is, 0, "$command --help");
	like($text, qr/^Usage:\n  dlock \Q$command\E .*^Options:\n.*^Examples:\n(  .*dlock \Q$command\E.*\n){2}\n"dlock --help" shows how to connect, and the exit codes.\n\z/ms, "$command --help: text");
	unlike($text, qr/--dbname|^Exit codes/m, "$command --help: what is common is not in it");
	cmp_ok(scalar(() = $text =~ /\n/g), '<=', 50, "$command --help: is short");
	is($complaint, '', "$command --help: nothing else");
	is((dlock('help', $command))[1], $text, "help $command");
	is((dlock($command, '-?'))[1], $text, "$command -?");
	my @long = grep { length > 79 } split /\n/, $text;
	is("@long", '', "$command --help fits a terminal");
}
like((dlock('--version'))[1], qr/^dlock \d+\.\d+\.\d+$/, '--version');
is((dlock('-V'))[1], (dlock('--version'))[1], '-V');

$node->stop;
done_testing();
