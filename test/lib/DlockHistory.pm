# Simulated histories of torture runs: a lock service without errors, in simulated time,
# with slow answers, lost answers, dead clients, crashes and failovers.  The checker must
# find nothing in them, and must find violations that are planted into them.
#
# Keys k0, k1 ... are locked exclusively.  Of keys s0, s1 ... there are all kinds of locks,
# and several are locked at once.
#
# A history is an array of lines [time, text, file].  Time only moves forward, in the
# history and in each of its files.

package DlockHistory;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

our @EXPORT_OK = qw(simulate write_history);

# phases: peace, faults, peace; microseconds
my $START = 1_000_000;
my $FAULTS = 8_000_000;
my $TAIL = 16_000_000;

my $TIMEOUT = 3_000_000;    # of a client, then the outcome is unknown
my $LEAP = 2**32;
my $LAZY = 40_000;          # a release may be so old and be lost in a crash

sub simulate
{
	my (%params) = @_;
	my $self = bless {
		mode => 'sync',
		clients => 8,
		keys => 3,
		shared => 2,
		seconds => 30,
		lines => [],
		heap => [],
		seq => 0,
		next_version => 100,
		next_client => 1,
		up => 1,
		incarnation => 0,
		locks => {},
		registers => {},
		waiting => {},
		alive => {},
		log => [],
		%params
	}, __PACKAGE__;

	srand($self->{seed});
	$self->{healthy} = $FAULTS + $self->{seconds} * 1_000_000;
	$self->{stop} = $self->{healthy} + $TAIL;
	$self->note($START - 10, "mode $self->{mode}", 'nemesis');
	$self->at($START + int rand 100_000, \&new_client) for 1 .. $self->{clients};
	$self->at($FAULTS + int rand 500_000, \&nemesis);
	$self->at($self->{healthy}, sub { $self->note($_[1], 'healthy', 'nemesis') });
	$self->run;
	$self->final;
	return @{ $self->{lines} };
}

sub write_history
{
	my ($folder, @lines) = @_;
	my %files;

	push @{ $files{ $_->[2] } }, "$_->[0] $_->[1]\n" foreach @lines;
	foreach my $name (keys %files)
	{
		open my $fh, '>', "$folder/$name.history" or die "could not create a file: $!";
		print $fh @{ $files{$name} };
		close $fh;
	}
	return;
}

#
# Time
#

# A heap, ordered by time and then by insertion.
sub at
{
	my ($self, $time, $what) = @_;
	my $heap = $self->{heap};
	my $entry = [ $time, $self->{seq}++, $what ];
	my $i = @$heap;

	push @$heap, $entry;
	while ($i > 0)
	{
		my $up = ($i - 1) >> 1;

		last if before($heap->[$up], $entry);
		$heap->[$i] = $heap->[$up];
		$i = $up;
	}
	$heap->[$i] = $entry;
	return;
}

sub before { return $_[0][0] < $_[1][0] || ($_[0][0] == $_[1][0] && $_[0][1] < $_[1][1]); }

sub take
{
	my ($heap) = @_;
	my $top = $heap->[0];
	my $last = pop @$heap;
	my $i = 0;

	return $top unless @$heap;
	while ((my $down = 2 * $i + 1) < @$heap)
	{
		$down++ if $down + 1 < @$heap && before($heap->[ $down + 1 ], $heap->[$down]);
		last if before($last, $heap->[$down]);
		$heap->[$i] = $heap->[$down];
		$i = $down;
	}
	$heap->[$i] = $last;
	return $top;
}

sub run
{
	my ($self) = @_;

	while (@{ $self->{heap} })
	{
		my $entry = take($self->{heap});

		$self->{now} = $entry->[0];
		$entry->[2]->($self, $entry->[0]);
	}
	return;
}

sub note
{
	my ($self, $time, $text, $file) = @_;

	push @{ $self->{lines} }, [ $time, $text, $file ];
	return;
}

# Mostly fast, sometimes instantaneous, sometimes slow.
sub latency
{
	my $kind = rand;

	return $kind < 0.2 ? 0 : $kind < 0.9 ? int rand 2_000 : int rand 60_000;
}

#
# The server, which does one thing at a time
#

# A key has its last exclusive version, and grants: those that are held, expired or not, and
# those that were released.
sub lock_of { return $_[0]{locks}{ $_[1] } //= { version => 0, grants => [] }; }

# Until when a grant keeps others out, if nobody prolongs it.
sub busy_until
{
	my ($grant) = @_;
	my $until = $grant->{held} ? $grant->{until} + $grant->{delay} : 0;

	return $until > $grant->{least} ? $until : $grant->{least};
}

sub live { return grep { $_->{held} && $_[0]{now} < $_->{until} } @{ $_[0]->lock_of($_[1])->{grants} }; }

sub of_owner { my ($self, $op) = @_; return (grep { $_->{owner} eq $op->{owner} } $self->live($op->{key}))[0]; }

sub of_version { my ($self, $op) = @_; return (grep { $_->{version} == $op->{version} } $self->live($op->{key}))[0]; }

# Can it be granted now?
sub fits
{
	my ($self, $op) = @_;
	my @others = grep { busy_until($_) > $self->{now} && $_->{owner} ne $op->{owner} } @{ $self->lock_of($op->{key})->{grants} };

	return !@others if $op->{slots} == 1;
	return 0 if grep { $_->{slots} == 1 } @others;
	return $op->{slots} == 0 || @others < $op->{slots};
}

sub serve_at
{
	my ($self, $key, $grant) = @_;

	$self->at($_, sub { $_[0]->serve($key) }) foreach grep { $_ >= $self->{now} } $grant->{until}, busy_until($grant);
	return;
}

sub grant
{
	my ($self, $op) = @_;
	my $lock = $self->lock_of($op->{key});
	my $grant = {
		held => 1,
		until => $self->{now} + $op->{ttl} * 1000,
		least => $self->{now} + ($op->{at_least} // 0) * 1000,
		delay => ($op->{delay} // 0) * 1000,
		owner => $op->{owner},
		slots => $op->{slots},
		ttl => $op->{ttl}
	};

	# others draw versions, too
	$self->{next_version} += 10 + 10 * int rand 3;
	$grant->{version} = $self->{next_version};
	$lock->{version} = $grant->{version} if $op->{slots} == 1;
	# what is over cannot come back; what this owner had so far is replaced
	@{ $lock->{grants} } = (
		(grep { busy_until($_) > $self->{now} && $_->{owner} ne $op->{owner} } @{ $lock->{grants} }), $grant);
	$self->serve_at($op->{key}, $grant);
	return "granted version=$grant->{version}";
}

sub renew
{
	my ($self, $grant, $op) = @_;

	$grant->{until} = $self->{now} + $op->{ttl} * 1000;
	$grant->{ttl} = $op->{ttl};
	$self->serve_at($op->{key}, $grant);
	return;
}

# Which waiters are next?
sub serve
{
	my ($self, $key) = @_;
	my $queue = $self->{waiting}{$key} //= [];

	while ($self->{up} && @$queue)
	{
		if (!$queue->[0]{left})
		{
			last unless $self->fits($queue->[0]);
			$self->answer($queue->[0], $self->grant($queue->[0]));
		}
		shift @$queue;
	}
	return;
}

sub somebody_waits { my ($self, $key) = @_; return grep { !$_->{left} } @{ $self->{waiting}{$key} // [] }; }

sub acquire
{
	my ($self, $op) = @_;
	my $own = $self->of_owner($op);

	return $self->acquire_all($op) if $op->{also};
	if ($own && ($own->{slots} == $op->{slots} || $op->{slots} != 1))
	{
		$own->{slots} = $op->{slots};
		$own->{delay} = ($op->{delay} // 0) * 1000;
		$own->{least} = 0;
		$self->renew($own, $op);
		$self->at($self->{now}, sub { $_[0]->serve($op->{key}) });
		return "granted version=$own->{version}";
	}
	return $self->grant($op) if $self->fits($op) && ($own || !$self->somebody_waits($op->{key}));
	return 'busy' if $op->{wait} == 0 || $own;
	push @{ $self->{waiting}{ $op->{key} } }, $op;
	$self->at(
		$self->{now} + $op->{wait} * 1000,
		sub {
			return if $op->{left} || $op->{answered};
			$op->{left} = 1;
			$self->answer($op, 'busy');
			$self->serve($op->{key});
		}) if $op->{wait} > 0;
	return;
}

# All of several keys, or none.
sub acquire_all
{
	my ($self, $op) = @_;
	my @ops = ($op, @{ $op->{also} });

	return 'busy' if grep { !$self->fits($_) || $self->somebody_waits($_->{key}) } @ops;
	$_->{answer} = $self->grant($_) foreach @{ $op->{also} };
	return $self->grant($op);
}

sub refresh
{
	my ($self, $op) = @_;
	my $grant = $self->of_version($op) // return 'lost';

	$self->renew($grant, $op);
	return 'ok';
}

sub release
{
	my ($self, $op) = @_;
	my $grant = $self->of_version($op);

	return $self->live($op->{key}) ? 'held_by_other' : 'not_held' unless $grant;
	$grant->{held} = 0;
	$grant->{released} = $self->{now};
	$self->at($_, sub { $_[0]->serve($op->{key}) }) foreach $self->{now}, grep { $_ > $self->{now} } $grant->{least};
	return 'released';
}

sub write
{
	my ($self, $op) = @_;
	my $rows = $self->{registers}{ $op->{key} } //= [];

	return 'fenced' unless $self->of_version($op);
	push @$rows, $op;
	return 'ok n=' . scalar @$rows;
}

# The request arrives, if there is a server.
sub arrive
{
	my ($self, $op) = @_;
	my $kind = $op->{kind};

	return if $op->{never};
	if (!$self->{up})
	{
		$op->{deaf} = 1;
		return $self->give_up($op, int rand $TIMEOUT);
	}
	# an old primary has only old data
	if ($self->{stale} && $kind ne 'acquire' && rand() < 0.3)
	{
		$self->answer($op, { refresh => 'lost', release => 'not_held', write => 'fenced' }->{$kind});
		return;
	}
	my $answer = $self->$kind($op);
	$self->answer($op, $answer) if defined $answer;
	return;
}

sub answer
{
	my ($self, $op, $answer) = @_;

	$op->{answered} = 1;
	return if $op->{deaf};
	my $incarnation = $self->{incarnation};

	$self->at($self->{now} + latency(),
		sub { $_[0]->done($op, $answer) if $incarnation == $_[0]{incarnation} });
	return;
}

#
# Clients
#

sub new_client
{
	my ($self, $now) = @_;
	my $client = { number => $self->{next_client}++, op => 0, alive => 1, old => [] };

	$client->{file} = "client-$client->{number}";
	$self->{alive}{ $client->{number} } = $client;
	$self->note($now, "begin $client->{number}", $client->{file});
	$self->at($now, sub { $self->think($client) });
	return;
}

sub one_of { return $_[ int rand @_ ]; }

# What to do next?
sub think
{
	my ($self, $client) = @_;
	my $now = $self->{now};
	my $lock = $client->{lock};
	my $dice = rand;

	return unless $client->{alive};
	if ($now >= $self->{stop})
	{
		return $self->call($client, 'release', $client->{lock}) if $lock;
		$self->note($now, "end $client->{number}", $client->{file});
		$client->{alive} = 0;
		delete $self->{alive}{ $client->{number} };
		return;
	}
	if (!$lock)
	{
		# with the name of the request that had no answer, or with an old token
		my $again = $client->{again};

		delete $client->{again};
		return $self->call($client, 'acquire', $again) if $again && $dice < 0.5;
		return $self->call($client, 'write', one_of(@{ $client->{old} }))
		  if @{ $client->{old} } && $dice > 0.9;
		my $ttl = 200 + 100 * int rand 20;
		my $wait = one_of(0, 0, 0, 500, 3000);

		$wait = -1 if rand() < 0.05;
		my %request = (
			key => 'k' . int rand $self->{keys},
			owner => "o$client->{number}-" . ($client->{op} + 1),
			ttl => $ttl,
			wait => $wait,
			slots => 1);

		return $self->call($client, 'acquire', { %request, $self->any_kind(\%request) });
	}
	return $self->call($client, 'acquire', { %$lock, wait => 0, at_least => 0, delay => 0 }) if $dice < 0.05;
	# the same owner, another kind
	return $self->call($client, 'acquire', { %$lock, wait => 0, at_least => 0, delay => 0, slots => $lock->{slots} == 1 ? one_of(0, 3) : 1 })
	  if $dice < 0.12 && $lock->{key} =~ /^s/;
	return $self->call($client, 'refresh', { %$lock, ttl => $lock->{ttl} + one_of(0, 0, 0, 100, $lock->{ttl} > 150 ? -50 : 0) }) if $dice < 0.3;
	return $self->call($client, 'write', $lock) if $dice < 0.65;
	return $self->call($client, 'release', $lock) if $dice < 0.85;
	if ($dice < 0.9)
	{
		# forgets it
		push @{ $client->{old} }, $lock;
		delete $client->{lock};
	}
	elsif ($dice < 0.93)
	{
		# the library gives up shortly before the TTL ends
		$self->note($now, "lost $client->{number} key=$lock->{key} version=$lock->{version} reason=deadline", $client->{file});
		push @{ $client->{old} }, $lock;
		delete $client->{lock};
	}
	elsif ($now < $lock->{until} && $dice < 0.96)
	{
		$self->note($now, "owns $client->{number} key=$lock->{key} version=$lock->{version}", $client->{file});
	}
	$self->at($now + int rand($dice > 0.99 ? 4_000_000 : 100_000), sub { $self->think($client) });
	return;
}

# For some requests: a key that is shared, and what else can be asked for.
sub any_kind
{
	my ($self, $request) = @_;

	return if rand() < 0.5 || !$self->{shared};
	my %kind = (key => 's' . int rand $self->{shared}, slots => one_of(0, 0, 1, 2, 2, 3));

	if (rand() < 0.2)
	{
		$kind{also} = [ map { { %$request, slots => one_of(0, 1, 2), key => "s$_" } } grep { "s$_" ne $kind{key} } 0 .. $self->{shared} - 1 ];
		$kind{wait} = 0;
	}
	else
	{
		$kind{at_least} = 50 + int rand 150 if rand() < 0.3;
		$kind{delay} = 50 + int rand 500 if rand() < 0.3;
	}
	return %kind;
}

# The words of an acquire.
sub request_text
{
	my ($op, $with) = @_;
	my $text = "key=$op->{key} owner=$op->{owner} ttl=$op->{ttl} wait=$op->{wait}";

	$text .= " slots=$op->{slots}" if $op->{slots} != 1;
	$text .= " $_=$op->{$_}" foreach grep { $op->{$_} } qw(at_least delay);
	return defined $with ? "$text with=$with" : $text;
}

sub call
{
	my ($self, $client, $kind, $about) = @_;
	my $now = $self->{now};
	my $op = { kind => $kind, client => $client, number => ++$client->{op}, called => $now };

	exists $about->{$_} and $op->{$_} = $about->{$_} foreach qw(key owner ttl wait version slots at_least delay);
	my %text = (
		refresh => "key=$op->{key} version=" . ($op->{version} // 0) . " ttl=$op->{ttl}",
		release => "key=$op->{key} version=" . ($op->{version} // 0),
		write => "key=$op->{key} version=" . ($op->{version} // 0));
	my $bad = $self->{troubled} ? 0.1 : 0;
	my $patience = $TIMEOUT + ($kind eq 'acquire' && $op->{wait} > 0 ? $op->{wait} * 1000 : 0);

	$text{acquire} = request_text($op, $about->{also} ? $op->{number} : undef) if $kind eq 'acquire';
	$self->note($now, "call $client->{number} $op->{number} $kind $text{$kind}", $client->{file});
	if ($about->{also})
	{
		$op->{also} = [ map { { %$_, number => ++$client->{op} } } @{ $about->{also} } ];
		$self->note($now, "call $client->{number} $_->{number} acquire " . request_text($_, $op->{number}), $client->{file})
		  foreach @{ $op->{also} };
	}
	$client->{open} = $op;
	delete $client->{lock} if $kind eq 'release';
	push @{ $client->{old} }, $about if $kind eq 'release';
	shift @{ $client->{old} } if @{ $client->{old} } > 4;
	$op->{deaf} = 1 if rand() < $bad;
	$op->{never} = 1 if $op->{deaf} && rand() < 0.5;
	if (!$op->{deaf} && rand() < 0.01)
	{
		$self->at($now + latency(), sub { $_[0]->done($op, 'error state=57014') });
		return;
	}
	# a request whose answer is lost may be processed late
	$self->at($now + ($op->{deaf} ? int rand 1_000_000 : latency()), sub { $_[0]->arrive($op) });
	$self->give_up($op, $patience) unless $kind eq 'acquire' && $op->{wait} < 0 && !$op->{deaf};
	return;
}

sub give_up
{
	my ($self, $op, $patience) = @_;

	$self->at($self->{now} + $patience,
		sub {
			return if $op->{done};
			$op->{deaf} = 1;
			$self->done($op, 'unknown');
		});
	return;
}

sub done
{
	my ($self, $op, $answer) = @_;
	my $client = $op->{client};
	my $now = $self->{now};

	return if !$client->{alive} || $op->{done};
	$op->{done} = $now;
	delete $client->{open};
	$self->note($now, "done $client->{number} $op->{number} $op->{kind} $answer", $client->{file});
	$self->note($now, "done $client->{number} $_->{number} acquire " . ($answer =~ /^granted/ ? $_->{answer} : $answer), $client->{file})
	  foreach @{ $op->{also} // [] };
	if ($answer =~ /^granted version=(\d+)/)
	{
		$client->{lock} = {
			key => $op->{key},
			owner => $op->{owner},
			slots => $op->{slots},
			ttl => $op->{ttl},
			version => $1,
			until => $op->{called} + $op->{ttl} * 1000
		};
	}
	elsif ($answer eq 'ok' && $client->{lock})
	{
		$client->{lock}{ttl} = $op->{ttl};
		$client->{lock}{until} = $op->{called} + $op->{ttl} * 1000;
	}
	elsif ($op->{kind} eq 'refresh' && $answer eq 'lost')
	{
		$self->note($now, "lost $client->{number} key=$op->{key} version=$op->{version} reason=expired", $client->{file})
		  if rand() < 0.5;
		push @{ $client->{old} }, $op;
		delete $client->{lock};
	}
	elsif ($answer eq 'unknown')
	{
		$client->{again} = { %$op, wait => 0 } if $op->{kind} eq 'acquire' && !$client->{lock} && !$op->{also};
		# it may have become another kind, or have a new version
		if ($op->{kind} eq 'acquire' && $client->{lock})
		{
			push @{ $client->{old} }, $client->{lock};
			delete $client->{lock};
		}
	}
	$self->at($now + int rand 50_000, sub { $self->think($client) });
	return;
}

#
# Faults
#

sub nemesis
{
	my ($self, $now) = @_;
	my @kinds = qw(kill kill deaf crash failover);

	return if $now > $self->{healthy} - 5_000_000;
	push @kinds, 'split' if $self->{mode} eq 'sync';
	my $kind = 'fault_' . one_of(@kinds);

	$self->$kind;
	$self->at($now + 500_000 + int rand 3_000_000, \&nemesis);
	return;
}

sub fault
{
	my ($self, $text) = @_;

	$self->note($self->{now}, "fault $text", 'nemesis');
	return;
}

sub fault_kill
{
	my ($self) = @_;
	my @numbers = sort { $a <=> $b } keys %{ $self->{alive} };
	my $client = $self->{alive}{ one_of(@numbers) };

	$self->fault("client-kill client=$client->{number}");
	$client->{alive} = 0;
	$client->{open}{left} = 1 if $client->{open} && rand() < 0.5;
	delete $self->{alive}{ $client->{number} };
	$self->at($self->{now} + int rand 100_000, \&new_client);
	return;
}

# Answers get lost.
sub fault_deaf
{
	my ($self) = @_;

	return if $self->{troubled};
	$self->{troubled} = 1;
	$self->fault('reset-clients link=c1');
	$self->at($self->{now} + int rand 2_000_000, sub { $self->{troubled} = 0; $self->note($_[1], 'heal reset-clients link=c1', 'nemesis') });
	return;
}

# The server is gone, together with everything that it has not answered.
sub stop_server
{
	my ($self) = @_;

	$self->{up} = 0;
	$self->{incarnation}++;
	foreach my $client (map { $self->{alive}{$_} } sort { $a <=> $b } keys %{ $self->{alive} })
	{
		my $op = $client->{open} // next;

		next if $op->{deaf};
		$op->{deaf} = 1;
		$op->{left} = 1;
		$self->give_up($op, int rand $TIMEOUT);
	}
	$self->{waiting} = {};
	return;
}

# Every lease lasts one TTL from here on.
sub start_server
{
	my ($self) = @_;

	$self->{up} = 1;
	foreach my $key (sort keys %{ $self->{locks} })
	{
		foreach my $grant (@{ $self->{locks}{$key}{grants} })
		{
			# a release may not have reached the disk
			if (!$grant->{held} && ($grant->{released} // 0) > $self->{down_at} - $LAZY && rand() < 0.5)
			{
				$grant->{held} = 1;
				$grant->{until} = $self->{now} + $grant->{ttl} * 1000;
			}
			elsif ($grant->{held} && busy_until($grant) > $self->{down_at})
			{
				$grant->{until} = $self->{now} + $grant->{ttl} * 1000;
			}
			$grant->{least} += $self->{now} - $self->{down_at} if $grant->{least} > $self->{down_at};
			$self->serve_at($key, $grant);
		}
		$self->at($self->{now}, sub { $self->serve($key) });
	}
	return;
}

sub fault_crash
{
	my ($self) = @_;

	return if !$self->{up} || $self->{stale};
	$self->fault('primary-kill node=n1');
	$self->{down_at} = $self->{now};
	$self->stop_server;
	$self->at($self->{now} + int rand 1_000_000, sub { $self->start_server; $self->note($_[1], 'heal primary-kill node=n1', 'nemesis') });
	return;
}

sub copy_of
{
	my ($self) = @_;

	return {
		locks => { map { $_ => { version => $self->{locks}{$_}{version}, grants => [ map { {%$_} } @{ $self->{locks}{$_}{grants} } ] } } keys %{ $self->{locks} } },
		registers => { map { $_ => [ @{ $self->{registers}{$_} } ] } keys %{ $self->{registers} } },
		next_version => $self->{next_version},
	};
}

sub fault_failover
{
	my ($self, $split) = @_;
	my $kind = $split ? 'split-brain' : 'failover-kill';
	my $async = $self->{mode} eq 'async';
	my $copy = $self->copy_of;

	return if !$self->{up} || $self->{stale};
	# the standby receives nothing more from here on
	$self->fault("$kind node=n1") if $async;
	$self->at(
		$self->{now} + ($async ? int rand 500_000 : 0),
		sub {
			return unless $self->{up};
			$self->fault("$kind node=n1") unless $async;
			$self->{down_at} = $self->{now};
			$self->stop_server;
			$self->at(
				$self->{now} + int rand 1_000_000,
				sub {
					@$self{ keys %$copy } = values %$copy if $async;
					$self->{next_version} += $LEAP + int rand $LEAP;
					$self->fault("promote node=n2 mode=$self->{mode} lost=" . ($async ? 1 : 0));
					$self->start_server;
					$self->{stale} = $split;
					$self->at(
						$self->{now} + int rand 1_500_000,
						sub {
							$self->{stale} = 0;
							$self->note($_[1], "heal $kind node=n1", 'nemesis');
						});
				});
		});
	return;
}

sub fault_split { return $_[0]->fault_failover(1); }

#
# The end
#

sub final
{
	my ($self) = @_;
	my $now = $self->{now} + 1;

	foreach my $key (sort keys %{ $self->{registers} })
	{
		my $n = 0;

		foreach my $op (@{ $self->{registers}{$key} })
		{
			$n++;
			$self->note($now, "final register key=$key n=$n token=$op->{version} client=$op->{client}{number} op=$op->{number}", 'final');
		}
	}
	$self->note($now, "final version key=$_ version=$self->{locks}{$_}{version}", 'final') foreach grep { $self->{locks}{$_}{version} } sort keys %{ $self->{locks} };
	$self->note($now, "final count what=$_ value=0 expect=0", 'final') foreach qw(waiters backends);
	$self->note($now, 'final end', 'final');
	return;
}

1;
