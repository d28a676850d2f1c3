# The command line through PgBouncer in transaction mode: one command holds a lock with
# a short TTL, and many more wait for it than there are server connections.  Each command
# is a process of its own.  There is one connection for 25 of them; scripts/soak runs this
# with 500 commands on 20 connections (DLOCK_CROWD).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes;

use DlockBouncer;
use DlockCli;
use DlockTest;

my $commands = $ENV{DLOCK_CROWD} // 50;
my $servers = int($commands / 25);
my $ttl = $commands < 500 ? '3s' : '5s';
my $renewals = 8;

my $node = new_node('pooled_crowd', conf => "max_connections = 30\nlog_connections = on\ndlock.log_ends = lost\n");
my $dlock = dlock_program();

# the server refuses to let the pooler in more often than that
$node->safe_psql('postgres', "CREATE ROLE app LOGIN CONNECTION LIMIT $servers");
my $bouncer = DlockBouncer->new(
	user => 'app',
	pool_size => $servers,
	more => 'max_client_conn = ' . ($commands + 20),
	target => 'host=' . $node->host . ' port=' . $node->port);
my %through = (PGHOST => $bouncer->folder, PGPORT => $bouncer->port, PGUSER => 'x', PGDATABASE => 'postgres');

# the observer, beside the pooler
sub observe { return $node->safe_psql('postgres', $_[0]); }

my $said = temp_file();

sub until_true
{
	my ($sql, $what) = @_;

	return if $node->poll_query_until('postgres', $sql);
	diag(slurp_file($node->logfile) =~ s/^.*connection (?:received|auth).*\n//gmr . slurp($said));
	die "$what does not come";
}

# one that holds, until it can read a line
my $end = temp_file();
POSIX::mkfifo($end, 0600) or die "could not create a pipe: $!";
my $holder = start_dlock('exec', 'job', "--ttl=$ttl", '--owner=holder', '--', 'sh', '-c', 'read line <"$0"', $end, { env => \%through });
until_true(q{SELECT count(*) = 1 FROM dlock_get('job')}, 'the holder');
my $version = observe(q{SELECT version FROM dlock_get('job')});

# those that wait; a command is to say nothing
my $ran = temp_file();
my $script = script_file(<<"SH");
exec </dev/null >"$said" 2>&1
pids=
for i in \$(seq $commands); do
	"$dlock" exec job --quiet --wait=forever --timeout=60s --ttl=30s --owner="\$i" -- \\
		sh -c 'echo "\$DLOCK_OWNER" >>"\$0"' "$ran" &
	pids="\$pids \$!"
done
for pid in \$pids; do
	wait "\$pid" || echo "exit code \$?"
done
SH
my $began = Time::HiRes::time();
my $crowd = IPC::Run::start([ 'env', (map { "$_=$through{$_}" } sort keys %through), $script ]);
until_true("SELECT count(*) = $commands FROM dlock_waiters WHERE ticket IS NOT NULL", 'the last one that waits');
my $queued = Time::HiRes::time();
my $queue = observe(q{SELECT string_agg(owner, ' ' ORDER BY position) FROM dlock_waiters});

my $before = observe('SELECT renewals FROM dlock_stats');
until_true("SELECT renewals >= $before + $renewals FROM dlock_stats", 'the next renewal');
is(observe(q{SELECT version FROM dlock_get('job')}), $version, 'the holder renews its lock while they all wait');
is(observe('SELECT count(*) FROM dlock_waiters'), $commands, 'and they do');
cmp_ok(observe(q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'}), '<=', $servers, "$servers server connections are enough for that");

# it ends, and they get it in turn
my $released = Time::HiRes::time();
append_to_file($end, "\n");
my ($code, $out, $err) = end_dlock($holder);
is("$code$out$err", '0', 'the holder has never lost it');
IPC::Run::finish($crowd);
note(sprintf '%d commands on %d connections: queued in %.1f s, held for %.1f s meanwhile, all served in %.1f s, %.0f ms each',
	$commands, $servers, $queued - $began, $released - $queued, Time::HiRes::time() - $released,
	1000 * (Time::HiRes::time() - $released) / $commands);
is(slurp($said), '', 'no command has failed or said anything');
is(join(' ', split ' ', slurp($ran)), $queue, 'each has had its turn once, in the order of the queue');
is(observe('SELECT grants || $$ $$ || expired FROM dlock_stats'), ($commands + 1) . ' 0', 'one grant each, none of which was left to its TTL');
is(observe('SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');
my $log = slurp_file($node->logfile);
unlike($log, qr/too many connections|ERROR|FATAL/, 'the server has refused nothing');
note(scalar(() = $log =~ /connection authorized: user=app/g) . ' server connections were opened by the pooler');

undef $bouncer;
$node->stop;
done_testing();
