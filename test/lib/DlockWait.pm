# Clients for the tests of waiting: psql sessions whose answers can be fetched later.

package DlockWait;

use strict;
use warnings FATAL => 'all';

use Config;
use Exporter 'import';
use Test::More;
use Time::HiRes qw(usleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use DlockTest;

our @EXPORT = qw(
  client close_clients until_sql queue_of until_queue until_waiting until_gone
  waits_for start_and_see stop_with_lwlock stop_asleep was_woken
  acquire_sql asks_for begin_steps first_back
);

my $made = 0;

# A client.  Its name, if any, is its application_name.
sub client
{
	my ($node, $name, %params) = @_;
	my $self = bless { node => $node, sent => 0, name => $name // 'c' . ++$made },
	  __PACKAGE__;

	$self->{psql} = session($node, $params{database}, %{ $params{psql} // {} });
	ask($self->{psql}, "\\set VERBOSITY verbose\nSET application_name = '$self->{name}'");
	ask($self->{psql}, "SET ROLE $params{role}") if $params{role};
	$self->{pid} = ask($self->{psql}, 'SELECT pg_backend_pid()');
	return $self;
}

sub pid
{
	return $_[0]->{pid};
}

# The output; an error is "ERROR 55P03" and so on, with its text in said().
sub ask_it
{
	my ($self, $sql) = @_;

	return $self->digest(ask($self->{psql}, $sql));
}

sub digest
{
	my ($self, $printed) = @_;

	$self->{said} = $self->{psql}->{stderr};
	return "ERROR $1" if $self->{said} =~ /^(?:psql:[^\n]*: )?(?:ERROR|FATAL):  (\w{5})/m;
	return $printed;
}

# The error output that came with the last answer.
sub said
{
	return $_[0]->{said};
}

# Send a statement that will not return at once.
sub start
{
	my ($self, $sql) = @_;
	my $mark = "$self->{name} sent " . ++$self->{sent};

	$self->{psql}->{stderr} = '';
	$self->{psql}->query_until(qr/\Q$mark\E\r?\n/, "\\echo '$mark'\n$sql;\n");
	return $self;
}

# The answer to the statement that was started.
sub answer
{
	my ($self) = @_;
	my $psql = $self->{psql};
	my $kept = $psql->{stderr};

	# not through ask(), which discards earlier error output
	my $printed = $psql->query('');

	$psql->{stderr} = $kept . $psql->{stderr} if $kept ne '' && $psql->{stderr} !~ /^\Q$kept\E/;
	return $self->digest($printed);
}

# Has the statement that was started returned?  Does not wait.
sub came_back
{
	my ($self) = @_;

	return $self->{node}->safe_psql('postgres',
		"SELECT state <> 'active' FROM pg_stat_activity WHERE pid = $self->{pid}") eq 't';
}

# The client process vanishes without notice.
sub vanish
{
	my ($self) = @_;

	$self->{psql}->{run}->signal('KILL');
	eval { $self->{psql}->{run}->finish; };
	$self->{gone} = 1;
	return;
}

# The backend ends, and psql with it.
sub lost
{
	my ($self) = @_;

	eval { $self->{psql}->{run}->kill_kill; };
	$self->{gone} = 1;
	return;
}

sub leave
{
	my ($self) = @_;

	return if $self->{gone};
	end_session($self->{psql});
	$self->{gone} = 1;
	return;
}

sub close_clients
{
	$_->leave foreach @_;
	return;
}

my %monitors;

sub monitor
{
	my ($node, $database) = @_;
	my $name = $node->name . "/$database";

	# after a restart of the server a new one is needed
	if ($monitors{$name})
	{
		my $psql = $monitors{$name};

		$psql->{run}->pump_nb;
		delete $monitors{$name} unless $psql->{run}->pumpable;
	}
	$monitors{$name} //= session($node, $database);
	return $monitors{$name};
}

# Close what until_sql() has opened, before the server is stopped.
sub close_monitors
{
	end_session(values %monitors);
	%monitors = ();
	return;
}

# Poll until a query gives the expected result; fails the test otherwise.
sub until_sql
{
	my ($node, $sql, $expected, $what, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $psql = monitor($node, $params{database} // 'postgres');
	my $got = '';

	for (my $i = 0; $i < 100 * $PostgreSQL::Test::Utils::timeout_default; $i++)
	{
		$got = ask($psql, $sql);
		last if $got eq $expected;
		usleep(10_000);
	}
	is($got, $expected, $what);
	return;
}

# The clients that wait for a key, in order, by application_name; watchers come last.
sub queue_sql
{
	my ($key) = @_;

	return "SELECT coalesce(string_agg(application_name, ' ' ORDER BY position, application_name), '')"
	  . " FROM dlock_waiters JOIN pg_stat_activity USING (pid)"
	  . " WHERE key = '$key' AND wait_event_type = 'Extension'";
}

sub queue_of
{
	my ($node, $key) = @_;

	return $node->safe_psql('postgres', queue_sql($key));
}

sub until_queue
{
	my ($node, $key, $expected, $what, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	until_sql($node, queue_sql($key), $expected, $what // "queue of $key: $expected",
		%params);
	return;
}

sub waiting_sql
{
	my ($client, $key) = @_;

	return "SELECT count(*) FROM dlock_waiters JOIN pg_stat_activity USING (pid)"
	  . " WHERE key = '$key' AND pid = $client->{pid} AND wait_event_type = 'Extension'";
}

# Wait until the client waits for the key, at any position, and sleeps.
sub until_waiting
{
	my ($node, $client, $key, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	until_sql(
		$node,
		waiting_sql($client, $key),
		1,
		"$client->{name} waits for $key",
		%params);
	return;
}

sub acquire_sql
{
	my ($key, $args) = @_;

	return "SELECT dlock_acquire('$key', '1h', $args)";
}

# The client asks for the key, and waits.
sub asks_for
{
	my ($node, $client, $key, $args) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$client->start(acquire_sql($key, $args));
	until_waiting($node, $client, $key);
	return;
}

# Clients with steps that make a deadlock: each does its first one.  "$" in a step is the prefix of
# this deadlock's keys.
sub begin_steps
{
	my ($what, $prefix, $clients, $steps) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $i (0 .. $#$steps)
	{
		s/\$/$prefix/g foreach @{ $steps->[$i] };
		like($clients->[$i]->ask_it($steps->[$i][0]), qr/^(?!ERROR)/, "$what: $i begins");
	}
	return;
}

# The first of these clients that comes back from its wait.
sub first_back
{
	my ($node, $what, @clients) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $pids = join(', ', map { $_->{pid} } @clients);
	my $back = "FROM pg_stat_activity WHERE pid IN ($pids) AND state <> 'active' AND query LIKE '%wait =>%'";

	until_sql($node, "SELECT count(*) > 0 $back", 't', "$what: one comes back");
	my $pid = $node->safe_psql('postgres', "SELECT min(pid) $back");
	return grep { $_->{pid} == $pid } @clients;
}

# What a process waits for, as "type event".
sub waits_for
{
	my ($node, $pid) = @_;

	return ask(monitor($node, 'postgres'),
		"SELECT concat_ws(' ', wait_event_type, wait_event) FROM pg_stat_activity WHERE pid = $pid");
}

# Run a sub that sends a statement to a backend, and return once the backend has started
# it.  Before that the backend waits for its client, as it does when it has finished.
sub start_and_see
{
	my ($node, $pid, $start) = @_;
	my $sql = "SELECT query_start FROM pg_stat_activity WHERE pid = $pid";
	my $before = ask(monitor($node, 'postgres'), $sql);

	$start->();
	usleep(1000) until ask(monitor($node, 'postgres'), $sql) ne $before;
	return;
}

# Stop a backend while it has one of dlock's LWLocks.  To see that it has one, another
# backend is started with one statement that needs the same lock: it must wait for that,
# and not for what "else" matches.  Otherwise this is repeated.  Returns true if it
# worked; then the caller has to continue the backend.
sub stop_with_lwlock
{
	my ($node, $pid, $other_pid, %params) = @_;

	# if it was stopped where others cannot continue, that is not for long
	my $rang;
	local $SIG{ALRM} = sub { $rang = 1; kill 'CONT', $pid; };

	for (my $try = 1; $try <= 1000; $try++)
	{
		my $event;

		kill 'STOP', $pid;
		usleep(1000) until slurp_file("/proc/$pid/stat") =~ /\) T /;
		$rang = 0;
		alarm 3;
		start_and_see($node, $other_pid, $params{start});
		do { $event = waits_for($node, $other_pid) } until ($event =~ /^LWLock dlock$|$params{else}/);
		alarm 0;
		note "try $try: $event";
		return 1 if $event eq 'LWLock dlock' && !$rang;
		kill 'CONT', $pid;
		$params{undo}->();
	}
	return 0;
}

# Stop a backend while it sleeps in the queue, so that was_woken() can tell whether
# another process has woken it since: while it is stopped, its timers do not make it look.
# Returns false if it no longer waits.  The caller has to continue it.
sub stop_asleep
{
	my ($node, $client, $key) = @_;
	my $pid = $client->{pid};
	my $asleep = sub { return ask(monitor($node, 'postgres'), waiting_sql($client, $key)) == 1 };
	my $stopped;

	# Sleeping in the queue both before and after means that it is that sleep.
	wait_until(
		"$client->{name} sleeps",
		sub {
			return $client->came_back if !$asleep->();
			return 0 if slurp_file("/proc/$pid/stat") !~ /\) S /;
			kill 'STOP', $pid;
			usleep(1000) until slurp_file("/proc/$pid/stat") =~ /\) T /;
			return $stopped = 1 if $asleep->() && !was_woken($client);
			kill 'CONT', $pid;
			return 0;
		});
	return $stopped;
}

# Has another process set the latch of this one since it was stopped?  That sends a
# signal, which stays pending while the process is stopped.
sub was_woken
{
	my ($client) = @_;
	my %number;

	@number{ split / /, $Config{sig_name} } = split / /, $Config{sig_num};
	my ($pending) = slurp_file("/proc/$client->{pid}/status") =~ /^ShdPnd:\s*([0-9a-f]+)$/m
	  or die "cannot tell the pending signals of $client->{name}";
	return (hex($pending) >> ($number{URG} - 1)) & 1;
}

# Wait until a process has ended.
sub until_gone
{
	my ($node, $pid, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	until_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid",
		0, $what // "process is gone");
	return;
}

1;
