# The checker of torture histories, with large ones: a correct simulation makes them, and
# then they are damaged.  Versions are multiples of ten there, so that one in between is
# new.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use Test::More;

use DlockChecker;
use DlockHistory qw(simulate);

my @at_random = ('--bound-ms', 5000);

# What is known about a history: the operations by key and time, the rows of the register,
# when there were no faults, and which clients were killed.
sub know
{
	my (@lines) = @_;
	my %known = (ops => [], rows => {}, killed => {}, ended => {}, faults => [], lost => {});
	my %ops;

	for my $i (0 .. $#lines)
	{
		my ($time, $text) = @{ $lines[$i] };

		if ($text =~ /^call (\d+) (\d+) (\w+) key=(\S+)(?: owner=(\S+))?(?: version=(\d+))?(?: ttl=(\d+))?/)
		{
			push @{ $known{ops} }, $ops{"$1 $2"} = {
				client => $1, number => $2, kind => $3, key => $4, owner => $5, version => $6, ttl => $7,
				called => $time, call => $i, outcome => 'open'
			};
			$known{ops}[-1]{$1} = $2 while $text =~ /\b(slots|at_least|delay|with)=(\d+)/g;
			$known{ops}[-1]{slots} //= 1;
		}
		elsif ($text =~ /^done (\d+) (\d+) \w+ (\w+)(?: version=(\d+))?(?: n=(\d+))?/)
		{
			my $op = $ops{"$1 $2"};

			@$op{qw(outcome ended done)} = ($3, $time, $i);
			$op->{version} = $4 if $4;
			$op->{n} = $5 if $5;
		}
		elsif ($text =~ /^final register key=(\S+) n=(\d+) token=(\d+) client=(\d+) op=(\d+)/)
		{
			push @{ $known{rows}{$1} }, { n => $2, token => $3, client => $4, op => $5, line => $i };
			$ops{"$4 $5"}{row} = $i;
		}
		elsif ($text =~ /^fault client-kill client=(\d+)/) { $known{killed}{$1} = $time; push @{ $known{faults} }, $time; }
		elsif ($text =~ /^(?:fault|heal) /) { push @{ $known{faults} }, $time; }
		elsif ($text =~ /^lost (\d+) key=(\S+) version=(\d+)/) { $known{lost}{"$2 $3"} = 1; }
	}
	return \%known;
}

# Leases that were not released before they ended, or not at all, with the time until
# which they last at least and were believed in.
sub leases
{
	my ($known) = @_;
	my (%leases, @leases);

	foreach my $op (sort { $a->{ended} <=> $b->{ended} } grep { $_->{ended} && $_->{version} } @{ $known->{ops} })
	{
		my $name = "$op->{key} $op->{version}";
		my $lease = $leases{$name};

		if ($op->{outcome} eq 'granted' && !$lease)
		{
			$lease = $leases{$name} = { %$op, grant => $op, until => $op->{called} + $op->{ttl} * 1000 };
			push @leases, $lease;
		}
		elsif ($lease && $op->{kind} ne 'write') { $lease->{more} = 1; }
	}
	# not those whose owner asked again, perhaps for another kind
	my %requests;

	$requests{"$_->{key} $_->{owner}"}++ foreach grep { $_->{owner} } @{ $known->{ops} };
	$_->{bad} = 1 foreach grep { $requests{"$_->{key} $_->{owner}"} > 1 } @leases;
	# the simple ones: only writes, and perhaps a release at the end
	foreach my $op (grep { $_->{kind} ne 'acquire' && $_->{kind} ne 'write' || $_->{outcome} =~ /open|unknown/ } @{ $known->{ops} })
	{
		foreach my $lease (grep { $_->{key} eq $op->{key} } @leases)
		{
			my $same = $op->{version} ? $op->{version} == $lease->{version} : $op->{owner} eq $lease->{owner};

			next if !$same || $op == $lease->{grant};
			$lease->{bad} = 1 unless $op->{kind} eq 'release';
			$lease->{end} = $op->{called} if $op->{kind} eq 'release';
		}
	}
	foreach my $lease (@leases)
	{
		my $killed = $known->{killed}{ $lease->{client} };

		$lease->{bad} = 1 if $known->{lost}{"$lease->{key} $lease->{version}"};
		$lease->{killed} = $killed if $killed && $killed < $lease->{until} && !$lease->{end};
		$lease->{believed} = $lease->{until};
		foreach my $end (grep { defined } @$lease{qw(end killed)}) { $lease->{believed} = $end if $end < $lease->{believed}; }
	}
	return grep { !$_->{bad} && $_->{believed} > $_->{ended} + 10 } @leases;
}

sub one_of { return $_[ int rand @_ ] // die 'there is none'; }

# No fault from two seconds before until one second after.
sub calm
{
	my ($known, $from, $to) = @_;

	return !grep { $_ > $from - 2_000_000 && $_ < $to + 1_000_000 } @{ $known->{faults} };
}

my %harm = (
	'a version twice' => [ 'versions', sub {
		my ($known, $lines) = @_;
		my @grants = grep { $_->{outcome} eq 'granted' } @{ $known->{ops} };
		my %times;

		# not that of an owner that asked again
		$times{ $_->{version} }++ foreach @grants;
		@grants = grep { $times{ $_->{version} } == 1 } @grants;
		my $a = one_of(@grants);
		my $b = one_of(grep { $_ != $a } @grants);

		$lines->[ $b->{done} ][1] =~ s/version=\d+/version=$a->{version}/;
		return ($a->{done}, $b->{done});
	} ],
	'a version that decreases' => [ 'versions', sub {
		my ($known, $lines) = @_;
		my %highest;
		my @pairs;

		foreach my $op (sort { $a->{ended} <=> $b->{ended} } grep { $_->{outcome} eq 'granted' } @{ $known->{ops} })
		{
			my $before = $highest{ $op->{key} };

			push @pairs, [ $before, $op ] if $before && $before->{ended} < $op->{called} && $before->{version} < $op->{version};
			$highest{ $op->{key} } = $op if !$before || $before->{version} < $op->{version};
		}
		my ($before, $op) = @{ one_of(@pairs) };
		my $version = $before->{version} - 5;

		$lines->[ $op->{done} ][1] =~ s/version=\d+/version=$version/;
		return ($before->{done}, $op->{done});
	} ],
	'an overlap of one microsecond' => [ 'overlap', sub {
		my ($known, $lines) = @_;
		my $lease = one_of(grep { !$_->{killed} && $_->{key} =~ /^k/ } leases($known));
		my $time = $lease->{believed} - 1;
		my $version = $lease->{version} + 5;

		push @$lines,
			[ $time - 1, 'begin 9999', 'client-9999' ],
			[ $time, "call 9999 1 acquire key=$lease->{key} owner=new ttl=100 wait=0 slots=" . int rand 3, 'client-9999' ],
			[ $time, "done 9999 1 acquire granted version=$version", 'client-9999' ],
			[ $time + 1, "call 9999 2 release key=$lease->{key} version=$version", 'client-9999' ],
			[ $time + 2, 'done 9999 2 release released', 'client-9999' ],
			[ $time + 3, 'end 9999', 'client-9999' ];
		return ($lease->{grant}{done}, $#$lines - 3);
	} ],
	'a writer beside a reader' => [ 'overlap', sub {
		my ($known, $lines) = @_;
		my $lease = one_of(grep { $_->{slots} != 1 && $_->{believed} > $_->{ended} + 20 } leases($known));
		my $time = $lease->{ended} + 10;
		my $version = $lease->{version} + 5;

		push @$lines,
			[ $time - 1, 'begin 9999', 'client-9999' ],
			[ $time, "call 9999 1 acquire key=$lease->{key} owner=new ttl=1 wait=0", 'client-9999' ],
			[ $time, "done 9999 1 acquire granted version=$version", 'client-9999' ],
			[ $time + 1, 'end 9999', 'client-9999' ];
		# perhaps another reader stays longer
		return ($#$lines - 1);
	} ],
	'a place too many' => [ 'slots', sub {
		my ($known, $lines) = @_;
		my $lease = one_of(grep { $_->{slots} != 1 && $_->{believed} > $_->{ended} + 20 } leases($known));
		my $time = $lease->{ended} + 10;
		my @versions = ($lease->{version} + 3, $lease->{version} + 5);

		push @$lines,
			[ $time - 1, 'begin 9999', 'client-9999' ],
			[ $time, "call 9999 1 acquire key=$lease->{key} owner=one ttl=100 wait=0 slots=0", 'client-9999' ],
			[ $time, "call 9999 2 acquire key=$lease->{key} owner=two ttl=100 wait=0 slots=2", 'client-9999' ],
			[ $time, "done 9999 2 acquire granted version=$versions[1]", 'client-9999' ],
			[ $time + 1, "done 9999 1 acquire granted version=$versions[0]", 'client-9999' ],
			[ $time + 2, 'end 9999', 'client-9999' ];
		return ($#$lines - 2);
	} ],
	'a grant while the key cools' => [ 'cooling', sub {
		my ($known, $lines) = @_;
		my $lease = one_of(grep { $_->{at_least} && $_->{end} && $_->{end} + 10 < $_->{called} + $_->{at_least} * 1000 } leases($known));
		my $time = $lease->{called} + $lease->{at_least} * 1000 - 1;
		my $version = $lease->{version} + 5;

		push @$lines,
			[ $time - 1, 'begin 9999', 'client-9999' ],
			[ $time, "call 9999 1 acquire key=$lease->{key} owner=new ttl=1 wait=0", 'client-9999' ],
			[ $time, "done 9999 1 acquire granted version=$version", 'client-9999' ],
			[ $time + 1, 'end 9999', 'client-9999' ];
		return ($lease->{grant}{done}, $#$lines - 1);
	} ],
	'a grant before the delay is over' => [ 'cooling', sub {
		my ($known, $lines) = @_;
		my $lease = one_of(grep { $_->{delay} && !$_->{end} } leases($known));
		my $time = $lease->{until} + $lease->{delay} * 1000 - 1;
		my $version = $lease->{version} + 5;

		push @$lines,
			[ $time - 1, 'begin 9999', 'client-9999' ],
			[ $time, "call 9999 1 acquire key=$lease->{key} owner=new ttl=1 wait=0", 'client-9999' ],
			[ $time, "done 9999 1 acquire granted version=$version", 'client-9999' ],
			[ $time + 1, 'end 9999', 'client-9999' ];
		return ($lease->{grant}{done}, $#$lines - 1);
	} ],
	'half of a group' => [ 'whole', sub {
		my ($known, $lines) = @_;
		my $op = one_of(grep { $_->{with} && $_->{with} != $_->{number} && $_->{outcome} eq 'granted' } @{ $known->{ops} });

		$lines->[ $op->{done} ][1] =~ s/granted.*/busy/;
		return ($op->{call}, $op->{done});
	} ],
	'a lease that vanishes with its client' => [ 'vanish', sub {
		my ($known, $lines) = @_;
		my $lease = one_of(grep { !$_->{end} && !$_->{killed} && $_->{key} =~ /^k/ } leases($known));
		my $time = $lease->{until} - 1;
		my $version = $lease->{version} + 5;

		foreach my $line (@$lines)
		{
			$line = undef if $line->[2] eq "client-$lease->{client}" && $line->[0] > $lease->{ended};
		}
		push @$lines,
			[ $lease->{ended} + 1, "fault client-kill client=$lease->{client}", 'nemesis' ],
			[ $time - 1, 'begin 9999', 'client-9999' ],
			[ $time, "call 9999 1 acquire key=$lease->{key} owner=new ttl=1 wait=0", 'client-9999' ],
			[ $time, "done 9999 1 acquire granted version=$version", 'client-9999' ],
			[ $time + 3, 'end 9999', 'client-9999' ];
		return ($lease->{grant}{done}, $#$lines - 1, $#$lines - 4);
	} ],
	'a write that is fenced off in the middle of a lease' => [ 'vanish', sub {
		my ($known, $lines) = @_;
		my $lease = one_of(grep { calm($known, $_->{called}, $_->{until}) } leases($known));

		push @$lines,
			[ $lease->{ended} + 1, "call $lease->{client} 900001 write key=$lease->{key} version=$lease->{version}", "client-$lease->{client}" ],
			[ $lease->{believed} - 1, "done $lease->{client} 900001 write fenced", "client-$lease->{client}" ];
		return ($lease->{grant}{done}, $#$lines - 1, $#$lines);
	} ],
	'a refresh that is answered lost in the middle of a lease' => [ 'vanish', sub {
		my ($known, $lines) = @_;
		my $lease = one_of(grep { calm($known, $_->{called}, $_->{until}) && $_->{until} - $_->{ttl} * 100 > $_->{ended} + 10 } leases($known));

		push @$lines,
			[ $lease->{ended} + 1, "call $lease->{client} 900001 refresh key=$lease->{key} version=$lease->{version} ttl=5000", "client-$lease->{client}" ],
			[ $lease->{ended} + 2, "done $lease->{client} 900001 refresh lost", "client-$lease->{client}" ];
		return ($lease->{grant}{done}, $#$lines - 1, $#$lines);
	} ],
	'a refresh that brings a lease back' => [ 'revive', sub {
		my ($known, $lines) = @_;
		my $release = one_of(grep { $_->{outcome} eq 'released' && $_->{ended} < 6_000_000 } @{ $known->{ops} });

		push @$lines,
			[ $release->{ended} + 1, "call $release->{client} 900001 refresh key=$release->{key} version=$release->{version} ttl=5", "client-$release->{client}" ],
			[ $release->{ended} + 1, "done $release->{client} 900001 refresh ok", "client-$release->{client}" ];
		return ($release->{done}, $#$lines - 1, $#$lines);
	} ],
	'an acknowledged write that is missing' => [ 'outcome', sub {
		my ($known, $lines) = @_;
		my $key = one_of(keys %{ $known->{rows} });
		my $row = $known->{rows}{$key}[-1];
		my $op = one_of(grep { $_->{outcome} eq 'ok' && $_->{row} && $_->{row} == $row->{line} } @{ $known->{ops} });

		$lines->[ $row->{line} ] = undef;
		return ($op->{call}, $op->{done});
	} ],
	'a write that is there twice' => [ 'outcome', sub {
		my ($known, $lines) = @_;
		my $key = one_of(keys %{ $known->{rows} });
		my $last = $known->{rows}{$key}[-1];
		my $n = $last->{n} + 1;

		push @$lines, [ @{ $lines->[ $last->{line} ] } ];
		$lines->[-1][1] =~ s/ n=\d+/ n=$n/;
		return ($last->{line}, $#$lines);
	} ],
	'an older token in the register' => [ 'fence', sub {
		my ($known, $lines) = @_;
		my $key = one_of(grep { $known->{rows}{$_}[0]{token} < $known->{rows}{$_}[-1]{token} } grep { /^k/ } keys %{ $known->{rows} });
		my ($old, $last) = @{ $known->{rows}{$key} }[ 0, -1 ];
		my $n = $last->{n} + 1;
		my $end = $lines->[ $last->{line} ][0];

		push @$lines,
			[ 1, 'begin 9999', 'client-9999' ],
			[ $end - 3, "call 9999 1 write key=$key version=$old->{token}", 'client-9999' ],
			[ $end - 2, "done 9999 1 write ok n=$n", 'client-9999' ],
			[ $end - 1, 'end 9999', 'client-9999' ],
			[ $end, "final register key=$key n=$n token=$old->{token} client=9999 op=1", 'final' ];
		return ($last->{line}, $#$lines, $#$lines - 2);
	} ],
	'a token that was overtaken by a grant' => [ 'fence', sub {
		my ($known, $lines) = @_;
		my $key = one_of(keys %{ $known->{rows} });
		my $last = $known->{rows}{$key}[-1];
		my $n = $last->{n} + 1;
		my $version = (sort { $b <=> $a } map { $_->{version} } grep { $_->{outcome} eq 'granted' } @{ $known->{ops} })[0] + 5;
		my $end = $lines->[ $last->{line} ][0];

		push @$lines,
			[ 1, 'begin 9999', 'client-9999' ],
			[ $end - 7, "call 9999 1 acquire key=$key owner=new ttl=1 wait=0", 'client-9999' ],
			[ $end - 6, "done 9999 1 acquire granted version=$version", 'client-9999' ],
			[ $end - 5, "call 9999 2 write key=$key version=$last->{token}", 'client-9999' ],
			[ $end - 4, 'done 9999 2 write unknown', 'client-9999' ],
			[ $end - 1, 'end 9999', 'client-9999' ],
			[ $end, "final register key=$key n=$n token=$last->{token} client=9999 op=2", 'final' ];
		return ($#$lines, $#$lines - 3, $#$lines - 4);
	} ],
	'a gap in the register' => [ 'fence', sub {
		my ($known, $lines) = @_;
		my $key = one_of(grep { @{ $known->{rows}{$_} } > 2 } keys %{ $known->{rows} });
		my @rows = @{ $known->{rows}{$key} };
		my $first = 1 + int rand(@rows - 1);

		foreach my $row (@rows[ $first .. $#rows ])
		{
			my ($op) = grep { $_->{row} && $_->{row} == $row->{line} } @{ $known->{ops} };

			$lines->[$_][1] =~ s/ n=(\d+)/' n=' . ($1 + 1)/e foreach $row->{line}, $op->{done} // ();
		}
		return ($rows[ $first - 1 ]{line}, $rows[$first]{line});
	} ],
	'a fenced write in the register' => [ 'outcome', sub {
		my ($known, $lines) = @_;
		my $op = one_of(grep { $_->{outcome} eq 'fenced' } @{ $known->{ops} });
		my $n = @{ $known->{rows}{ $op->{key} } // [] } + 1;
		my $end = (sort { $b <=> $a } map { $_->[0] } @$lines)[0];

		push @$lines, [ $end, "final register key=$op->{key} n=$n token=$op->{version} client=$op->{client} op=$op->{number}", 'final' ];
		return ($op->{call}, $op->{done}, $#$lines);
	} ],
	'an answer that is missing' => [ 'outcome', sub {
		my ($known, $lines) = @_;
		my $op = one_of(grep { $_->{ended} && !$known->{killed}{ $_->{client} } } @{ $known->{ops} });

		$lines->[ $op->{done} ] = undef;
		return ($op->{call});
	} ],
	'two answers' => [ 'outcome', sub {
		my ($known, $lines) = @_;
		my $op = one_of(grep { $_->{ended} } @{ $known->{ops} });

		push @$lines, [ $op->{ended} + int rand 1000, "done $op->{client} $op->{number} $op->{kind} unknown", "client-$op->{client}" ];
		return ($op->{call}, $op->{done}, $#$lines);
	} ],
	'a call that nobody answers for long' => [ 'starve', sub {
		my ($known, $lines) = @_;
		my ($healthy) = map { $_->[0] } grep { $_->[1] eq 'healthy' } @$lines;
		my $op = one_of(grep { $_->{called} > $healthy + 1_000_000 && $_->{called} < $healthy + 5_000_000 } @{ $known->{ops} });

		push @$lines,
			[ $op->{called}, "call $op->{client} 900001 release key=$op->{key} version=1", "client-$op->{client}" ],
			[ $op->{called} + 5_000_001, "done $op->{client} 900001 release not_held", "client-$op->{client}" ];
		return ($#$lines - 1, $#$lines);
	} ],
	'a version at the end that is too low' => [ 'versions', sub {
		my ($known, $lines) = @_;
		my ($grant) = sort { $b->{version} <=> $a->{version} } grep { $_->{outcome} eq 'granted' && $_->{slots} == 1 && calm($known, $_->{called}, $_->{called}) } @{ $known->{ops} };
		my ($i) = grep { $lines->[$_][1] =~ /^final version key=$grant->{key} / } 0 .. $#$lines;
		my $version = $grant->{version} - 5;

		$lines->[$i][1] =~ s/version=\d+/version=$version/;
		return ($i);
	} ],
	'a leak' => [ 'leaks', sub {
		my ($known, $lines) = @_;
		my $i = one_of(grep { $lines->[$_][1] =~ /^final count/ } 0 .. $#$lines);

		$lines->[$i][1] =~ s/value=0/value=1/;
		return ($i);
	} ]);

my %found;
foreach my $seed (1 .. 4)
{
	my $mode = $seed % 2 ? 'sync' : 'async';
	my @lines = simulate(seed => $seed, mode => $mode, seconds => 10, clients => 6);
	my ($status, $out) = check(\@lines, @at_random);
	my $known = know(@lines);

	is($status, 0, "seed $seed, $mode: legal") or diag($out);
	srand($seed);
	foreach my $name (sort keys %harm)
	{
		my ($property, $harm) = @{ $harm{$name} };
		my @harmed = map { [@$_] } @lines;
		my @show;

		# what a failover may lose is not a violation
		next if $mode eq 'async' && $property =~ /^(?:overlap|vanish)$/ || $mode eq 'async' && $name =~ /missing|overtaken|too low/;
		@show = $harm->($known, \@harmed) or next;
		my @texts = map { "$_->[0] $_->[1]" } @harmed[ grep { $harmed[$_] } @show ];

		($status, $out) = check([ grep { defined } @harmed ], @at_random, '--limit', 1000);
		my ($paragraph) = grep {
			my $text = $_;
			!grep { index($text, "    $_\n") < 0 } @texts
		} $out =~ /^(violation of $property:\n(?: .*\n)*)/mg;

		$found{$name}++ if $status == 1 && $paragraph;
		ok($status == 1 && $paragraph, "seed $seed, $mode: $property: $name") or diag("$status\n" . join("\n", @texts) . "\n$out");
	}
}
is(join(' ', grep { !$found{$_} } sort keys %harm), '', 'each kind of harm was done');

# What an asynchronous failover loses is reported if nothing may be lost.
my $losses = 0;
foreach my $seed (11 .. 14)
{
	my @lines = simulate(seed => $seed, mode => 'async');

	is((check(\@lines, @at_random))[0], 0, "seed $seed: what an asynchronous failover loses");
	$_->[1] =~ s/mode async/mode sync/, $_->[1] =~ s/lost=1/lost=0/ foreach @lines;
	$losses++ if (check(\@lines, @at_random))[0] == 1;
}
cmp_ok($losses, '>', 0, 'is found where nothing may be lost');

done_testing();
