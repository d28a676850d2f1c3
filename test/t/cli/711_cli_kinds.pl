# The command line: several holders of a key, how a grant ends, several keys, a command
# within a command, and how all of it is shown.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockCli;
use DlockTerminal;
use DlockTest;
use DlockWait;

my $node = new_node('cli_kinds');
my ($code, $out, $err);

server_is($node);

sub held
{
	my ($key) = @_;

	return $node->safe_psql('postgres', "SELECT string_agg(version::text, ' ' ORDER BY version) FROM dlock_locks WHERE key = '$key' AND state <> 'cooling'");
}

sub state_of
{
	my ($key) = @_;

	return $node->safe_psql('postgres', "SELECT state FROM dlock_locks WHERE key = '$key'");
}

# A command that runs until the file exists, and says that it has begun.
my $waits = script_file('echo "$DLOCK_KEY $DLOCK_VERSION" >>"$1"; while ! [ -e "$2" ]; do sleep 0.02; done');

sub start_waiting
{
	my ($go_on, @args) = @_;
	my $file = temp_file();
	my $run = start_dlock('exec', @args, '--', $waits, $file, $go_on);

	file_has($file, qr/^(.+ \d+)$/m);
	return $run;
}

#
# At most three workers
#

my $go_on = temp_file();
my @workers = map { start_waiting($go_on, 'tenant:7', '--slots=3', "--value=w$_") } 1 .. 3;
($code, $out, $err) = dlock('exec', 'tenant:7', '--slots=3', '--', 'echo', 'ran');
is("$code $out", '75 ', 'no fourth worker');
like($err, qr/detail: It is held by 3 clients, the last of which has version \d+, role \w+, owner \S+, and expires in /, 'and it says why');
($code, $out, $err) = dlock('exec', 'tenant:7', '--', 'echo', 'ran');
is($code, 75, 'and nobody alone');
is((dlock('exec', 'tenant:7', '--slots=4', '--', 'true'))[0], 0, 'four of four');
my @versions = split / /, held('tenant:7');

like((dlock('ls'))[1], qr/^tenant:7 +$versions[2] +held +3 of 3 +\d/m, 'ls: one row for the key');
my $holders = (dlock('ls', '--holders'))[1];
is(scalar(() = $holders =~ /^tenant:7 /mg), 3, 'ls --holders: a row for each');
like($holders, qr/^KEY +VERSION +STATE +HOLDS +REMAINING .*\ntenant:7 +$versions[0] +held +1 of 3 .* w1\n/, 'ls --holders: the oldest first');
is(join(' ', map { "$_->{version}/$_->{slots}" } @{ dlock_json('ls', '--holders', '--json') }),
	join(' ', map { "$_/3" } @versions), 'ls --holders --json');
is(scalar(@{ dlock_json('ls', '--holders', '--limit=2', '--json') }), 2, 'ls --holders --limit');
my $row = dlock_json('ls', 'tenant:*', '--json')->[0];
is("$row->{version} $row->{slots}", "$versions[2] 3", 'ls --json: the newest');
is(join(' ', map { $_->{version} } @{ $row->{holders} }), "@versions", 'ls --json: and all of them');
($code, $out) = dlock('info', 'tenant:7');
is($code, 0, 'info: held');
like($out, qr/^holders +3 of 3$/m, 'info: how many');
like($out, qr/^VERSION +STATE +HOLDS .*\n *$versions[0] +held +1 of 3 .* w1\n *$versions[1] .* w2\n *$versions[2] .* w3\n/m, 'info: and each of them');
my $top = dlock_json('top', '--json');
is("$top->{held} " . scalar(@{ $top->{locks} }), '3 1', 'top: three hold one key');
like((dlock('top', '--once'))[1], qr/^tenant:7 .* 3 of 3 +0 /m, 'top: one row');

# one that waits, and one that is taken away
my $fourth = start_dlock('exec', 'tenant:7', '--slots=3', '--wait=1min', '--', 'echo', 'fourth');
until_sql($node, 'SELECT count(*) FROM dlock_waiters', 1, 'the fourth waits');
like((dlock('ls', '--waiters'))[1], qr/^tenant:7 +1 +1 of 3 /m, 'ls --waiters: for what');
is(dlock_json('ls', '--waiters', '--json')->[0]{slots}, 3, 'ls --waiters --json: for what');
is((dlock('force-release', 'tenant:7', $versions[1], '--reason=test'))[1], "$versions[1]\n", 'force-release: one of them');
($code, $out, $err) = end_dlock($workers[1]);
is($code, 76, 'it is ended');
is((end_dlock($fourth))[1], "fourth\n", 'the fourth has its place');
is(held('tenant:7'), "$versions[0] $versions[2]", 'the others are not concerned');
is((dlock('force-release', 'tenant:7', 999999, '--reason=test'))[0], 76, 'force-release: no such version');
append_to_file($go_on, 'x');
is(join(' ', map { (end_dlock($_))[0] } @workers[ 0, 2 ]), '0 0', 'they end by themselves');
is(held('tenant:7'), '', 'released');

#
# Readers and a writer
#

$go_on = temp_file();
my @readers = map { start_waiting($go_on, 'schema', '--shared') } 1, 2;
like((dlock('ls'))[1], qr/^schema +\d+ +held +2 shared /m, 'ls: shared');
is(dlock_json('info', 'schema', '--json')->{slots}, undef, 'info --json: shared is null');
is((dlock('exec', 'schema', '--slots=5', '--', 'true'))[0], 0, 'a place beside readers');
my $writer = start_dlock('exec', 'schema', '--wait=1min', '--', 'echo', 'migrated');
until_sql($node, 'SELECT count(*) FROM dlock_waiters', 1, 'the writer waits');
like((dlock('ls', '--waiters'))[1], qr/^schema +1 +exclusive /m, 'ls --waiters: alone');
is((dlock('exec', 'schema', '--shared', '--', 'true'))[0], 75, 'no reader overtakes it');
append_to_file($go_on, 'x');
is((end_dlock($writer))[1], "migrated\n", 'then it has it');
is(join(' ', map { (end_dlock($_))[0] } @readers), '0 0', 'the readers have ended');

#
# How a grant ends
#

is((dlock('exec', 'minutely', '--at-least=1min', '--', 'echo', 'ran'))[1], "ran\n", 'at-least: it runs');
is(state_of('minutely'), 'cooling', 'at-least: and is not to be had again');
($code, $out, $err) = dlock('exec', 'minutely', '--at-least=1min', '--', 'echo', 'ran');
is("$code $out", '75 ', 'at-least: not run twice');
like($err, qr/detail: It is held by nobody, but stays busy after version \d+ for [\d.]+s\./, 'at-least: it says why');
like((dlock('ls'))[1], qr/^minutely +\d+ +cooling +0 +[\d.]+s +[\dms .]+ +-  /m, 'ls: cooling, and held by nobody');
is(dlock_json('ls', '--json')->[0]{held}, JSON::PP::false, 'ls --json: not held');
($code, $out) = dlock('info', 'minutely');
is($code, 0, 'info: a cooling key is not free');
like($out, qr/^state +cooling\n.*^busy until +\d/ms, 'info: cooling');
unlike($out, qr/^held for/m, 'info: nobody holds it');
like((dlock('top', '--once'))[1], qr/^0 held, 1 cooling.*^minutely +\d+ +cooling /ms, 'top: cooling');
is(dlock_json('top', '--json')->{held}, 0, 'top --json: not held');
like((dlock('watch', 'minutely', '--count=1'))[1], qr/  minutely  cooling$/, 'watch: cooling');
is(dlock_json('watch', 'minutely', '--count=1', '--json')->{event}, 'cooling', 'watch --json: cooling');
like((dlock('force-release', 'minutely', '--reason=test'))[1], qr/^\d+$/, 'force-release ends that');
is((dlock('acquire', 'short', '--at-least=500ms', '--ttl=1min', '--owner=me'))[0], 0, 'acquire --at-least');
dlock('release', 'short', '--owner=me');
is((dlock('watch', 'short', '--until-free'))[1] =~ s/^.*  short  //mgr, "cooling\nfree\n", 'watch --until-free: cooling, then free');

is((dlock('acquire', 'late', '--delay=1min'))[0], 0, 'acquire --delay');
dlock('force-release', 'late', '--reason=test');
is(state_of('late'), 'cooling', 'delay: after a loss');
is((dlock('exec', 'late', '--', 'true'))[0], 75, 'delay: busy');
is((dlock('elect', 'leader', '--delay=1min', '--once', '--', 'sh', '-c', 'dlock=$1; "$dlock" force-release leader --reason=test; sleep 100', 'sh', dlock_program()))[0],
	76, 'elect --delay: lost');
is(state_of('leader'), 'cooling', 'elect --delay: no next leader yet');

is((dlock('acquire', 'lazy', '--lazy', '--ttl=200ms'))[0], 0, 'acquire --lazy');
until_sql($node, "SELECT state FROM dlock_locks WHERE key = 'lazy'", 'lapsed', 'lazy: it lapses');
like((dlock('ls', 'lazy'))[1], qr/^lazy +\d+ +lapsed +1 /m, 'ls: lapsed');
like((dlock('info', 'lazy'))[1], qr/^state +lapsed\n.*^lapsed at +\d/ms, 'info: lapsed');
like((dlock('top', '--once', 'lazy'))[1], qr/^1 held, 1 of them lapsed.*^lazy +\d+ +lapsed /ms, 'top: lapsed');
is((dlock('exec', 'lazy', '--lazy', '--', 'echo', 'ran'))[1], "ran\n", 'lazy: the next one has it at once');

#
# Several keys
#

my $shows = 'echo "$DLOCK_KEY $DLOCK_VERSION $DLOCK_KEY_2 $DLOCK_VERSION_2 $DLOCK_KEY_3 $DLOCK_VERSION_3"';
$go_on = temp_file();
my $file = temp_file();
my $run = start_dlock('exec', 'k1', '--and=k 2', '--and', 'k3', '--', 'sh', '-c', "$shows" . ' >"$1"; while ! [ -e "$2" ]; do sleep 0.02; done', 'sh', $file, $go_on);
my $shown = file_has($file, qr/^(.+)$/m);
is($shown, join(' ', map { "$_ " . held($_) } 'k1', 'k 2', 'k3'), 'and: the command has all keys and versions');
($code, $out, $err) = dlock('exec', 'other', '--and=k 2', '--', 'true');
is($code, 75, 'and: all or none');
like($err, qr/^dlock: error: one of 2 locks is held by another client\ndlock: detail: "k 2" is held with version \d+ /, 'and: it says which one');
is(held('other'), '', 'and: none');
is((dlock('force-release', 'k3', '--reason=test'))[0], 0, 'and: one is taken away');
($code, $out, $err) = end_dlock($run);
is($code, 76, 'and: which ends the command');
like($err, qr/lock "k3" is lost: it was taken away/, 'and: and says which one');
is(join('', map { held($_) } 'k1', 'k 2', 'k3'), '', 'and: the others are released');

dlock_is([ 'acquire', 'k1', '--and=k2', '--owner=me' ], 64, qr/^$/, qr/--owner can be used together with --and only with --adopt/, 'and: an owner');
($code, $out) = dlock('acquire', 'k1', '--and=k2', '--shared', '--ttl=1min', '--owner=me', '--adopt');
is($out, held('k1') . "\n" . held('k2') . "\n", 'acquire --and: the versions, in that order');
my $json = dlock_json('acquire', 'k1', '--and=k2', '--shared', '--ttl=1min', '--owner=me', '--adopt', '--json');
is(join(' ', map { "$_->{key}=$_->{version}" } @{ $json->{locks} }), 'k1=' . held('k1') . ' k2=' . held('k2'), 'acquire --and --json');
is($json->{version}, held('k1'), 'acquire --and --json: the first');
is((dlock('exec', 'k1', '--and=k2', '--wait=100ms', '--', 'true'))[0], 75, 'and: waits for so long');
dlock('release', $_, '--owner=me') foreach 'k1', 'k2';

# a signal while it waits
dlock('acquire', 'k2', '--ttl=1h', '--owner=me');
$run = start_dlock('exec', 'k1', '--and=k2', '--wait=forever', '--', 'true');
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'k2'", 1, 'and: it waits');
kill 'TERM', $run->{pid};
is((end_dlock($run))[0], 143, 'and: ended while it waits');
until_sql($node, 'SELECT count(*) FROM dlock_waiters', 0, 'and: it has left the queue');
dlock('release', 'k2', '--owner=me');
is(held('k1') . held('k2'), '', 'and: nothing is left');

dlock_is([ 'exec', 'k', @$_, '--', 'true' ], 64, qr/^$/, qr/cannot be used together|more than once|must not be|longer than/, "usage: @$_")
  foreach [ '--shared', '--slots=3' ], [ '--lazy', '--delay=1s' ], ['--and=k'], [ '--and=l', '--and=l' ], ['--and='],
  [ '--and=l', '--at-least=1s' ], [ '--and=l', '--cleanup=1s' ], [ '--and=l', '--force' ], [ '--and=l', '--lazy' ],
  [ '--at-least=1min', '--ttl=1s' ];
dlock_is([ 'exec', 'k', '--slots=0', '--', 'true' ], 64, qr/^$/, qr/invalid --slots "0"/, 'usage: no places');
dlock_is([ 'exec', 'k', '--slots=10001', '--', 'true' ], 64, qr/^$/, qr/slots must be between 1 and 10000/, 'usage: too many');
dlock_is([ 'ls', '--holders', '--waiters' ], 64, qr/^$/, qr/cannot be used together/, 'usage: holders and waiters');
dlock_is([ 'elect', 'k', '--slots=3', '--', 'true' ], 64, qr/^$/, qr/"dlock elect" has no option --slots/, 'usage: one leader');

#
# A command within a command
#

my $dlock = dlock_program();
my $nested = script_file(<<"SH");
echo "outer \$DLOCK_VERSION"
"$dlock" exec "\$@" -- sh -c 'echo "inner \$DLOCK_KEY \$DLOCK_VERSION \$DLOCK_KEY_2 \$DLOCK_VERSION_2"'
echo "code \$?"
"$dlock" check "\$DLOCK_KEY" "\$DLOCK_VERSION"
SH
($code, $out, $err) = dlock('exec', 'a', '--', $nested, 'a');
my ($version) = $out =~ /^outer (\d+)$/m;
is($out, "outer $version\ninner a $version  \ncode 0\nheld\n", 'within: under the same lock, which stays');
is("$code $err", '0 ', 'within: no complaint');
is(held('a'), '', 'within: released once');

# another key: both are in the environment, and the third level finds the first
($code, $out) = dlock('exec', 'a', '--', $nested, 'b');
like($out, qr/^outer (\d+)\ninner b \d+ a \1\ncode 0\nheld\n$/, 'within: another key comes first');
my $third = script_file(qq{"$dlock" exec b -- "$dlock" exec a -- sh -c 'echo "\$DLOCK_KEY \$DLOCK_VERSION \$DLOCK_KEY_2 \$DLOCK_VERSION_2 \$DLOCK_KEY_3"; "$dlock" check b'\n});
($code, $out, $err) = dlock('exec', 'a', '--', $third);
like($out, qr/^a \d+ b \d+ \nheld\n$/, 'within: the key of the command around the one around');
is("$code $err", '0 ', 'within: no complaint');
is(held('a') . held('b'), '', 'within: all released');

# some of several keys
($code, $out) = dlock('exec', 'a', '--', $nested, 'b', '--and=a', '--and=c');
like($out, qr/^outer (\d+)\ninner b \d+ a \1\ncode 0\nheld\n$/, 'within: one of several is ours already');
is(held('a') . held('b') . held('c'), '', 'within: all released');

# kinds
($code, $out, $err) = dlock('exec', 'a', '--shared', '--', $nested, 'a', '--wait=forever');
like($out, qr/^code 64$/m, 'within: a writer within a reader would wait for itself');
like($err, qr/lock "a" is held by the "dlock exec" around this one, but not exclusively/, 'within: it says so');
like((dlock('exec', 'a', '--', $nested, 'a', '--shared'))[1], qr/^outer (\d+)\ninner a \1  \ncode 0$/m, 'within: a reader within a writer');
like((dlock('exec', 'a', '--slots=3', '--', $nested, 'a', '--slots=3'))[1], qr/^outer (\d+)\ninner a \1  \ncode 0$/m, 'within: the same place');

# variables that are stale, forged or nonsense: the server decides
dlock('acquire', 'a', '--ttl=1h', '--owner=me');
$version = held('a');
my @stale = map { { DLOCK_KEY => 'a', DLOCK_VERSION => $_ } } 1, $version + 1000, 'x', '', '-1', '99999999999999999999';
foreach my $env (@stale, { DLOCK_KEY => 'a' }, { DLOCK_VERSION => $version }, { DLOCK_KEY => 'b', DLOCK_VERSION => $version })
{
	my $what = join ', ', map { "$_=$env->{$_}" } sort keys %$env;

	is((dlock('exec', 'a', '--', 'true', { env => $env }))[0], 75, "within: busy with $what");
	is((dlock('exec', 'free', '--', 'sh', '-c', 'echo $DLOCK_KEY', { env => $env }))[1], "free\n", "within: and a free key is acquired with $what");
}
($code, $out) = dlock('exec', 'a', '--', 'sh', '-c', 'echo $DLOCK_VERSION', { env => { DLOCK_KEY => 'a', DLOCK_VERSION => $version } });
is("$code $out", "0 $version\n", 'within: a grant that is there');
is(held('a'), $version, 'within: and stays');
$node->safe_psql('postgres', 'CREATE ROLE other LOGIN');
is((dlock('exec', 'a', '--username=other', '--', 'true', { env => { DLOCK_KEY => 'a', DLOCK_VERSION => $version } }))[0], 75,
	'within: not that of another role');

# the same key and version in another database
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach 'one', 'two';
$node->safe_psql($_, 'CREATE EXTENSION dlock') foreach 'one', 'two';
is((dlock('acquire', 'a', '-d', 'two', '--ttl=1h'))[1], "1\n", 'within: there is another database');
($code, $out) = dlock('exec', 'a', '-d', 'one', '--', 'sh', '-c', qq{echo \$DLOCK_VERSION; "$dlock" exec a -d two -- echo ran; echo \$?});
is($out, "1\n75\n", 'within: whose grants are not ours');

# it is lost while the inner command runs
$file = temp_file();
$run = start_dlock('exec', 'a', '--', 'touch', temp_file(), { env => { DLOCK_KEY => 'a', DLOCK_VERSION => $version } });
is((end_dlock($run))[0], 0, 'within: run');
$run = start_dlock('exec', 'a', '--kill-after=1s', '--', 'sh', '-c', 'echo started >"$1"; sleep 100', 'sh', $file,
	{ env => { DLOCK_KEY => 'a', DLOCK_VERSION => $version } });
file_has($file, qr/(started)/);
dlock('force-release', 'a', '--reason=test');
is((end_dlock($run))[0], 76, 'within: lost, and ended');

# the outer lock is lost: an inner command that ignores signals ends, too, although the
# inner lock would last longer
$file = temp_file();
my $stubborn = script_file('trap "" TERM; echo $$ >"$1"; while :; do sleep 1; done');
$run = start_dlock('exec', 'a', '--kill-after=300ms', '--', $dlock, 'exec', 'b', '--ttl=1h', '--kill-after=10min', '--', $stubborn, $file);
my $group = file_has($file, qr/^(\d+)$/m);
dlock('force-release', 'a', '--reason=test');
is((end_dlock($run))[0], 76, 'within: the outer lock is lost');
wait_until('the inner command has ended', sub { return !group_members($group); });
is_deeply([ group_members($group) ], [], 'within: and nothing of the inner command is left');
dlock('force-release', 'b', '--reason=test');

#
# On a terminal
#

$go_on = temp_file();
@readers = map { start_waiting($go_on, 'a key with readers', '--shared', '--value=' . ('long value ' x 5)) } 1 .. 3;
dlock('acquire', 'cooling one', '--at-least=1h', '--ttl=1h', '--owner=me');
dlock('release', 'cooling one', '--owner=me');
$writer = start_dlock('exec', 'a key with readers', '--wait=1min', '--', 'true');
until_sql($node, 'SELECT count(*) FROM dlock_waiters', 1, 'a writer waits');
foreach my $width (40, 80, 132)
{
	foreach my $args (['ls'], [ 'ls', '--holders' ], [ 'ls', '--waiters' ], [ 'info', 'a key with readers' ], [ 'info', 'cooling one' ], [ 'top', '--once' ])
	{
		my $t = on_terminal($args, columns => $width);
		is(ended($t), 0, "@$args, $width columns: exit code");
		is(join("\n", grep { columns_of($_) > $width } lines_of($t->{out})), '', "@$args, $width columns: no line is wider");
	}
}
my $t = on_terminal(['ls'], columns => 80);
ended($t);
like(join("\n", lines_of($t->{out})), qr/^KEY .* STATE .* HOLDERS .* REMAINING .*^a key with.* held +3 shared .*^cooling one .* cooling +0 /ms, 'ls, 80 columns: who holds it');
$t = on_terminal([ 'info', 'a key with readers' ], columns => 80);
ended($t);
is(scalar(() = join("\n", lines_of($t->{out})) =~ /^ *\d+  held +shared /mg), 3, 'info, 80 columns: each of them');
append_to_file($go_on, 'x');
is(join(' ', map { (end_dlock($_))[0] } @readers, $writer), '0 0 0 0', 'all end');

is( $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dlock%' AND backend_type = 'client backend'"),
	0, 'no connection is left');
$node->stop;
done_testing();
