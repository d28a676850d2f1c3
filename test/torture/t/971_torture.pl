# Short torture runs: the faults happen, the clients make progress, and the checker finds
# nothing.  test/torture/t/972_checker.pl, t/073 and t/074 test that the checker finds violations.

use strict;
use warnings FATAL => 'all';

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my ($dir) = grep { -x "$_/run" } 'test/torture', '../test/torture';
die 'there is no test/torture/run' unless $dir;
system_or_bail('make', '-s', '-C', $dir, 'all');

my $bindir = qx{pg_config --bindir};
chomp $bindir;

# Run it; returns what the summary says, "what name" => number.
sub torture
{
	my ($name, @options) = @_;
	my $folder = "$PostgreSQL::Test::Utils::log_path/torture-$name";
	my $out = '';
	my %summary;

	mkdir $folder or die "could not create $folder: $!";
	IPC::Run::run(
		[ $^X, "$dir/run", '--bindir', $bindir, '--work', PostgreSQL::Test::Utils::tempdir_short(), '--folder', $folder, @options ],
		'<', \undef, '>&', \$out,
		IPC::Run::timeout(1000));
	my $status = $? >> 8;
	note $out;
	is($status, 0, "$name: it comes to its end, and nothing is found") or diag $out;
	if (open my $fh, '<', "$folder/summary")
	{
		while (my $line = <$fh>)
		{
			my ($value, @what) = reverse split ' ', $line;

			$summary{ join ' ', reverse @what } = $value;
		}
		close $fh;
	}
	is($summary{violations}, 0, "$name: no violation");
	return %summary;
}

# It happened at least this often.
sub at_least
{
	my ($name, $summary, $least, @what) = @_;

	cmp_ok($summary->{$_} // 0, '>=', $least, "$name: $_") foreach @what;
	return;
}

my @faults = qw(failover-kill split-brain cancel client-stop client-kill backend-kill cut-clients granter-terminate granter-stop);
my %sync = torture('sync', '--clients', 6, '--faults', join(',', @faults), '--count', scalar @faults);
at_least('sync', \%sync, 1, map { "fault $_" } @faults);
at_least('sync', \%sync, 20, 'operation acquire granted', 'operation release released', 'operation write ok');
at_least('sync', \%sync, 1, 'operation acquire busy', 'operation refresh ok', 'operation write fenced', 'first_grant_ms');
at_least('sync', \%sync, 1, map { "operation kind $_" } qw(exclusive reader place));
is($sync{lost_writes}, 0, 'sync: no acknowledged write is lost');

@faults = qw(failover-kill client-stop granter-kill);
my %async = torture('async', '--mode', 'async', '--clients', 6, '--faults', join(',', @faults), '--count', 4);
at_least('async', \%async, 1, map { "fault $_" } @faults);
at_least('async', \%async, 20, 'operation acquire granted', 'operation write ok');
at_least('async', \%async, 1, 'lost_writes');

# the other edition, with the same clients and the same checker
@faults = qw(failover-kill cancel client-kill client-stop primary-kill);
my %portable = torture('portable', '--edition', 'portable', '--clients', 4, '--faults', join(',', @faults), '--count', scalar @faults);
at_least('portable', \%portable, 1, map { "fault $_" } @faults);
at_least('portable', \%portable, 20, 'operation acquire granted', 'operation release released', 'operation write ok');
at_least('portable', \%portable, 1, 'operation acquire busy', map { "operation kind $_" } qw(exclusive reader place));

done_testing();
