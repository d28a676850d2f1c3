# Many clients ask for all kinds of locks of one key at the same time, and the server crashes.
# An exclusive grant is alone, a semaphore has no grant too many, and a crash neither brings
# back what others have followed nor forgets what cools.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $clients = 10;
my $node = new_node('race', conf => "max_connections = 40\n");

$node->safe_psql('postgres', 'CREATE TABLE granted (kind text)');

# What a client sees right after its grant.  Versions are in the order in which the grants
# were won, so those with a lower version that are still there were there before.
my %beside = (
	exclusive => 'version <> :v',
	reader => 'slots = 1',
	place => 'version < :v',
	handed => 'version < :v');
my %most = (exclusive => 0, reader => 0, place => 1, handed => 1);

sub script
{
	my ($name, $kind, $key, $asks) = @_;
	my $file = $node->basedir . "/$name.sql";
	my $hand_over = $kind eq 'handed' ? "SELECT dlock_handover($key, :v, 'of ' || :client_id) AS v \\gset" : '';

	append_to_file($file, <<"END");
SELECT (extract(epoch FROM clock_timestamp()) * 100)::bigint AS hundredth \\gset
SELECT coalesce(dlock_acquire($key, '10min', $asks), 0) AS v \\gset
\\if :v > 0
$hand_over
SELECT 1 / (count(*) <= $most{$kind})::int FROM dlock_get($key) WHERE version IS NOT NULL AND $beside{$kind};
INSERT INTO granted VALUES ('$kind');
SELECT 1 / (dlock_release($key, :v) = 'released')::int;
\\endif
END
	return $file;
}

sub race
{
	my ($what, $seconds, $key, @kinds) = @_;
	my %asks = (exclusive => 'slots => 1', reader => 'shared => true', place => 'slots => 2', handed => 'slots => 2');
	my @files = map { script("$what-$_" =~ s/\W/_/gr, $_, $key, $asks{$_}) } @kinds;

	my $kinds = 0;
	my $give_up = time + 2 * $PostgreSQL::Test::Utils::timeout_default;

	# on a busy machine it takes longer until each kind has had its turn
	$node->safe_psql('postgres', 'TRUNCATE granted');
	while ($kinds < @kinds && time < $give_up)
	{
		$node->command_ok(
			[
				'pgbench', '-n', '-h', $node->host, '-p', $node->port,
				'-c', $clients, '-j', 2, '-T', $seconds, (map { ('-f', $_) } @files), 'postgres'
			],
			"$what: nobody is beside one that must be alone, and there are not too many");
		$kinds = $node->safe_psql('postgres', 'SELECT count(DISTINCT kind) FROM granted');
	}
	is($kinds, scalar @kinds, "$what: all kinds were granted");
	return;
}

local $ENV{PGOPTIONS} = '-c synchronous_commit=off -c dlock.durable_grants=off';
race('a semaphore', 4, "'semaphore'", 'place');
race('readers and a writer', 4, "'writer'", 'reader', 'exclusive');
race('all kinds', 4, "'all'", 'reader', 'exclusive', 'place');
race('places that are handed over', 4, "'handed'", 'handed', 'exclusive');
race('new keys', 5, "'new' || :hundredth", 'reader', 'exclusive', 'place');
$node->append_conf('postgresql.conf', "dlock.reap_interval = '5ms'");
$node->reload;
race('all kinds, and heads that are removed', 4, "'reaped'", 'reader', 'exclusive', 'place');

#
# A crash: every lease that is there begins anew, so what others have followed must be gone.
#

delete local $ENV{PGOPTIONS};
# a restart: a reaper that has not read the file yet would remove what is looked for below
$node->append_conf('postgresql.conf', "dlock.reap_interval = 0");
$node->restart;

# Takes a grant and waits until it has expired or lapsed.
sub outlived
{
	my ($key, $asks, $more) = @_;
	my $version = $node->safe_psql('postgres', "SELECT dlock_acquire('$key', '50ms', '$key', $asks $more)");

	$node->poll_query_until('postgres', "SELECT now() > expires_at FROM dlock.locks WHERE key = '$key' AND version = $version")
	  or die 'it does not expire';
	return $version;
}

# After the crash the first would be over soon in any case; its row tells at once.
sub is_ended
{
	my ($key, $version) = @_;

	is($node->safe_psql('postgres', "SELECT count(*) FROM dlock.locks WHERE key = '$key' AND version = $version AND held"),
		0, "$key: which ends the first");
	return;
}

my %outlived;
my @followed = (
	[ 'writer, reader', 'slots => 1', 'shared => true', '' ],
	[ 'reader, writer', 'shared => true', 'slots => 1', '' ],
	[ 'lapsed writer, reader', 'slots => 1', 'shared => true', ', lazy => true' ],
	[ 'lapsed reader, writer', 'shared => true', 'slots => 1', ', lazy => true' ],
	[ 'place, writer', 'slots => 3', 'slots => 1', '' ]);

foreach my $case (@followed)
{
	my ($key, $first, $second, $more) = @$case;

	$outlived{$key} = outlived($key, $first, $more);
	isnt($node->safe_psql('postgres', "SELECT dlock_acquire('$key', '1h', $second)"), '', "$key: the second is granted");
	is_ended($key, $outlived{$key});
}
$outlived{places} = outlived('places', 'slots => 2', '');
isnt($node->safe_psql('postgres', "SELECT dlock_acquire('places', '1h', slots => 2)"), '', 'places: beside one that has expired')
  foreach 1 .. 2;
is_ended('places', $outlived{places});

my $cooling = $node->safe_psql('postgres', "SELECT dlock_acquire('cooling', '1h', at_least => '1h')");
my $cooling_place = $node->safe_psql('postgres', "SELECT dlock_acquire('cooling place', '1h', slots => 2, at_least => '1h')");

is($node->safe_psql('postgres', "SELECT dlock_release('cooling', $cooling), dlock_release('cooling place', $cooling_place)"),
	'released|released', 'two locks are to cool');
# a release alone need not be durable
$node->safe_psql('postgres', "SELECT dlock_acquire('flush')");

$node->stop('immediate');
$node->start;

is($node->safe_psql('postgres', "SELECT dlock_check('$_', $outlived{$_}) <> 'held'"), 't', "$_: the first is over after a crash")
  foreach sort keys %outlived;
foreach my $case (@followed)
{
	my ($key, undef, $second) = @$case;

	is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_get('$key')"), 1, "$key: the second is there");
	is($node->safe_psql('postgres', "SELECT dlock_acquire('$key', slots => 1)"), '', "$key: and keeps a writer out");
}
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_get('places')"), 2, 'places: there are two');
is($node->safe_psql('postgres', "SELECT dlock_acquire('places', slots => 2)"), '', 'places: and no more');
is($node->safe_psql('postgres', "SELECT dlock_acquire('cooling')"), '', 'what cools cools after a crash');
is($node->safe_psql('postgres', "SELECT dlock_acquire('cooling place')"), '', 'so does a place');
is($node->safe_psql('postgres', "SELECT dlock_check('cooling', $cooling)"), 'not_held', 'and nobody holds it');

$node->stop;
done_testing();
