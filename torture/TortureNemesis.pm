# The nemesis: causes faults, one after the other.
#
# Each fault is a sub that causes it, lets some time pass, and undoes it;
# meanwhile, clients may fail, too.  The cluster is repaired before the next
# fault.

package TortureNemesis;

use strict;
use warnings FATAL => 'all';

use POSIX ();
use Time::HiRes qw(sleep);

use TortureCluster;

# name => [ modes, description, sub ]
my %faults = (
	'backend-kill' => [ 'sync async', 'kill -9 of a session: the server restarts', \&backend_kill ],
	'worker-kill' => [ 'sync async', 'kill -9 of the launcher or a reaper', \&worker_kill ],
	'granter-kill' => [ 'sync async', 'kill -9 of the worker that grants tickets: the server restarts', \&granter_kill ],
	'granter-stop' => [ 'sync async', 'SIGSTOP of the worker that grants tickets', \&granter_stop ],
	'granter-terminate' => [ 'sync async', 'the worker that grants tickets is terminated, again and again', \&granter_terminate ],
	'primary-kill' => [ 'sync async', 'kill -9 of all processes of the primary, which is started again', \&primary_kill ],
	'standby-kill' => [ 'sync async', 'the same for a standby', \&standby_kill ],
	'client-kill' => [ 'sync async', 'kill -9 of clients', \&client_kill ],
	'client-stop' => [ 'sync async', 'SIGSTOP of clients, past their leases', \&client_stop ],
	'backend-stop' => [ 'sync async', 'SIGSTOP of sessions', \&backend_stop ],
	'postmaster-stop' => [ 'sync async', 'SIGSTOP of the postmaster of the primary', \&postmaster_stop ],
	'walsender-stop' => [ 'sync async', 'SIGSTOP of the WAL sender', \&walsender_stop ],
	'walreceiver-stop' => [ 'sync async', 'SIGSTOP of the WAL receiver', \&walreceiver_stop ],
	'cut-replication' => [ 'sync async', 'the servers do not reach each other', \&cut_replication ],
	'cut-clients' => [ 'sync async', 'some or all clients do not reach the primary', \&cut_clients ],
	'reset-clients' => [ 'sync async', 'connections of clients are reset, again and again', \&reset_clients ],
	'delay' => [ 'sync async', 'the network is slow', \&delay ],
	'cancel' => [ 'sync async', 'sessions are cancelled, in the wait for the standby too', \&cancel ],
	'terminate' => [ 'sync async', 'sessions are terminated, in the wait for the standby too', \&terminate ],
	'clock' => [ 'sync async', 'the clocks of the servers step by up to a day', \&clock ],
	'disk-full' => [ 'sync async', 'no file of the primary can grow', \&disk_full ],
	'alone' => [ 'sync', 'the standby is lost, and the primary goes on without it', \&alone ],
	'failover-kill' => [ 'sync async', 'kill -9 of the primary, the standby is promoted', \&failover_kill ],
	'failover-cut' => [ 'sync async', 'the primary is cut off, the standby promoted', \&failover_cut ],
	'split-brain' => [ 'sync async', 'the standby is promoted while the old primary still answers clients', \&split_brain ],
);

sub kinds
{
	my ($mode) = @_;

	return sort grep { !defined $mode || " $faults{$_}[0] " =~ / $mode / } keys %faults;
}

sub describe { return $faults{ $_[0] }[1]; }

sub new
{
	my ($class, %params) = @_;
	my $self = bless { injected => {}, failovers => [], timers => [], %params }, $class;

	open $self->{history}, '>>', "$self->{folder}/nemesis.history" or die "could not write the history: $!\n";
	$self->note("mode $self->{mode}");
	return $self;
}

sub microseconds { return int(TortureCluster::now() * 1e6); }

# Write a line of the history.
sub note
{
	my ($self, $line, $at) = @_;

	syswrite $self->{history}, ($at // microseconds()) . " $line\n";
	return;
}

sub say_so
{
	my ($self, $kind, $text) = @_;

	printf "%7.1f s  %-16s %s\n", TortureCluster::now() - $self->{began}, $kind, $text;
	return;
}

# A fault begins.
sub fault
{
	my ($self, $kind, $where, $text) = @_;

	$self->{injected}{$kind}++;
	$self->note("fault $kind $where");
	$self->say_so($kind, $text // $where);
	return;
}

sub heal
{
	my ($self, $kind, $where) = @_;

	$self->note("heal $kind $where");
	return;
}

# Wait about that long; whatever is due meanwhile is done.
sub pass
{
	my ($self, $seconds) = @_;
	my $until = TortureCluster::now() + $seconds;

	while (1)
	{
		my $now = TortureCluster::now();
		my @due = grep { $_->[0] <= $now } @{ $self->{timers} };

		$self->{timers} = [ grep { $_->[0] > $now } @{ $self->{timers} } ];
		$_->[1]->() foreach @due;
		$self->{clients}->look;
		last if $now >= $until;
		sleep 0.02;
	}
	return;
}

sub later
{
	my ($self, $seconds, $what) = @_;

	push @{ $self->{timers} }, [ TortureCluster::now() + $seconds, $what ];
	return;
}

sub some
{
	my ($from, $to) = @_;

	return $from + rand($to - $from);
}

# Pids of the primary, by type of process.
sub sessions
{
	my ($self, $condition) = @_;
	my $cluster = $self->{cluster};
	my $list = $cluster->ask($cluster->{primary},
		"SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name <> 'nemesis' AND $condition");

	return split / /, $list // '';
}

sub one_of { return @_ ? $_[ int rand @_ ] : undef; }

#
# Clients
#

sub client_kill
{
	my ($self) = @_;

	for (1 .. 1 + int rand 3)
	{
		my $number = $self->{clients}->any // last;

		# before the kill: what the client writes after this line does not count
		$self->fault('client-kill', "client=$number");
		$self->{clients}->replace($number);
		$self->pass(some(0, 0.5));
	}
	return;
}

sub stop_a_client
{
	my ($self) = @_;
	my $number = $self->{clients}->any // return;

	$self->fault('client-stop', "client=$number");
	$self->{clients}->stop_one($number);
	$self->later(
		some(0.5, 8),
		sub {
			return unless $self->{clients}{stopped}{$number};
			$self->{clients}->continue_one($number);
			$self->heal('client-stop', "client=$number");
		});
	return;
}

sub client_stop
{
	my ($self) = @_;

	$self->stop_a_client for 1 .. 2;
	$self->pass(some(0, 1));
	return;
}

# What may happen to clients during another fault.
sub accident
{
	my ($self) = @_;
	my $which = int rand 6;

	$self->later(some(0, 2), sub { $self->stop_a_client }) if $which == 0;
	$self->later(
		some(0, 2),
		sub {
			my $number = $self->{clients}->any // return;

			$self->fault('client-kill', "client=$number");
			$self->{clients}->replace($number);
		}) if $which == 1;
	return;
}

#
# Processes
#

sub kill_process
{
	my ($self, $kind, $condition) = @_;
	my $node = $self->{cluster}{primary};
	my $pid = one_of($self->sessions($condition)) // return;

	$self->fault($kind, "node=$node");
	kill 'KILL', $pid if TortureCluster::is_ours($pid, $self->{cluster}{bindir});
	$self->pass(some(0.5, 2));
	$self->mended($kind, "node=$node");
	return;
}

sub backend_kill { return $_[0]->kill_process('backend-kill', "backend_type = 'client backend'"); }
sub worker_kill { return $_[0]->kill_process('worker-kill', "backend_type LIKE 'dlock%'"); }

# The worker that grants tickets.  It is there while tickets wait.
sub granter
{
	my ($self) = @_;
	my $pid;

	$self->{cluster}->until_true(5, sub { ($pid) = $self->sessions("backend_type = 'dlock granter'"); return $pid });
	return $pid;
}

sub granter_kill
{
	my ($self) = @_;

	$self->granter // return;
	return $self->kill_process('granter-kill', "backend_type = 'dlock granter'");
}

sub granter_stop
{
	my ($self) = @_;
	my $pid = $self->granter // return;

	return $self->stop_processes('granter-stop', some(0.5, 3), $pid);
}

# The tickets stay, and another one goes on with them.
sub granter_terminate
{
	my ($self) = @_;
	my $cluster = $self->{cluster};
	my $node = $cluster->{primary};

	$self->granter // return;
	$self->fault('granter-terminate', "node=$node");
	for (1 .. 3 + int rand 5)
	{
		$self->{struck}{'granter-terminate'} += $cluster->ask($node,
			"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'dlock granter'") // 0;
		$self->pass(some(0, 0.5));
	}
	$self->heal('granter-terminate', "node=$node");
	return;
}

sub stop_processes
{
	my ($self, $kind, $seconds, @pids) = @_;
	my $bindir = $self->{cluster}{bindir};
	my $node = $self->{cluster}{primary};

	return unless @pids;
	$self->fault($kind, "node=$node");
	foreach my $pid (@pids) { kill 'STOP', $pid if TortureCluster::is_ours($pid, $bindir); }
	$self->pass($seconds);
	foreach my $pid (@pids) { kill 'CONT', $pid if TortureCluster::is_ours($pid, $bindir); }
	$self->heal($kind, "node=$node");
	return;
}

sub backend_stop
{
	my ($self) = @_;
	my @pids = $self->sessions("backend_type = 'client backend'");

	# a stopped process may hold what all others need, so stop it only briefly
	return $self->stop_processes('backend-stop', some(0.5, 3), grep { rand() < 0.3 } @pids);
}

sub postmaster_stop
{
	my ($self) = @_;

	return $self->stop_processes('postmaster-stop', some(0.5, 3), $self->{cluster}->postmaster($self->{cluster}{primary}));
}

sub walsender_stop
{
	my ($self) = @_;

	return $self->stop_processes('walsender-stop', some(0.5, 3), $self->sessions("backend_type = 'walsender'"));
}

sub walreceiver_stop
{
	my ($self) = @_;
	my $cluster = $self->{cluster};
	my @pids;

	foreach my $node ($cluster->standbys)
	{
		my $pid = $cluster->ask($node, 'SELECT pid FROM pg_stat_wal_receiver');

		push @pids, $pid if defined $pid && $pid =~ /^\d+$/;
	}
	return $self->stop_processes('walreceiver-stop', some(0.5, 3), @pids);
}

sub primary_kill
{
	my ($self) = @_;
	my $node = $self->{cluster}{primary};

	$self->fault('primary-kill', "node=$node");
	$self->{cluster}->kill_node($node);
	$self->pass(some(0, 1));
	$self->{cluster}->start($node);
	$self->mended('primary-kill', "node=$node");
	return;
}

sub standby_kill
{
	my ($self) = @_;
	my $node = one_of($self->{cluster}->standbys);

	$self->fault('standby-kill', "node=$node");
	$self->{cluster}->kill_node($node);
	$self->pass(some(0.2, 3));
	$self->{cluster}->start($node);
	$self->mended('standby-kill', "node=$node");
	return;
}

#
# Network
#

sub broken_links
{
	my ($self, $kind, $command, $seconds, @links) = @_;
	my $cluster = $self->{cluster};

	$self->fault($kind, 'link=' . join ',', @links);
	$cluster->links($command, @links);
	$self->pass($seconds);
	$cluster->links('heal', @links);
	$cluster->links('delay 0', @links) if $command =~ /^delay/;
	# one side may have given up the connection, or not
	$cluster->links('reset', @links) if rand() < 0.5;
	$self->heal($kind, 'link=' . join ',', @links);
	return;
}

sub cut_replication
{
	my ($self) = @_;

	return $self->broken_links('cut-replication', 'cut', some(0.5, 5), $self->{cluster}->node_links($self->{cluster}{primary}));
}

sub cut_clients
{
	my ($self) = @_;
	my @links = $self->{cluster}->client_links($self->{cluster}{primary});

	@links = (one_of(@links)) if rand() < 0.5;
	return $self->broken_links('cut-clients', 'cut', some(0.5, 6), @links);
}

sub delay
{
	my ($self) = @_;
	my ($first, @links) = shuffle($self->{cluster}->client_links($self->{cluster}{primary}),
		$self->{cluster}->node_links($self->{cluster}{primary}));

	return $self->broken_links('delay', 'delay ' . int(some(5, 150)), some(1, 4), $first, grep { rand() < 0.7 } @links);
}

sub reset_clients
{
	my ($self) = @_;
	my @links = $self->{cluster}->client_links($self->{cluster}{primary});

	$self->fault('reset-clients', 'link=' . join ',', @links);
	for (1 .. 4 + int rand 10)
	{
		$self->{cluster}->links('reset', one_of(@links));
		$self->pass(some(0, 0.3));
	}
	$self->heal('reset-clients', 'link=' . join ',', @links);
	return;
}

#
# Sessions
#

# While the standby is away, commits wait for it.  A cancel then leaves what is
# committed only here.
sub strike
{
	my ($self, $kind, $function) = @_;
	my $cluster = $self->{cluster};
	my $node = $cluster->{primary};
	my @links = $cluster->node_links($node);
	my $struck = 0;

	$self->fault($kind, "node=$node");
	$cluster->links('cut', @links);
	for (1 .. 5)
	{
		$struck += $cluster->ask($node, qq{
SELECT count($function(pid)) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> 'nemesis'
   AND (wait_event = 'SyncRep' OR random() < 0.2)}) // 0;
		$self->pass(some(0, 0.3));
	}
	$cluster->links('heal', @links);
	for (1 .. 5)
	{
		$struck += $cluster->ask($node, qq{
SELECT count($function(pid)) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> 'nemesis' AND random() < 0.3}) // 0;
		$self->pass(some(0, 0.2));
	}
	$self->heal($kind, "node=$node");
	$self->{struck}{$kind} += $struck;
	return;
}

sub cancel { return $_[0]->strike('cancel', 'pg_cancel_backend'); }
sub terminate { return $_[0]->strike('terminate', 'pg_terminate_backend'); }

#
# Machines
#

sub clock
{
	my ($self) = @_;
	my $cluster = $self->{cluster};

	foreach my $node (@{ $cluster->{names} })
	{
		my $step = one_of(-86400, -3600, -60, 0, 60, 3600, 86400);

		$self->fault('clock', "node=$node detail=${step}s");
		$cluster->set_clock($node, $step);
	}
	$self->pass(some(1.5, 3));
	$self->heal('clock', 'node=' . join ',', @{ $cluster->{names} });
	return;
}

sub disk_full
{
	my ($self) = @_;
	my $cluster = $self->{cluster};
	my $node = $cluster->{primary};

	$self->fault('disk-full', "node=$node");
	$cluster->set_full($node, 1);
	$self->pass(some(0.5, 1.5));
	# until the log needs another file, only tables are affected
	$cluster->ask($node, 'SELECT pg_switch_wal()', 2) if rand() < 0.5;
	$self->pass(some(0.2, 2));
	$cluster->set_full($node, 0);
	$self->mended('disk-full', "node=$node");
	return;
}

sub alone
{
	my ($self) = @_;
	my $cluster = $self->{cluster};
	my $node = $cluster->{sync} // return;

	$self->fault('alone', "node=$cluster->{primary}");
	$cluster->kill_node($node);
	$self->pass(some(0, 2));
	$cluster->make_alone;
	$self->pass(some(1, 3));
	$cluster->start($node);
	$self->mended('alone', "node=$cluster->{primary}");
	return;
}

#
# Failover
#

# Promote the standby that may be promoted.  "gone" removes the old primary,
# before or after.
sub fail_over
{
	my ($self, $kind, %params) = @_;
	my $cluster = $self->{cluster};
	my $old = $cluster->{primary};
	my $async = $self->{mode} eq 'async';
	my $new = $async ? one_of($cluster->standbys) : $cluster->{sync};
	my %times = (kind => $kind);

	if (!$new)
	{
		$self->say_so($kind, 'no standby may be promoted');
		return;
	}
	# so that there is something to lose
	if ($async)
	{
		my $count = 'SELECT sum(n) FROM register';
		my $before = $cluster->ask($old, $count) // 0;

		$cluster->links('cut', $cluster->node_links($old));
		$cluster->until_true(10, sub { $self->pass(some(0.3, 1)); return ($cluster->ask($old, $count) // 0) > $before });
	}
	$self->fault($kind, "node=$old", "$old -> $new");
	$times{from} = microseconds();
	$params{before}->($old);
	$times{promoting} = microseconds();
	$cluster->promote($new);
	$times{promoted} = microseconds();
	$self->note("fault promote node=$new mode=sync lost=0", $times{promoted}) unless $async;
	$params{after}->($old) if $params{after};
	# what the old primary acknowledges from here on is lost, too
	$self->note("fault promote node=$new mode=async lost=1") if $async;
	push @{ $self->{failovers} }, \%times;

	# the new primary is alone for some time, then the old one comes back
	$self->pass(some(0.5, 2));
	$cluster->kill_node($old);
	$cluster->heal_links;
	$times{back} = join ',', map { $cluster->attach($_) } $cluster->standbys;
	$self->mended($kind, "node=$old");
	return;
}

sub failover_kill
{
	my ($self) = @_;

	return $self->fail_over('failover-kill', before => sub { $self->{cluster}->kill_node($_[0]) });
}

# Nothing can reach it, but it runs, and its sessions with it.
sub failover_cut
{
	my ($self) = @_;
	my $cluster = $self->{cluster};

	return $self->fail_over(
		'failover-cut',
		before => sub {
			my ($old) = @_;

			$cluster->links('cut', $cluster->node_links($old), $cluster->client_links($old));
			$self->pass(some(0, 1));
		});
}

# Clients reach both.  The old primary answers what needs no commit, and may be
# told to stop waiting for its standby.
sub split_brain
{
	my ($self) = @_;
	my $cluster = $self->{cluster};

	return $self->fail_over(
		'split-brain',
		before => sub {
			my ($old) = @_;

			$cluster->links('cut', $cluster->node_links($old));
			$self->pass(some(0, 0.5));
		},
		after => sub {
			my ($old) = @_;

			for (1 .. 4)
			{
				$self->pass(some(0.2, 1));
				$cluster->ask($old, qq{
SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> 'nemesis' AND wait_event = 'SyncRep'}) if rand() < 0.5;
				# so that they do not all stay with the one that does not serve
				$cluster->links('reset', $cluster->client_links($old)) if rand() < 0.5;
			}
			$cluster->kill_node($old);
			$self->heal('split-brain', "node=$old");
		});
}

#
# The run
#

sub mended
{
	my ($self, $kind, $where) = @_;

	$self->{cluster}->mend or die "after $kind the cluster does not come back\n";
	$self->heal($kind, $where) unless $kind eq 'split-brain';
	return;
}

# One fault after the other, each kind once before any is repeated, for so many
# seconds or faults.
sub rage
{
	my ($self, $seconds, $count, @kinds) = @_;
	my $until = TortureCluster::now() + $seconds;
	my @deck;

	while (TortureCluster::now() < $until && (!defined $count || $count-- > 0))
	{
		@deck = shuffle(@kinds) unless @deck;
		my $kind = shift @deck;

		$self->accident unless $kind =~ /^client-/ || $self->{quiet};
		$faults{$kind}[2]->($self);
		$self->{cluster}->mend or die "after $kind the cluster does not come back\n";
		$self->pass(some(0.3, 1.5));
	}
	return;
}

# not List::Util's, which does not use our seed
sub shuffle
{
	my (@list) = @_;

	for (my $i = $#list; $i > 0; $i--)
	{
		my $j = int rand($i + 1);

		@list[ $i, $j ] = @list[ $j, $i ];
	}
	return @list;
}

# From here on there are no faults.
sub leave
{
	my ($self) = @_;
	my $clients = $self->{clients};

	$self->{timers} = [];
	foreach my $number (sort keys %{ $clients->{stopped} })
	{
		$clients->continue_one($number);
		$self->heal('client-stop', "client=$number");
	}
	$self->{cluster}->set_clock($_, 0) foreach @{ $self->{cluster}{names} };
	$self->{cluster}->mend or die "at the end the cluster does not come back\n";
	$self->note('healthy');
	$self->say_so('healthy', 'everything is undone');
	return;
}

1;
