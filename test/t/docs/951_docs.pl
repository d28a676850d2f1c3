# The examples of the documentation are run, and do what is said there.
#
# Every block of README.md, docs/*.md and docs/dev/*.md that is marked "sql" or
# "console" is run, in order, each file in a database of its own (so the first
# version in it is 1), all sessions as superuser.  The extension is there unless the
# file creates it.  A line "<!-- new database -->", which the reader does not see,
# continues in a new database.  A statement ends with a semicolon at the end of
# a line, and must not fail unless the block says so.
#
# In a block marked "sql", a comment that is alone on its line may be one of
#
#	-- session B		what follows is for session B; the first is A
#	-- returns 17		what the statement before returned, a line a row, columns
#						separated by |, null as NULL; for several rows, several
#						such lines; "-- returns nothing" for no row
#	-- becomes held		the same, but it may take a moment: asked until it does
#	-- error LK001		the statement before fails with this code
#	-- waits			the statement before does not return yet; its answer is
#						told by a later "returns" or "error" of the session
#	-- hears preempt	this event arrives on channel dlock
#
# Any other comment is for the reader.  Dollar-quoted bodies may have
# semicolons.  In a block marked "console", "A=# " is the prompt of session A
# (and "A-# ", "A=*# " its variants), and what follows is what psql prints.
# Times of day and dates are not compared there.
#
# A page that shows queries only has its staging in test/t/docs/NAME.sql: sections that
# begin with "-- stage NAME", and have "-- the page" where the block of that stage goes.
#
# Besides:
# - The quick start of README.md, pasted into psql as a whole, in a new database,
#   prints what README.md shows.
# - README.md is short and leads to every page; no link leads nowhere.
# - What README.md says that a reader has to read is no longer than it says.
# - docs/reference.md has the functions, views and settings that there are.
# - docs/operations.md has the parts of shared memory that there are, and their sizes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use DlockDocs;

my $root = "$FindBin::RealBin/../../..";
my @files =
  map { s/^\Q$root\E\///r } ("$root/README.md", sort map { glob "$root/$_" } qw(docs/*.md docs/dev/*.md));

my $node = PostgreSQL::Test::Cluster->new('docs');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'dlock'\n");
$node->start;

# of the file at hand
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

# Take what was printed apart: the notifications, and the rest.
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

# Send a statement that will not return; the answer comes by collect().
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

# Check one statement against what is said of it.  What is said may be
# nothing; then it must only not fail.
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

# What psql prints as a table, as it prints it with -At.
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

sub create_database
{
	my ($name, $with_extension) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $name");
	$node->safe_psql($name, 'CREATE EXTENSION dlock') if $with_extension;
	return;
}

sub close_sessions
{
	my ($file) = @_;

	foreach my $name (sort keys %session)
	{
		ok(!defined $session{$name}->{pending},
			"$file: session $name has had its answer");
		eval { $session{$name}->{psql}->quit; 1 }
		  or note("session $name had ended: $@");
	}
	%session = ();
	return;
}

# Put the blocks of a page where its staging wants them.  Every stage has its block.
sub put_on_stage
{
	my ($file, @blocks) = @_;
	my ($name) = $file =~ /(\w+)\.md$/;
	my $path = "$root/test/t/docs/$name.sql";
	my %stages = -e $path ? slurp_file($path) =~ /^-- stage (\w+)\n(.*?)(?=^-- stage |\z)/msg : ();

	foreach my $block (grep { defined $_->{stage} } @blocks)
	{
		my $staging = delete $stages{ $block->{stage} } // die "$path has no stage $block->{stage}";

		$staging =~ s/^-- the page\n/$block->{text}/m or die "$path: stage $block->{stage} has no page";
		$block->{text} = $staging;
	}
	is(join(' ', sort keys %stages), '', "$file: every stage has its block");
	return @blocks;
}

sub run_page
{
	my ($file) = @_;
	my @blocks = put_on_stage($file, grep { $_->{kind} eq 'sql' || $_->{kind} eq 'console' }
	  blocks($file, slurp_file("$root/$file")));
	my $current = -1;

	foreach my $block (@blocks)
	{
		if ($block->{database} != $current)
		{
			$current = $block->{database};
			close_sessions($file);
			$database = lc('docs_' . ($file =~ s/\W+/_/gr) . "_$current");
			create_database($database,
				!grep { $_->{database} == $current
					  && $_->{text} =~ /^(?:\w+=# )?CREATE EXTENSION dlock\b/m } @blocks);
		}
		$where = "$file:$block->{line}";
		run_sql_block($file, $block->{line}, $block->{text}) if $block->{kind} eq 'sql';
		run_console_block($file, $block->{line}, $block->{text}) if $block->{kind} eq 'console';
	}
	close_sessions($file);
	note("$file: " . @blocks . ' blocks');
	return;
}

# What a newcomer does: paste the whole quick start, where the extension has
# just been created, and compare with what README.md shows.
sub paste_quick_start
{
	my @blocks = grep { $_->{kind} eq 'sql' && $_->{section} eq 'Quick start' }
	  blocks('README.md', slurp_file("$root/README.md"));
	my $text = join "\n", map { $_->{text} } @blocks;
	my ($printed, $shown) = ('', 0);

	create_database('quick_start', 1);
	IPC::Run::run(
		[
			'psql', '-X', '-q', '-a', '-A', '-t',
			'-P' => 'null=NULL',
			'-v' => 'VERBOSITY=sqlstate',
			'-d' => $node->connstr('quick_start'),
			'-f' => '-'
		],
		'<' => \$text,
		'>&' => \$printed) or die "psql failed: $printed";

	foreach my $statement (pasted($text, $printed))
	{
		my $sql = $statement->{sql} =~ s/\n.*//sr;
		my @said = @{ $statement->{said} };

		# a time need not be told: it is never the same
		my @printed = grep { @said || !/^\d{4}-\d\d-\d\d / } @{ $statement->{printed} };

		is(join("\n", @printed), join("\n", @said), "quick start: $sql");
		$shown += @said;
	}
	cmp_ok($shown, '>', 0, "quick start: $shown answers are shown");
	return;
}

sub check_links
{
	my @pages = map { s/^\Q$root\E\///r }
	  grep { -f } map { glob "$root/$_" } qw(*.md docs/*.md docs/dev/*.md */README.md);

	foreach my $page (@pages)
	{
		my $folder = $page =~ /^(.*\/)/ ? $1 : '';
		my @broken;

		foreach my $link (links(slurp_file("$root/$page")))
		{
			my ($path, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
			my $target = $path eq '' ? "$root/$page" : "$root/$folder$path";

			if (!-e $target)
			{
				push @broken, $link;
			}
			elsif (defined $anchor)
			{
				my %anchors = anchors(slurp_file($target));

				push @broken, $link unless $anchors{$anchor};
			}
		}
		is(join("\n", @broken), '', "$page: links lead somewhere");
	}
	return;
}

sub check_readme
{
	my $text = slurp_file("$root/README.md");
	my $lines = () = $text =~ /\n/g;
	my %listed = map { $_ => 1 } links(section($text, 'Documentation'));

	cmp_ok($lines, '<', 250, 'README.md has fewer than 250 lines');
	is(join(' ', grep { !/^README/ && !$listed{$_} } @files), '', 'README.md lists all pages');
	return;
}

# The arguments of a function out of the table in which several have a column.
sub arguments_of
{
	my ($text, $name) = @_;
	my $table = section($text, 'Arguments of an acquire');
	my @heading = split /\s*\|\s*/, ($table =~ /^(\| argument .*\|)$/m)[0];
	my ($column) = grep { $heading[$_] eq "`$name`" } 0 .. $#heading;
	my @arguments = map { [ map { s/`//gr } $_->[0], $_->[ $column - 1 ] ] } rows($table);

	return '(' . join(', ', map { $_->[1] eq 'required' ? $_->[0] : "$_->[0] = $_->[1]" } grep { $_->[1] ne '' } @arguments) . ')';
}

# Each page that README.md begins with, down to what is for reference, if any is.
sub check_paths
{
	my %paths = map { @$_ == 3 && $_->[2] =~ /^[\d,]+$/ ? ((links($_->[1]))[0] => $_->[2] =~ tr/,//dr) : () }
	  rows(section(slurp_file("$root/README.md"), 'Documentation'));

	is(scalar keys %paths, 4, 'README.md has a path for each of four readers');
	foreach my $page (sort keys %paths)
	{
		my $text = slurp_file("$root/$page") =~ s/^<!-- the rest is for reference -->\n.*//msr;

		cmp_ok(word_count($text), '<=', $paths{$page}, "$page: not too long");
	}
	return;
}

# The blocks of docs/security.md for three kinds of roles, and the functions that there
# are.  After the page was run.
sub check_hardening
{
	my ($owners) = slurp_file("$root/docs/security.md") =~ /^- ((?:(?:, | and )?`\w+`|\s+)+) stay with the owner/m;
	my $may = sub {
		my ($database, $role) = @_;

		return split /\n/, $node->safe_psql(
			$database, qq{
			SELECT DISTINCT p.proname
			  FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid JOIN pg_extension e ON e.oid = d.refobjid
			 WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'dlock'
			   AND p.pronamespace = e.extnamespace AND has_function_privilege('$role', p.oid, 'EXECUTE') ORDER BY 1});
	};
	my @viewer = $may->('docs_docs_security_md_0', 'locks_viewer');
	my @operator = $may->('docs_docs_security_md_0', 'locks_operator');
	my %user = map { $_ => 1 } $may->('docs_docs_security_md_0', 'locks_user');

	is(join(' ', $may->('docs_docs_security_md_0', 'public')), '', 'hardening: nothing is left to everybody');
	is(join(' ', sort keys %user), join(' ', $may->('reference', 'public')), 'who uses locks may do what everybody may by default');
	is(join(' ', grep { !$user{$_} || /acquire|lock_lock|limit|queue|refresh|handover|release|fence/ } @viewer), '', 'who looks may only look');
	is(join(' ', @operator), join(' ', sort @viewer, 'dlock_force_release', 'dlock_stats_reset'), 'who operates may do that, too');
	is(join(' ', sort(keys %user, grep({ !$user{$_} } @operator), $owners =~ /`(\w+)`/g)), join(' ', $may->('reference', 'postgres')),
		'and nothing is forgotten');
	return;
}

# A row of docs/reference.md for each function with its arguments, each column
# of a view with its type, and each setting with its default; and no others.
sub check_reference
{
	my $text = slurp_file("$root/docs/reference.md");
	my ($there, @cells);

	create_database('reference', 1);
	$there = $node->safe_psql(
		'reference', q{
		SELECT proname || '(' || pg_get_function_arguments(p.oid) || ')'
		  FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
		  JOIN pg_extension e ON e.oid = d.refobjid
		 WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass
		   AND e.extname = 'dlock' AND p.pronamespace = e.extnamespace
		 ORDER BY proname COLLATE "C"});
	$there =~ s/ DEFAULT / = /g;
	$there =~ s/::\w+(?:\[\])?//g;
	$there =~ s/\binteger\b/int/g;
	$there =~ s/'00:00:00'/'0'/g;
	$there =~ s/\bIN |\bOUT \w+ \w+(?:\[\])?(?:, )?//g;
	@cells = map { $_->[0] =~ s/^`(?:CALL )?|`$//gr } rows(section($text, 'Functions'));
	s/^(\w+)\K\(.*\.\.\.\)$/arguments_of($text, $1)/e foreach @cells;
	is(join("\n", sort @cells), $there, 'docs/reference.md: functions');

	foreach my $view (qw(dlock_locks dlock_waiters dlock_stats dlock_wait_times dlock_contended dlock_policies dlock_served))
	{
		$there = $node->safe_psql('reference',
			"SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
			  . " WHERE attrelid = '$view'::regclass AND attnum > 0 ORDER BY attnum");
		$there =~ s/timestamp with time zone/timestamptz/g;
		@cells = map { "$_->[0]|$_->[1]" =~ s/`//gr } rows(section($text, "View $view"));
		is(join("\n", @cells), $there, "docs/reference.md: view $view");
	}

	$there = $node->safe_psql('reference',
		q{SELECT name, coalesce(nullif(current_setting(name), ''), 'empty')
			FROM pg_settings WHERE name LIKE 'dlock.%' ORDER BY name COLLATE "C"});
	@cells = map { "$_->[0]|" . $_->[1] =~ s/ //r } rows(section($text, 'Settings'));
	is(join("\n", sort map { s/`//gr } @cells), $there, 'docs/reference.md: settings');
	return;
}

# The parts of shared memory, each with the size that the row gives: "24 kB", "2.8 kB for
# each possible backend", or a sum of such.  What takes less than a kilobyte is left out.
sub check_memory
{
	my ($text) = slurp_file("$root/docs/operations.md") =~ /^(\*\*Shared memory\*\*.*?)^\*\*/ms;
	my ($backends, $tickets) = split /\|/, $node->safe_psql(
		'postgres', q{
		SELECT 1 + sum(setting::int) FILTER (WHERE name !~ 'dlock'), sum(setting::int) FILTER (WHERE name ~ 'dlock')
		  FROM pg_settings WHERE name IN ('max_connections', 'max_worker_processes', 'max_wal_senders', 'dlock.max_tickets',
			CASE WHEN current_setting('server_version_num')::int >= 180000
				THEN 'autovacuum_worker_slots' ELSE 'autovacuum_max_workers' END)});
	my %times = ('' => 1, 'possible backend' => $backends, 'of `dlock.max_tickets`' => $tickets);
	my (%said, %there);

	foreach my $row (rows($text))
	{
		my ($name) = $row->[0] =~ /^`(.*)`$/ or next;
		my $sizes = $row->[1];

		while ($sizes =~ /([\d.,]+) (bytes|kB)(?: for each (possible backend|of `dlock\.max_tickets`))?/g)
		{
			$said{$name} += $1 =~ tr/,//dr * ($2 eq 'kB' ? 1024 : 1) * $times{ $3 // '' };
		}
	}
	%there = map { split /\|/ } split /\n/, $node->safe_psql('postgres',
		q{SELECT name, allocated_size FROM pg_shmem_allocations WHERE name LIKE 'dlock%' AND allocated_size > 1024});
	is(join(', ', sort keys %said), join(', ', sort keys %there), 'docs/operations.md: parts of shared memory');
	foreach my $name (sort keys %there)
	{
		my $wrong = abs(($said{$name} // 0) / $there{$name} - 1);

		cmp_ok($wrong, '<', 0.03, "docs/operations.md: the size of $name") or diag "it is $there{$name}";
	}
	return;
}

check_readme();
check_paths();
check_links();
check_reference();
check_memory();
paste_quick_start();
run_page($_) foreach @files;
check_hardening();

$node->stop;
done_testing();
