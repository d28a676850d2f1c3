# An event is a hint: when NOTIFY fails, locks are granted, taken and expire all the same.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockTicket;
use DlockWait;

my $node = new_node('notify_fails', conf => "dlock.reap_interval = '50ms'\n");
my $major = $node->safe_psql('postgres', 'SHOW server_version_num') / 10000;
my $now = client($node, 'now');
my $folder = $node->data_dir . '/pg_notify';

# Send notifications of this size until one fails.
sub fill
{
	my ($size) = @_;

	return $now->ask_it("DO \$\$ BEGIN LOOP PERFORM pg_notify('fill', repeat('x', $size)); COMMIT; END LOOP; END \$\$");
}

# Without a folder that can be written to, the queue ends with the pages in memory.
sub break_notify
{
	chmod 0, $folder or die "could not change $folder: $!";
	fill(7900);
	return fill(1);
}

sub mend_notify { chmod 0700, $folder or die "could not change $folder: $!"; return; }
END { local $?; mend_notify() if defined $folder && -d $folder }

#
# The workers: every NOTIFY fails
#

$now->ask_it("SELECT dlock_acquire('k', '1h', 'holder')");
my $ticket = enqueue($now, 'k', 'me');
until_state($node, $ticket, 'waiting 1', 'a ticket waits');
my $granter = granter_of($node);
like(break_notify(), qr/^ERROR /, 'NOTIFY fails');

is($now->ask_it("SELECT dlock_release('k', owner => 'holder')"), 'released', 'a release needs none');
until_state($node, $ticket, 'granted', 'a ticket is granted');
is($now->ask_it("SELECT owner FROM dlock_get('k')"), 'me', 'to its owner');
my $lost = enqueue($now, 'k', 'you', "wait => '1ms'");
until_state($node, $lost, 'missed', 'another one is missed at its time');
is(granter_of($node), $granter, 'by the same granter');

$now->ask_it("SELECT dlock_acquire('short', '1ms')");
until_sql($node, q{SELECT count(*) FROM dlock.locks WHERE key = 'short'}, 0, 'an expired row is removed');

my $waiter = client($node, 'waiter');
my $version = $now->ask_it("SELECT dlock_acquire('p', '1h', cleanup => '1h')");
$waiter->start(q{SELECT dlock_acquire('p', '1h', priority => 1, wait => '1h') > 0});
until_sql($node, "SELECT dlock_check('p', $version)", 'preempting', 'a holder is asked to yield');
$now->ask_it("SELECT dlock_release('p', $version)");
is($waiter->answer, 't', 'and yields');
ok($node->poll_query_until('postgres', q{SELECT status = 'ok' FROM dlock_health() WHERE name = 'reaper'}), 'the reaper is well');
mend_notify();

#
# Everybody: the queue is full
#

SKIP:
{
	skip 'the queue takes 8 GB before version 17; DLOCK_FULL_QUEUE=1 fills it', 3
	  if $major < 17 && !$ENV{DLOCK_FULL_QUEUE};

	if ($major >= 17)
	{
		$node->append_conf('postgresql.conf', "max_notify_queue_pages = 64\n");
		close_clients($now, $waiter);
		DlockWait::close_monitors();
		$node->restart;
		$now = client($node, 'now');
	}
	my $reader = client($node, 'reader');
	$reader->ask_it('LISTEN fill');
	$reader->ask_it('BEGIN');
	is(fill(7900), 'ERROR 54000', 'the queue is full');

	$version = $now->ask_it("SELECT dlock_acquire('forced', '1h')");
	is($now->ask_it("SELECT dlock_force_release('forced', 'test')"), $version, 'a forced release succeeds');
	$now->ask_it("SELECT dlock_acquire('lower', '1h')");
	isnt($now->ask_it("SELECT dlock_acquire('lower', '1h', priority => 1)"), '', 'a preemption, too');
	$reader->ask_it('COMMIT');
	$reader->leave;
}

done_testing();
