# Runs the examples of the documentation, and checks that they do what it says.
#
# Every block of README.md and docs/*.md that is marked "sql" or "console" is run, in
# order. Each file has its own database, so the first version in it is 1, and all sessions
# run as superuser. A statement ends with a semicolon at the end of a line, and must not
# fail unless the block says so.
#
# In a block marked "sql", a comment that is alone on its line may be one of
#
#	-- session B		what follows is for session B; the first is A
#	-- returns 17		what the previous statement returned: one line for each row,
#						columns separated by |, null as NULL; "-- returns nothing"
#						for no row
#	-- becomes held		the same, but repeated until it returns that
#	-- error LK001		the previous statement fails with this code
#	-- waits			the previous statement does not return yet; a later
#						"returns" or "error" of the session is about it
#	-- hears preempt	this event arrives on channel dlock
#
# Any other comment is for the reader.  Dollar-quoted bodies may contain semicolons.  In a
# block marked "console", "A=# " (or "A-# ", "A=*# ") is the prompt of session A, and what
# follows is what psql prints.  Dates and times of day are not compared there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $root = "$FindBin::RealBin/..";
my @files =
  map { s/^\Q$root\E\///r } ("$root/README.md", sort glob "$root/docs/*.md");

my $node = PostgreSQL::Test::Cluster->new('docs');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'dlock'\n");
$node->start;

# state for the current file
my ($database, %session, $where);

sub poll
{
	my ($what, $condition) = @_;

	for (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if $condition->();
		usleep(50_000);
	}
	die "$where: timed out waiting until $what";
}

sub session
{
	my ($name) = @_;

	return $session{$name} //= do
	{
		my $psql = $node->background_psql($database, on_error_stop => 0);

		$psql->set_query_timer_restart;
		$psql->query('\pset null NULL' . "\n" . '\set VERBOSITY verbose');
		{
			psql => $psql,
			pid => scalar $psql->query('SELECT pg_backend_pid()'),
			heard => '',
			pending => undef,
		};
	};
}

# Separate the notifications from the rest of the output.
sub answer
{
	my ($session, $printed) = @_;
	my @rest;

	foreach my $line (split /\n/, $printed)
	{
		if ($line =~ /^Asynchronous notification "dlock" with payload "(.*)" received/)
		{
			$session->{heard} .= "$1\n";
		}
		elsif ($line !~ /^Asynchronous notification/)
		{
			push @rest, $line;
		}
	}
	$session->{stderr} = $session->{psql}->{stderr};
	$session->{psql}->{stderr} = '';
	return join "\n", @rest;
}

sub run
{
	my ($session, $sql) = @_;

	return answer($session, scalar $session->{psql}->query($sql));
}

# Send a statement that will not return yet; collect() gets the answer.
sub send_off
{
	my ($session, $sql) = @_;
	my $mark = 'sent ' . ++$session->{sent};

	$session->{psql}->query_until(qr/^\Q$mark\E\n/m, "\\echo $mark\n$sql\n");
	$session->{pending} = $sql;
	poll(
		"it waits: $sql",
		sub {
			$node->safe_psql($database,
				"SELECT pid FROM dlock_waiters WHERE pid = $session->{pid}"
				  . " UNION SELECT pid FROM pg_locks WHERE NOT granted AND pid = $session->{pid}"
			) ne '';
		});
	pass("$where: waits");
	return;
}

sub collect
{
	my ($session) = @_;

	$session->{pending} = undef;
	return run($session, '');
}

sub code_of
{
	my ($stderr) = @_;

	return $stderr =~ /ERROR:  ([0-9A-Z]{5}): / ? $1 : 'none';
}

# Check a statement against what the block says about it.  If it says nothing, the
# statement must only not fail.
sub check
{
	my ($name, $sql, @said) = @_;
	my $session = session($name);
	my @rows = map { /^returns (.*)/ ? $1 : () } @said;
	my ($code) = map { /^error (\S+)/ ? $1 : () } @said;
	my $got;

	return unless defined $sql || @rows || defined $code;
	if (grep { $_ eq 'waits' } @said)
	{
		send_off($session, $sql);
		return;
	}
	die "$where: session $name still waits for: $session->{pending}"
	  if defined $sql && defined $session->{pending};
	die "$where: an answer of session $name without a statement"
	  if !defined $sql && !defined $session->{pending};

	if (my ($end) = map { /^becomes (.*)/ ? $1 : () } @said)
	{
		poll("it returns $end: $sql", sub { run($session, $sql) eq $end });
		pass("$where: becomes $end");
		return;
	}
	$got = defined $sql ? run($session, $sql) : collect($session);
	is(code_of($session->{stderr}), $code // 'none', "$where: error code")
	  or diag("$session->{stderr} from: " . ($sql // 'a statement that waited'));
	@rows = () if @rows == 1 && $rows[0] eq 'nothing';
	is($got, join("\n", @rows), "$where: returns")
	  if grep { /^returns/ } @said;
	return;
}

sub hears
{
	my ($name, $event) = @_;
	my $session = session($name);

	poll(
		"session $name hears $event",
		sub {
			run($session, '');
			return $session->{heard} =~ /"event": "\Q$event\E"/;
		});
	pass("$where: hears $event");
	$session->{heard} = '';
	return;
}

# Is a statement complete?  Not within a dollar-quoted body.
sub complete
{
	my ($sql) = @_;
	my $quotes = () = $sql =~ /\$\$/g;

	return $quotes % 2 == 0 && $sql =~ /;\s*(--.*)?$/;
}

sub run_sql_block
{
	my ($file, $line, $block) = @_;
	my ($name, $sql, $done, @said) = ('A', '', undef);

	foreach my $text (split /\n/, $block)
	{
		my ($word) = $text =~ /^\s*-- ((?:session \w+|returns .*|becomes .*|error \w{5}|waits|hears \w+))\s*$/;

		$line++;
		if (defined $word && $sql =~ /^\s*$/)
		{
			if ($word =~ /^(?:session|hears) (\w+)/)
			{
				my $arg = $1;

				check($name, $done, @said);
				($done, @said) = (undef);
				$where = "$file:$line";
				$name = $arg if $word =~ /^session/;
				hears($name, $arg) if $word =~ /^hears/;
			}
			else
			{
				$where = "$file:$line" unless defined $done || @said;
				push @said, $word;
			}
			next;
		}
		next if $sql =~ /^\s*$/ && $text =~ /^\s*(--.*)?$/;
		if ($sql =~ /^\s*$/)
		{
			check($name, $done, @said);
			($done, @said) = (undef);
			$where = "$file:$line";
			$sql = '';
		}
		$sql .= "$text\n";
		if (complete($sql))
		{
			$done = $sql;
			$sql = '';
		}
	}
	die "$where: statement without an end: $sql" if $sql =~ /\S/;
	check($name, $done, @said);
	return;
}

# Convert a table as psql prints it to the format of -At.
sub untable
{
	my (@lines) = @_;
	my @out;
	my $in_table = 0;

	for (my $i = 0; $i < @lines; $i++)
	{
		next if $lines[$i] =~ /^\s*$/;
		if ($i + 1 < @lines && $lines[ $i + 1 ] =~ /^-[-+]*$/)
		{
			$in_table = 1;
			$i++;
		}
		elsif ($lines[$i] =~ /^\(\d+ rows?\)$/)
		{
			$in_table = 0;
		}
		elsif ($in_table)
		{
			push @out, join '|',
			  map { s/^\s+|\s+$//gr } split /\|/, $lines[$i], -1;
		}
		elsif ($lines[$i] !~ /^[A-Z][A-Z ]*( \d+)*$/)
		{
			push @out, $lines[$i];	# not a command tag
		}
	}
	return join "\n", @out;
}

sub masked
{
	my ($text) = @_;

	$text =~ s/\d{4}-\d\d-\d\d //g;
	$text =~ s/\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d)?/TIME/g;
	return $text;
}

sub run_console_block
{
	my ($file, $line, $block) = @_;
	my ($name, $sql, @printed);
	my $finish = sub {
		return unless defined $sql;
		my $session = session($name);
		my $got = run($session, "\\pset null ''\n$sql\n\\pset null NULL");
		my $stderr = $session->{stderr} =~ s/^psql:<stdin>:\d+: //mgr;

		$stderr =~ s/^ERROR:  \w{5}: /ERROR:  /mg;
		$stderr =~ s/^LOCATION:.*\n?//mg;
		$stderr =~ s/\n$//;
		is( masked(join "\n", grep { $_ ne '' } $got, $stderr),
			masked(untable(@printed)),
			"$where: prints");
		($sql, @printed) = (undef);
	};

	foreach my $text (split /\n/, $block)
	{
		$line++;
		if ($text =~ /^(\w+)([=-])[*!]?# (.*)/)
		{
			if ($2 eq '=')
			{
				$finish->();
				($name, $sql, $where) = ($1, '', "$file:$line");
			}
			$sql .= "$3\n";
		}
		elsif (defined $sql)
		{
			push @printed, $text;
		}
	}
	$finish->();
	return;
}

foreach my $file (@files)
{
	my $text = slurp_file("$root/$file");
	my ($kind, $start, $block, $line, $nblocks) = (undef, 0, '', 0, 0);

	$database = 'docs_' . ($file =~ s/\W+/_/gr);
	$database =~ tr/A-Z/a-z/;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, 'CREATE EXTENSION dlock')
	  unless $text =~ /^(?:\w+=# )?CREATE EXTENSION dlock;/m;
	%session = ();

	foreach my $l (split /\n/, $text)
	{
		$line++;
		if (!defined $kind && $l =~ /^```(\w*)\s*$/)
		{
			($kind, $start, $block) = ($1, $line, '');
		}
		elsif (defined $kind && $l =~ /^```\s*$/)
		{
			$nblocks++ if $kind eq 'sql' || $kind eq 'console';
			$where = "$file:$start";
			run_sql_block($file, $start, $block) if $kind eq 'sql';
			run_console_block($file, $start, $block) if $kind eq 'console';
			$kind = undef;
		}
		elsif (defined $kind)
		{
			$block .= "$l\n";
		}
	}
	die "$file: a block without an end" if defined $kind;
	note("$file: $nblocks blocks");

	foreach my $name (sort keys %session)
	{
		ok(!defined $session{$name}->{pending},
			"$file: session $name has had its answer");
		eval { $session{$name}->{psql}->quit; 1 }
		  or note("session $name had ended: $@");
	}
}

$node->stop;
done_testing();
