# The programs of docs/languages.md do what the page says.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockConformance;
use DlockTest;

my $root = "$FindBin::RealBin/../../..";
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my ($busy, $lost) = (75, 76);

# JDBC has no unix sockets
my $node = new_node('languages', conf => "listen_addresses = '127.0.0.1'\nmax_worker_processes = 40\n");
$node->safe_psql('postgres', 'CREATE TABLE journal (version bigint, line text)');

$ENV{PGHOST} = '127.0.0.1';
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
$ENV{PGUSER} = $node->safe_psql('postgres', 'SELECT current_user');

# The test runs what the page shows.
my %sources = (
	python => 'python/examples/programs.py',
	ts => 'typescript/examples/programs.ts',
	go => 'go/examples/programs.go',
	java => 'java/examples/Programs.java');
my $page = slurp_file("$root/docs/languages.md");
foreach my $language (sort grep { -e "$root/client/$sources{$_}" } keys %sources)
{
	my $source = slurp_file("$root/client/$sources{$language}");
	my @shown = $page =~ /^```$language\n(.*?)^```$/msg;

	ok(@shown > 0, "docs/languages.md shows $language");
	foreach my $block (@shown)
	{
		my ($name) = $block =~ /(.*)/;

		ok(index($source, $block) >= 0, "docs/languages.md, $language: $name");
	}
}

# Start a program; its output goes to the log of the test.
sub start
{
	my ($command, %params) = @_;
	my $in = $params{in} // \'';

	return IPC::Run::start($command, '<', $in, '>&2');
}

# Wait until a job has created its file; do not wait for a program that has ended, for
# example because its driver is missing.
sub wait_for_job
{
	my ($run, $file) = @_;

	wait_until(
		"there is $file",
		sub {
			# pump() notices the end of a program
			my $runs = eval { $run->pump_nb; 1 } && $run->pumpable;

			return 1 if -e $file;
			die "the program ended without running its job" unless $runs;
			return 0;
		});
	return;
}

sub status
{
	my ($run) = @_;

	$run->finish;
	return $run->full_result(0) & 0xff ? 'signal' : $run->result(0);
}

sub one
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

sub becomes
{
	my ($sql, $what) = @_;

	$node->poll_query_until('postgres', $sql) or die "timed out: $what";
	ok(1, $what);
	return;
}

foreach my $package (packages())
{
	my ($language, $check, $folder) = @$package;
	my @program = ($check, 'example', $folder);
	my $key = $language;
	my $held = "FROM dlock_locks WHERE key = '$key'";
	my $at = "$dir/$language";

	#
	# cron.  The TTL is the time that a slow machine has for a renewal.
	#

	my @job = (@program, 'cron', $key, 4, 'sh', '-c');
	my $first = start([ @job, "echo >$at.started; until [ -e $at.go ]; do sleep 0.05; done; exit 7" ]);
	wait_for_job($first, "$at.started");
	my $version = one("SELECT version $held");
	like($version, qr/^\d+$/, "$language cron: holds the lock");
	is(status(start([ @job, "echo >$at.second" ])), $busy, "$language cron: a second one is busy");
	ok(!-e "$at.second", "$language cron: and runs nothing");
	becomes("SELECT count(*) = 1 $held AND refreshed_at - acquired_at > ttl",
		"$language cron: the lock is held beyond its TTL");
	is(one("SELECT version $held"), $version, "$language cron: by the same grant");
	append_to_file("$at.go", '');
	is(status($first), 7, "$language cron: the status of the job");
	is(one("SELECT count(*) $held"), 0, "$language cron: the lock is released");

	$first = start([ @job, "echo >$at.again; exec sleep 600" ]);
	wait_for_job($first, "$at.again");
	one("SELECT dlock_force_release('$key', 'test')");
	is(status($first), $lost, "$language cron: a lock that is lost ends the job");

	#
	# leader
	#

	my $one = start([ @program, 'leader', $key, 4, 'one' ]);
	becomes("SELECT count(*) > 0 FROM journal WHERE line = 'one'", "$language leader: one leads");
	my $two = start([ @program, 'leader', $key, 4, 'two' ]);
	becomes("SELECT count(*) = 1 FROM dlock_waiters WHERE key = '$key'",
		"$language leader: two waits");
	my $term = one("SELECT version $held");
	is(one('SELECT DISTINCT version, line FROM journal'),
		"$term|one", "$language leader: one term, one leader");
	$one->signal('KILL');
	is(status($one), 'signal', "$language leader: one is killed");
	becomes("SELECT count(*) > 0 FROM journal WHERE line = 'two'", "$language leader: two leads");
	is(one("SELECT count(DISTINCT version) FROM journal WHERE line = 'two' AND version > $term"),
		1, "$language leader: with a higher version");
	one("SELECT dlock_force_release('$key', 'test')");
	becomes(
		"SELECT count(DISTINCT version) = 2 FROM journal WHERE line = 'two'",
		"$language leader: a leader that loses the lock campaigns again");
	$two->signal('KILL');
	status($two);
	becomes("SELECT count(*) = 0 $held", "$language leader: nobody leads");
	one('TRUNCATE journal');

	#
	# writer.  The TTL is so long that the fence notices the loss first.
	#

	my $in = "first\n";
	my $writer = start([ @program, 'writer', $key, 3600 ], in => \$in);
	$writer->pump until $in eq '';
	becomes('SELECT count(*) = 1 FROM journal', "$language writer: writes");
	$version = one("SELECT version $held");
	is(one('SELECT version, line FROM journal'), "$version|first", "$language writer: with its version");
	is(one("SELECT dlock_force_release('$key', 'test')"), $version, "$language writer: loses its lock");
	$in = "second\n";
	is(status($writer), $lost, "$language writer: is rejected");
	is(one('SELECT line FROM journal'), 'first', "$language writer: nothing was written");

	is(status(start([ @program, 'writer', $key, 3600 ], in => \"third\nfourth\n")),
		0, "$language writer: another one");
	is(one("SELECT string_agg(line, ' ' ORDER BY line) FROM journal WHERE version > $version"),
		'fourth third', "$language writer: writes with a higher version");
	is(one("SELECT count(*) $held"), 0, "$language writer: the lock is released");
	one('TRUNCATE journal');

}

$node->stop;
done_testing();
