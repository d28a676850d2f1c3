# The faults of a torture run.
#
# Each is a sub that causes it, lets some time pass, and undoes it.  Its argument is
# the nemesis, which keeps the history and lets the time pass.

package TortureFaults;

use strict;
use warnings FATAL => 'all';

use TortureChance qw(one_of shuffle some);
use TortureCluster;

# name => [ modes, sub ]
my %faults = (
	# kill -9 of a session: the server restarts
	'backend-kill' => [ 'sync async', \&backend_kill ],
	# kill -9 of the launcher or a reaper
	'worker-kill' => [ 'sync async', \&worker_kill ],
	# kill -9 of the worker that grants tickets: the server restarts
	'granter-kill' => [ 'sync async', \&granter_kill ],
	# SIGSTOP of the worker that grants tickets
	'granter-stop' => [ 'sync async', \&granter_stop ],
	# the worker that grants tickets is terminated, again and again
	'granter-terminate' => [ 'sync async', \&granter_terminate ],
	# kill -9 of all processes of the primary, which is started again
	'primary-kill' => [ 'sync async', \&primary_kill ],
	# the same for a standby
	'standby-kill' => [ 'sync async', \&standby_kill ],
	# kill -9 of clients
	'client-kill' => [ 'sync async', \&client_kill ],
	# SIGSTOP of clients, past their leases
	'client-stop' => [ 'sync async', \&client_stop ],
	# SIGSTOP of sessions
	'backend-stop' => [ 'sync async', \&backend_stop ],
	# SIGSTOP of the postmaster of the primary
	'postmaster-stop' => [ 'sync async', \&postmaster_stop ],
	# SIGSTOP of the WAL sender
	'walsender-stop' => [ 'sync async', \&walsender_stop ],
	# SIGSTOP of the WAL receiver
	'walreceiver-stop' => [ 'sync async', \&walreceiver_stop ],
	# the servers do not reach each other
	'cut-replication' => [ 'sync async', \&cut_replication ],
	# some or all clients do not reach the primary
	'cut-clients' => [ 'sync async', \&cut_clients ],
	# connections of clients are reset, again and again
	'reset-clients' => [ 'sync async', \&reset_clients ],
	# the network is slow
	'delay' => [ 'sync async', \&delay ],
	# sessions are cancelled, in the wait for the standby too
	'cancel' => [ 'sync async', \&cancel ],
	# sessions are terminated, in the wait for the standby too
	'terminate' => [ 'sync async', \&terminate ],
	# the clocks of the servers step by up to a day
	'clock' => [ 'sync async', \&clock ],
	# no file of the primary can grow
	'disk-full' => [ 'sync async', \&disk_full ],
	# the standby is lost, and the primary continues without it
	'alone' => [ 'sync', \&alone ],
	# kill -9 of the primary, the standby is promoted
	'failover-kill' => [ 'sync async', \&failover_kill ],
	# the primary is cut off, the standby promoted
	'failover-cut' => [ 'sync async', \&failover_cut ],
	# the standby is promoted while the old primary still answers clients
	'split-brain' => [ 'sync async', \&split_brain ],
);

sub kinds
{
	my ($mode, $edition) = @_;

	return sort grep { !defined $mode || " $faults{$_}[0] " =~ / $mode / }
	  grep { ($edition // 'c') eq 'c' || !/^(?:granter-|worker-|clock)/ } keys %faults;
}

sub cause
{
	my ($nemesis, $kind) = @_;

	return $faults{$kind}[1]->($nemesis);
}

#
# Clients
#

sub client_kill
{
	my ($nemesis) = @_;

	for (1 .. 1 + int rand 3)
	{
		my $number = $nemesis->{clients}->any // last;

		# before the kill: what the client writes after this line does not count
		$nemesis->fault('client-kill', "client=$number");
		$nemesis->{clients}->replace($number);
		$nemesis->pass(some(0, 0.5));
	}
	return;
}

sub stop_a_client
{
	my ($nemesis) = @_;
	my $number = $nemesis->{clients}->any // return;

	$nemesis->fault('client-stop', "client=$number");
	$nemesis->{clients}->stop_one($number);
	$nemesis->later(
		some(0.5, 8),
		sub {
			return unless $nemesis->{clients}{stopped}{$number};
			$nemesis->{clients}->continue_one($number);
			$nemesis->heal('client-stop', "client=$number");
		});
	return;
}

sub client_stop
{
	my ($nemesis) = @_;

	stop_a_client($nemesis) for 1 .. 2;
	$nemesis->pass(some(0, 1));
	return;
}

# What may happen to clients during another fault.
sub accident
{
	my ($nemesis) = @_;
	my $which = int rand 6;

	$nemesis->later(some(0, 2), sub { stop_a_client($nemesis) }) if $which == 0;
	$nemesis->later(
		some(0, 2),
		sub {
			my $number = $nemesis->{clients}->any // return;

			$nemesis->fault('client-kill', "client=$number");
			$nemesis->{clients}->replace($number);
		}) if $which == 1;
	return;
}

#
# Processes
#

# Pids of the primary, by type of process.
sub sessions
{
	my ($nemesis, $condition) = @_;
	my $cluster = $nemesis->{cluster};
	my $list = $cluster->ask($cluster->{primary},
		"SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name <> 'nemesis' AND $condition");

	return split / /, $list // '';
}

sub kill_process
{
	my ($nemesis, $kind, $condition) = @_;
	my $node = $nemesis->{cluster}{primary};
	my $pid = one_of(sessions($nemesis, $condition)) // return;

	$nemesis->fault($kind, "node=$node");
	kill 'KILL', $pid if TortureCluster::is_ours($pid, $nemesis->{cluster}{bindir});
	$nemesis->pass(some(0.5, 2));
	$nemesis->mended($kind, "node=$node");
	return;
}

sub backend_kill { return kill_process($_[0], 'backend-kill', "backend_type = 'client backend'"); }
sub worker_kill { return kill_process($_[0], 'worker-kill', "backend_type LIKE 'dlock%'"); }

# The worker that grants tickets.  It is there while tickets wait.
sub granter
{
	my ($nemesis) = @_;
	my $pid;

	$nemesis->{cluster}->until_true(5, sub { ($pid) = sessions($nemesis, "backend_type = 'dlock granter'"); return $pid });
	return $pid;
}

sub granter_kill
{
	my ($nemesis) = @_;

	granter($nemesis) // return;
	return kill_process($nemesis, 'granter-kill', "backend_type = 'dlock granter'");
}

sub granter_stop
{
	my ($nemesis) = @_;
	my $pid = granter($nemesis) // return;

	return stop_processes($nemesis, 'granter-stop', some(0.5, 3), $pid);
}

# The tickets stay, and another one continues with them.
sub granter_terminate
{
	my ($nemesis) = @_;
	my $cluster = $nemesis->{cluster};
	my $node = $cluster->{primary};

	granter($nemesis) // return;
	$nemesis->fault('granter-terminate', "node=$node");
	for (1 .. 3 + int rand 5)
	{
		$nemesis->{struck}{'granter-terminate'} += $cluster->ask($node,
			"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'dlock granter'") // 0;
		$nemesis->pass(some(0, 0.5));
	}
	$nemesis->heal('granter-terminate', "node=$node");
	return;
}

sub stop_processes
{
	my ($nemesis, $kind, $seconds, @pids) = @_;
	my $bindir = $nemesis->{cluster}{bindir};
	my $node = $nemesis->{cluster}{primary};

	return unless @pids;
	$nemesis->fault($kind, "node=$node");
	foreach my $pid (@pids) { kill 'STOP', $pid if TortureCluster::is_ours($pid, $bindir); }
	$nemesis->pass($seconds);
	foreach my $pid (@pids) { kill 'CONT', $pid if TortureCluster::is_ours($pid, $bindir); }
	$nemesis->heal($kind, "node=$node");
	return;
}

sub backend_stop
{
	my ($nemesis) = @_;
	my @pids = sessions($nemesis, "backend_type = 'client backend'");

	# a stopped process may hold what all others need, so stop it only briefly
	return stop_processes($nemesis, 'backend-stop', some(0.5, 3), grep { rand() < 0.3 } @pids);
}

sub postmaster_stop
{
	my ($nemesis) = @_;

	return stop_processes($nemesis, 'postmaster-stop', some(0.5, 3), $nemesis->{cluster}->postmaster($nemesis->{cluster}{primary}));
}

sub walsender_stop
{
	my ($nemesis) = @_;

	return stop_processes($nemesis, 'walsender-stop', some(0.5, 3), sessions($nemesis, "backend_type = 'walsender'"));
}

sub walreceiver_stop
{
	my ($nemesis) = @_;
	my $cluster = $nemesis->{cluster};
	my @pids;

	foreach my $node ($cluster->standbys)
	{
		my $pid = $cluster->ask($node, 'SELECT pid FROM pg_stat_wal_receiver');

		push @pids, $pid if defined $pid && $pid =~ /^\d+$/;
	}
	return stop_processes($nemesis, 'walreceiver-stop', some(0.5, 3), @pids);
}

sub primary_kill
{
	my ($nemesis) = @_;
	my $node = $nemesis->{cluster}{primary};

	$nemesis->fault('primary-kill', "node=$node");
	$nemesis->{cluster}->kill_node($node);
	$nemesis->pass(some(0, 1));
	$nemesis->{cluster}->start($node);
	$nemesis->mended('primary-kill', "node=$node");
	return;
}

sub standby_kill
{
	my ($nemesis) = @_;
	my $node = one_of($nemesis->{cluster}->standbys);

	$nemesis->fault('standby-kill', "node=$node");
	$nemesis->{cluster}->kill_node($node);
	$nemesis->pass(some(0.2, 3));
	$nemesis->{cluster}->start($node);
	$nemesis->mended('standby-kill', "node=$node");
	return;
}

#
# Network
#

sub broken_links
{
	my ($nemesis, $kind, $command, $seconds, @links) = @_;
	my $cluster = $nemesis->{cluster};

	$nemesis->fault($kind, 'link=' . join ',', @links);
	$cluster->links($command, @links);
	$nemesis->pass($seconds);
	$cluster->links('heal', @links);
	$cluster->links('delay 0', @links) if $command =~ /^delay/;
	# one side may have given up the connection, or not
	$cluster->links('reset', @links) if rand() < 0.5;
	$nemesis->heal($kind, 'link=' . join ',', @links);
	return;
}

sub cut_replication
{
	my ($nemesis) = @_;

	return broken_links($nemesis, 'cut-replication', 'cut', some(0.5, 5),
		$nemesis->{cluster}->node_links($nemesis->{cluster}{primary}));
}

sub cut_clients
{
	my ($nemesis) = @_;
	my @links = $nemesis->{cluster}->client_links($nemesis->{cluster}{primary});

	@links = (one_of(@links)) if rand() < 0.5;
	return broken_links($nemesis, 'cut-clients', 'cut', some(0.5, 6), @links);
}

sub delay
{
	my ($nemesis) = @_;
	my ($first, @links) = shuffle($nemesis->{cluster}->client_links($nemesis->{cluster}{primary}),
		$nemesis->{cluster}->node_links($nemesis->{cluster}{primary}));

	return broken_links($nemesis, 'delay', 'delay ' . int(some(5, 150)), some(1, 4), $first, grep { rand() < 0.7 } @links);
}

sub reset_clients
{
	my ($nemesis) = @_;
	my @links = $nemesis->{cluster}->client_links($nemesis->{cluster}{primary});

	$nemesis->fault('reset-clients', 'link=' . join ',', @links);
	for (1 .. 4 + int rand 10)
	{
		$nemesis->{cluster}->links('reset', one_of(@links));
		$nemesis->pass(some(0, 0.3));
	}
	$nemesis->heal('reset-clients', 'link=' . join ',', @links);
	return;
}

#
# Sessions
#

# While the standby is away, commits wait for it.  A cancel then leaves what is
# committed only here.
sub strike
{
	my ($nemesis, $kind, $function) = @_;
	my $cluster = $nemesis->{cluster};
	my $node = $cluster->{primary};
	my @links = $cluster->node_links($node);
	my $struck = 0;

	$nemesis->fault($kind, "node=$node");
	$cluster->links('cut', @links);
	for (1 .. 5)
	{
		$struck += $cluster->ask($node, qq{
SELECT count($function(pid)) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> 'nemesis'
   AND (wait_event = 'SyncRep' OR random() < 0.2)}) // 0;
		$nemesis->pass(some(0, 0.3));
	}
	$cluster->links('heal', @links);
	for (1 .. 5)
	{
		$struck += $cluster->ask($node, qq{
SELECT count($function(pid)) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> 'nemesis' AND random() < 0.3}) // 0;
		$nemesis->pass(some(0, 0.2));
	}
	$nemesis->heal($kind, "node=$node");
	$nemesis->{struck}{$kind} += $struck;
	return;
}

sub cancel { return strike($_[0], 'cancel', 'pg_cancel_backend'); }
sub terminate { return strike($_[0], 'terminate', 'pg_terminate_backend'); }

#
# Machines
#

sub clock
{
	my ($nemesis) = @_;
	my $cluster = $nemesis->{cluster};

	foreach my $node (@{ $cluster->{names} })
	{
		my $step = one_of(-86400, -3600, -60, 0, 60, 3600, 86400);

		$nemesis->fault('clock', "node=$node detail=${step}s");
		$cluster->set_clock($node, $step);
	}
	$nemesis->pass(some(1.5, 3));
	$nemesis->heal('clock', 'node=' . join ',', @{ $cluster->{names} });
	return;
}

sub disk_full
{
	my ($nemesis) = @_;
	my $cluster = $nemesis->{cluster};
	my $node = $cluster->{primary};

	$nemesis->fault('disk-full', "node=$node");
	$cluster->set_full($node, 1);
	$nemesis->pass(some(0.5, 1.5));
	# until the log needs another file, only tables are affected
	$cluster->ask($node, 'SELECT pg_switch_wal()', 2) if rand() < 0.5;
	$nemesis->pass(some(0.2, 2));
	$cluster->set_full($node, 0);
	$nemesis->mended('disk-full', "node=$node");
	return;
}

sub alone
{
	my ($nemesis) = @_;
	my $cluster = $nemesis->{cluster};
	my $node = $cluster->{sync} // return;

	$nemesis->fault('alone', "node=$cluster->{primary}");
	$cluster->kill_node($node);
	$nemesis->pass(some(0, 2));
	$cluster->make_alone;
	$nemesis->pass(some(1, 3));
	$cluster->start($node);
	$nemesis->mended('alone', "node=$cluster->{primary}");
	return;
}

#
# Failover
#

# Promote the standby that may be promoted.  What "before" and "after" do to the old
# primary is the fault.
sub fail_over
{
	my ($nemesis, $kind, %params) = @_;
	my $cluster = $nemesis->{cluster};
	my $old = $cluster->{primary};
	my $async = $nemesis->{mode} eq 'async';
	my $new = $async ? one_of($cluster->standbys) : $cluster->{sync};
	my %times = (kind => $kind);

	if (!$new)
	{
		$nemesis->say_so($kind, 'no standby may be promoted');
		return;
	}
	# so that there is something to lose
	if ($async)
	{
		my $count = 'SELECT sum(n) FROM register';
		my $before = $cluster->ask($old, $count) // 0;

		$cluster->links('cut', $cluster->node_links($old));
		$cluster->until_true(10, sub { $nemesis->pass(some(0.3, 1)); return ($cluster->ask($old, $count) // 0) > $before });
	}
	$nemesis->fault($kind, "node=$old", "$old -> $new");
	$times{from} = TortureCluster::microseconds();
	$params{before}->($old);
	$times{promoting} = TortureCluster::microseconds();
	$cluster->promote($new);
	$times{promoted} = TortureCluster::microseconds();
	$nemesis->note("fault promote node=$new mode=sync lost=0", $times{promoted}) unless $async;
	$params{after}->($old) if $params{after};
	# what the old primary acknowledges from here on is lost, too
	$nemesis->note("fault promote node=$new mode=async lost=1") if $async;
	push @{ $nemesis->{failovers} }, \%times;

	# the new primary is alone for some time, then the old one comes back
	$nemesis->pass(some(0.5, 2));
	$cluster->kill_node($old);
	$cluster->heal_links;
	$times{back} = join ',', map { $cluster->attach($_) } $cluster->standbys;
	$nemesis->mended($kind, "node=$old");
	return;
}

sub failover_kill
{
	my ($nemesis) = @_;

	return fail_over($nemesis, 'failover-kill', before => sub { $nemesis->{cluster}->kill_node($_[0]) });
}

# Nothing can reach it, but it runs, and its sessions with it.
sub failover_cut
{
	my ($nemesis) = @_;
	my $cluster = $nemesis->{cluster};

	return fail_over(
		$nemesis,
		'failover-cut',
		before => sub {
			my ($old) = @_;

			$cluster->links('cut', $cluster->node_links($old), $cluster->client_links($old));
			$nemesis->pass(some(0, 1));
		});
}

# Clients reach both.  The old primary answers what needs no commit, and may be
# told to stop waiting for its standby.
sub split_brain
{
	my ($nemesis) = @_;
	my $cluster = $nemesis->{cluster};

	return fail_over(
		$nemesis,
		'split-brain',
		before => sub {
			my ($old) = @_;

			$cluster->links('cut', $cluster->node_links($old));
			$nemesis->pass(some(0, 0.5));
		},
		after => sub {
			my ($old) = @_;

			for (1 .. 4)
			{
				$nemesis->pass(some(0.2, 1));
				$cluster->ask($old, qq{
SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> 'nemesis' AND wait_event = 'SyncRep'}) if rand() < 0.5;
				# so that they do not all stay with the one that does not serve
				$cluster->links('reset', $cluster->client_links($old)) if rand() < 0.5;
			}
			$cluster->kill_node($old);
			$nemesis->heal('split-brain', "node=$old");
		});
}

1;
