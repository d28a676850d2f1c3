# A publication FOR ALL TABLES contains dlock.locks.  On a subscriber that also has dlock,
# logical replication must not change the locks.  The fence of a connection is not for it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $conf = "wal_level = logical\nwal_retrieve_retry_interval = 100ms\n";
my $publisher = new_node('publisher', streaming => 'logical', conf => $conf);
my $subscriber = new_node('subscriber', streaming => 'logical', conf => $conf);
my $conninfo = $publisher->connstr . ' dbname=postgres';
my $state = q{SELECT string_agg(key || ' ' || version, ', ' ORDER BY key) FROM dlock_locks};

$publisher->safe_psql('postgres', q{
CREATE TABLE data (id int PRIMARY KEY);
CREATE PUBLICATION everything FOR ALL TABLES;
SELECT dlock_acquire('both', '1h'), dlock_acquire('gone', '1h');
});
$subscriber->safe_psql('postgres', q{
CREATE TABLE data (id int PRIMARY KEY);
SELECT setval('dlock.versions', 100);
SELECT dlock_acquire('both', '1h'), dlock_acquire('gone', '1h');
});
my $theirs = $subscriber->safe_psql('postgres', $state);
is($theirs, 'both 101, gone 102', 'the subscriber has locks of its own');

sub refused
{
	my ($offset, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_until($what,
		sub { return slurp_file($subscriber->logfile, $offset) =~ /logical replication cannot write to table "dlock\.(locks|served)"/ });
	my $log = slurp_file($subscriber->logfile, $offset);
	like($log, qr/HINT:  Publish the tables or the schemas that you need by name, without schema "dlock"/, "$what: the hint says how to avoid it");
	is($subscriber->safe_psql('postgres', $state), $theirs, "$what: the locks are as they were");
	return;
}

# the initial copy
my $offset = -s $subscriber->logfile;
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION s CONNECTION '$conninfo' PUBLICATION everything");
refused($offset, 'the initial copy is refused');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');

# changes after that: an insert, an update, a delete, and TRUNCATE
my %change = (
	'insert' => q{SELECT dlock_acquire('new', '1h')},
	'update' => q{SELECT dlock_refresh('both', version) FROM dlock_locks WHERE key = 'both'},
	'delete' => q{DELETE FROM dlock.locks WHERE key = 'gone'},
	'truncate' => q{TRUNCATE dlock.locks},
	'another table' => q{SELECT dlock_serve('{[0,1024)}')});
foreach my $kind ('insert', 'update', 'delete', 'truncate', 'another table')
{
	$subscriber->safe_psql('postgres',
		"CREATE SUBSCRIPTION s CONNECTION '$conninfo' PUBLICATION everything WITH (copy_data = off)");
	$offset = -s $subscriber->logfile;
	$publisher->safe_psql('postgres', $change{$kind});
	refused($offset, "$kind is refused");
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');
}

# A subscription that has stopped continues where it was, without the locks, as
# docs/operations.md says.
$publisher->safe_psql('postgres', 'TRUNCATE dlock.locks; SELECT dlock_serve(NULL)');
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '$conninfo' PUBLICATION everything");
wait_until('all is copied',
	sub { return $subscriber->safe_psql('postgres', q{SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel}) eq 't' });
$offset = -s $subscriber->logfile;
$publisher->safe_psql('postgres', q{
BEGIN;
SELECT dlock_acquire('stops it', '1h');
INSERT INTO data VALUES (11);
COMMIT;
INSERT INTO data VALUES (12);
});
refused($offset, 'a subscription stops');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM data'), 0, 'and with it all tables');
$publisher->safe_psql('postgres', q{
BEGIN;
DROP PUBLICATION everything;
CREATE PUBLICATION everything FOR TABLES IN SCHEMA public;
COMMIT;
INSERT INTO data VALUES (13);
});
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_until('it continues',
	sub { return $subscriber->safe_psql('postgres', q{SELECT string_agg(id::text, ' ' ORDER BY id) FROM data}) eq '11 12 13' });
is($subscriber->safe_psql('postgres', $state), $theirs, 'the locks are as they were');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s; TRUNCATE data');
$publisher->safe_psql('postgres', 'TRUNCATE data');

# A publication that names its tables works, and no fence of the subscriber judges its worker.
$subscriber->safe_psql('postgres', q{ALTER DATABASE postgres SET dlock.fence = '17:gone'});
$ENV{PGOPTIONS} = '-c dlock.fence=';
$publisher->safe_psql('postgres', q{
DROP PUBLICATION everything;
CREATE PUBLICATION named FOR TABLES IN SCHEMA public;
});
$offset = -s $subscriber->logfile;
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '$conninfo' PUBLICATION named");
$publisher->safe_psql('postgres', q{
INSERT INTO data VALUES (1);
SELECT dlock_acquire('new', '1h');
INSERT INTO data VALUES (2);
});
wait_until('data arrives', sub { return $subscriber->safe_psql('postgres', 'SELECT count(*) FROM data') eq '2' });
unlike(slurp_file($subscriber->logfile, $offset), qr/dlock/, 'dlock is not mentioned');
is($subscriber->safe_psql('postgres', $state), $theirs, 'the locks are as they were');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');

$subscriber->stop;
$publisher->stop;
done_testing();
