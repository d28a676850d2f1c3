# Two clusters with a synchronous standby each, and two routers, on servers of their own.
# Clients use locks through both routers.  Meanwhile a shard is moved to and fro, a cluster
# fails over in the middle of a move, a router is killed, and some clients use a router
# whose map is never corrected.  The checker of the torture runs finds no overlap, versions
# of each key rise, and no acknowledged grant is lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);

use DlockCli;
use DlockRouter;
use DlockTest;
use DlockWait;

need_plproxy();

my ($programs) = grep { -f "$_/routed.c" } 'test/torture', '../test/torture';
die 'there is no test/torture/routed.c' unless $programs;
system_or_bail('make', '-s', '-C', $programs, 'routed', 'check');

my $shard = 17;
my @moving = keys_of($shard, 4);
my @keys = (@moving, keys_of(100, 2), keys_of(1000, 2));
my $folder = PostgreSQL::Test::Utils::tempdir();

# What the test does, for the checker.
sub record
{
	my ($line) = @_;

	open my $fh, '>>', "$folder/nemesis.history" or die "could not write the history: $!";
	$fh->autoflush(1);
	printf $fh "%d %s\n", clock_gettime(CLOCK_MONOTONIC) * 1e6, $line;
	close $fh;
	return;
}

#
# The servers
#

my %served = (a => '{[0,512)}', b => '{[512,1024)}');
my (%primary, %standby, @map);
foreach my $name (qw(a b))
{
	$primary{$name} = new_node($name, streaming => 1, conf => "max_connections = 100\n");
	$standby{$name} = new_standby($primary{$name}, "standby_$name");
	make_synchronous($primary{$name}, $standby{$name});
	$primary{$name}->safe_psql('postgres', "SELECT dlock_serve('$served{$name}')");
	push @map, $name, $served{$name},
	  sprintf('host=%s,%s port=%s,%s dbname=postgres target_session_attrs=read-write',
		$primary{$name}->host, $standby{$name}->host, $primary{$name}->port, $standby{$name}->port);
}
my @routers = map { new_node("router$_", bare => 1, conf => "max_connections = 50\n") } 1, 2;
foreach my $router (@routers)
{
	new_router($router, 'router');
	set_clusters($router, 'router', @map);
}
# a router that nobody tells of a move
new_router($routers[1], 'stale');
set_clusters($routers[1], 'stale', @map);

server_is($routers[0]);
my @move = ('--router', address($routers[1], 'router'), { env => { PGDATABASE => 'router' } });

# versions of different clusters must not coincide by chance: the checker knows one server
$primary{b}->safe_psql('postgres', 'SELECT dlock_advance(1::bigint << 50)');

sub current
{
	my ($name) = @_;

	return $primary{$name};
}

sub servers
{
	return join '', grep { current($_)->safe_psql('postgres', "SELECT shards @> $shard FROM dlock_served") eq 't' } qw(a b);
}

sub moves
{
	my ($from, $to, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	record('fault move');
	my ($code, $out, $err) = dlock('shard', 'move', $shard, $from, $to, @move);
	record('heal move');
	is($code, 0, "$what: the shard moves from $from to $to") or diag $err;
	is(servers(), $to, "$what: only $to serves it");
	return;
}

#
# The clients
#

my (%clients, %out);

sub start_client
{
	my ($number, $conninfo) = @_;

	$out{$number} = '';
	$clients{$number} = IPC::Run::start(
		[ "$programs/routed", $number, $number, "$folder/client-$number.history", $conninfo, @keys ],
		'<', \undef, '>&', \$out{$number});
	return;
}

# if the test dies
END
{
	my $status = $?;

	eval { $_->kill_kill } foreach values %clients;
	$? = $status;
}

sub history_of
{
	my ($number) = @_;

	return slurp("$folder/client-$number.history");
}

# Each client has this many more grants of these keys than before.
sub until_granted
{
	my ($what, $pattern, @numbers) = @_;
	my %before = map { $_ => length history_of($_) } @numbers;

	wait_until($what, sub {
		foreach my $number (@numbers)
		{
			return 0 unless substr(history_of($number), $before{$number}) =~ $pattern;
		}
		return 1;
	});
	pass($what);
	return;
}

my $granted = qr/ acquire granted .* acquire granted /s;

sub conninfo_of
{
	my ($database, @order) = @_;

	return sprintf 'host=%s port=%s dbname=%s', join(',', map { $routers[$_]->host } @order),
	  join(',', map { $routers[$_]->port } @order), $database;
}

record('mode sync');
start_client($_, conninfo_of('router', 0, 1)) foreach 1 .. 3;
start_client($_, conninfo_of('router', 1, 0)) foreach 4 .. 6;
start_client($_, conninfo_of('stale', 1)) foreach 7;
my @fresh = 1 .. 6;
until_granted('all clients get locks', $granted, @fresh, 7);

#
# To and fro, under load
#

moves('a', 'b', 'first');
until_granted('after the move, also by the old map for what has not moved', $granted, @fresh, 7);
wait_until('a client with an old map is refused', sub { return history_of(7) =~ /acquire error state=LK002/ });
moves('b', 'a', 'back');

#
# A failover in the middle of a move: the source goes while its grants drain.
#

# a grant that outlives all this; a key of its own
my $kept = (keys_of($shard, 5))[4];
my $version = $routers[0]->safe_psql('router', "SELECT dlock_acquire('$kept', '1h', 'kept')");

record('fault move');
my $run = start_dlock('shard', 'move', $shard, 'a', 'b', @move);
wait_until('the move waits', sub { $run->{h}->pump_nb; return $run->{err} =~ /waiting for \d+ grants on cluster "a"/ });
record('fault server-kill node=1');
$primary{a}->stop('immediate');
my ($code, $out, $err) = end_dlock($run);
is($code, 69, 'the move ends, because the cluster is gone');
record('fault promote node=2 mode=sync lost=0');
promote($standby{a});
record('heal server-kill node=1');
record('heal move');
$primary{a} = $standby{a};
is(servers(), '', 'the promoted standby knows that it has stopped serving the shard');
until_granted('the other shards of that cluster work', qr/granted/, @fresh);
is($routers[1]->safe_psql('router', "SELECT dlock_check('$kept', $version), dlock_release('$kept', $version)"), 'held|released',
	'the acknowledged grant is there, too');
moves('a', 'b', 'run again');
until_granted('the shard is in use again', qr/acquire key=(?:@{[ join '|', @moving ]}) [^\n]*\n(?:[^\n]*\n)*?[^\n]*granted/, @fresh);

#
# A router is killed, and comes back with its map.
#

record('fault router-kill');
$routers[0]->stop('immediate');
until_granted('clients continue through the other router', $granted, @fresh);
$routers[0]->start;
record('heal router-kill');
moves('b', 'a', 'at last');
until_granted('all is well', $granted, @fresh);

#
# The end
#

record('healthy');
$_->signal('TERM') foreach values %clients;
foreach my $number (sort keys %clients)
{
	$clients{$number}->finish;
	is($clients{$number}->full_result(0), 0, "client $number ends") or diag $out{$number};
}
foreach my $name (qw(a b))
{
	my $rows = current($name)->safe_psql('postgres',
		'SELECT key, version FROM dlock.locks WHERE slot = 0 AND dlock_shard(key) <@ (SELECT shards FROM dlock_served)');

	record("final version key=$1 version=$2") while $rows =~ /^(\S+)\|(\d+)$/mg;
}
record('final end');

my $report = '';
my $clean = IPC::Run::run([ "$programs/check", $folder ], '<', \undef, '>&', \$report);
ok($clean, 'the checker finds nothing');
$clean ? note $report : diag $report;

# the load was such that it could have found something
my $all = join '', map { history_of($_) } sort keys %clients;
my %count;
$count{$1}++ while $all =~ / ((?:acquire|refresh|release) (?:granted|busy|ok|released))/g;
cmp_ok($count{$_} // 0, '>=', 20, "$_: often enough") foreach 'acquire granted', 'acquire busy', 'refresh ok', 'release released';
my %by;
foreach my $number (@fresh)
{
	foreach my $key (@moving)
	{
		$by{$key}{$number} = 1 if history_of($number) =~ /acquire key=$key /;
	}
}
cmp_ok(scalar keys %{ $by{$_} }, '>=', 2, "$_ is wanted by several") foreach @moving;

$_->stop foreach @routers;
$_->stop('immediate') foreach $standby{b}, $primary{b}, $primary{a};
done_testing();
