# The time from kill -9 of a primary and its manager to the first new grant.
# scripts/failover-time runs this in the environment of the tests.
#
#   failover_time.pl REPEATS CONFIGURATION...
#
# Two clients ask from the moment of the kill on: psql, repeatedly with a pause
# of 50 ms, which shows when the cluster is available; and "dlock acquire",
# which shows what a program with libdlock sees.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../test/lib";

use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use DlockAutoFailover;
use DlockCli;
use DlockPatroni;
use DlockStreaming;
use DlockTest qw(wait_until);

my %configuration = (
	'streaming' => [ 'DlockStreaming', 'streaming replication, promoted at once' ],
	'auto_failover' => [ 'DlockAutoFailover', 'pg_auto_failover, default settings' ],
	'auto_failover-tuned' =>
	  [ 'DlockAutoFailover', 'pg_auto_failover, settings of docs/failover.md', monitor => \%DlockAutoFailover::tuned ],
	'patroni' => [ 'DlockPatroni', 'Patroni, default settings' ],
	'patroni-tuned' => [ 'DlockPatroni', 'Patroni, settings of docs/failover.md', dynamic => \%DlockPatroni::tuned ]);

# Run in a child; the returned sub waits for its end and returns the time of
# that.
sub in_child
{
	my ($code) = @_;

	pipe my $from, my $to or die "could not make a pipe: $!";
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		close $from;
		syswrite $to, eval { $code->(); 1 } ? time : "failed: $@";
		POSIX::_exit(0);
	}
	close $to;
	return sub {
		my $line = <$from> // 'failed';

		waitpid $pid, 0;
		die "$line\n" unless $line =~ /^[\d.]+$/;
		return $line;
	};
}

sub measure
{
	my ($ha, $number) = @_;
	my $from = $ha->primary;
	my $to = $ha->other($from);
	my $all = $ha->all_conninfo(connect_timeout => 2);
	my $start = time;
	my @pids = $ha->strike($from);
	my $psql = in_child(
		sub {
			my $until = time + 300;

			while (($ha->psql($all, "SELECT dlock_acquire('psql:$number')"))[1] eq '')
			{
				die 'no grant in 300 s' if time > $until;
				usleep(50_000);
			}
		});
	my $libdlock = in_child(
		sub {
			system(dlock_program(), 'acquire', "libdlock:$number", '--timeout=300s', '-d', $all) == 0
			  or die 'dlock acquire failed';
		});

	$ha->take_over($to) if $ha->can('take_over');
	my @seconds = map { $_->() - $start } $psql, $libdlock;
	wait_until('it is dead', sub { return DlockHa::gone(@pids) });
	$ha->revive($from);
	$ha->until_ready($to);
	return @seconds;
}

# "median (least to most)"
sub figures
{
	my @sorted = sort { $a <=> $b } @_;
	my $median = ($sorted[ $#sorted / 2 ] + $sorted[ @sorted / 2 ]) / 2;

	return sprintf '%.1f s (%.1f to %.1f)', $median, $sorted[0], $sorted[-1];
}

my ($repeats, @names) = @ARGV;
my $builder = Test::More->builder;		# it has the real output; the modules use the other
my ($table, $progress) = ($builder->output, $builder->failure_output);
print $table "| configuration | repeats | first grant | first grant by libdlock |\n|---|---|---|---|\n";
foreach my $name (@names)
{
	my ($class, $title, %params) = @{ $configuration{$name} // die "there is no configuration $name\n" };
	my $missing = $class->missing;
	my (@psql, @libdlock);

	if ($missing)
	{
		print $table "| $title | 0 | $missing | |\n";
		next;
	}
	my $ha = $class->new(durable => 1, %params);
	foreach my $number (1 .. $repeats)
	{
		my ($psql, $libdlock) = measure($ha, $number);

		push @psql, $psql;
		push @libdlock, $libdlock;
		print $progress sprintf("%s: %.1f s, %.1f s\n", $name, $psql, $libdlock);
	}
	$ha->stop;
	print $table sprintf("| %s | %d | %s | %s |\n", $title, $repeats, figures(@psql), figures(@libdlock));
}
