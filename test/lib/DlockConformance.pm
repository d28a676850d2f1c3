# Plays the scenarios of test/conformance with the clients of all languages, whose README says what all of this means.
#
#   conformance('basics');      all scenarios of that file, or of several ([...]), and done_testing()
#   packages()                  the languages whose packages are set up
#
# DLOCK_LANGUAGE_DIR is the folder that scripts/test has set the languages up in.  A language that is not there is skipped.

package DlockConformance;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename;
use FindBin;
use IPC::Run;
use JSON::PP;
use Test::More;
use Time::HiRes qw(usleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use DlockBouncer;
use DlockClient;
use DlockProxy;
use DlockTest;

our @EXPORT = qw(conformance packages);

my $root = "$FindBin::RealBin/../../..";
my %unit = (ms => 1, s => 1000, min => 60_000, h => 3_600_000);
my %numbers = map { $_ => 1 } qw(timeout pool ttl wait slots priority cleanup at_least delay max_hold n per);

# The servers, which all languages share: of them, "node" is the one in use
my (%shared, @languages);

#
# Scenarios
#

sub scenarios
{
	my ($file) = @_;
	my @scenarios;

	foreach (split /\n/, slurp_file("$root/test/conformance/$file"))
	{
		next if /^\s*(#|$)/;
		if (/^scenario: (.*)/) { push @scenarios, { title => $1, steps => [], without => {}, needs => [] }; }
		elsif (/^needs (.*)/) { push @{ $scenarios[-1]{needs} }, split ' ', $1; }
		elsif (/^without (.*?): (.*)/) { $scenarios[-1]{without}{$_} = $2 foreach split ' ', $1; }
		elsif (/^\s+(\S.*?)\s*$/) { push @{ $scenarios[-1]{steps} }, steps($1); }
		else { die "$file: what is \"$_\"?"; }
	}
	return @scenarios;
}

# One line is several steps if it has {1..n}, and the answers are waited for at its end.
sub steps
{
	my ($line) = @_;
	my $expected = $line =~ s/\s*->\s*([^>]*)$// ? $1 : undef;

	$line =~ s/(\w)\*(\d+)/$1 x $2/e;
	my ($from, $to) = $line =~ /\{(\d+)\.\.(\d+)\}/;
	return map { { text => defined $from ? $line =~ s/\{.*?\}/$_/r : $line, expected => $expected } } ($from // 1) .. ($to // 1);
}

# Names and values: name=value, with times in ms
sub options
{
	my (@words) = @_;
	my %options;

	foreach (@words)
	{
		/^(\w+)=(.*)$/s or die "\"$_\" is not name=value";
		my ($name, $value) = ($1, $2);

		$value = $1 * $unit{$2} if $value =~ /^(-?\d+)(ms|s|min|h)$/;
		$value = $value + 0 if $numbers{$name};
		$value = JSON::PP::true if $value eq 'true';
		$options{$name} = $value;
	}
	return %options;
}

#
# Languages.  Each is an object: driver, database, proxy, variables.
#

sub new_language
{
	my ($name, @command) = @_;
	my $self = bless { name => $name, command => \@command, id => 0 }, __PACKAGE__;

	$shared{node}->safe_psql('postgres', "CREATE DATABASE $name");
	$shared{node}->safe_psql($name, $_)
	  foreach "CREATE EXTENSION $shared{extension}", 'CREATE TABLE journal (line text)',
	  'GRANT ALL ON journal TO app, stranger';
	$self->{proxy} = DlockProxy->new($shared{node}->port);
	return $self;
}

# The languages that are set up, as [name, client/NAME/check, folder]; for the others, a result says that they are skipped.
sub packages
{
	my @found;

	foreach my $check (sort glob "$root/client/*/check")
	{
		my $name = basename(dirname($check));
		my $folder = ($ENV{DLOCK_LANGUAGE_DIR} // '/nowhere') . "/$name";

		if (-e "$folder/drivers") { push @found, [ $name, $check, $folder ]; }
		else
		{
		  SKIP: { skip "$name is not set up (scripts/test --only languages)", 1; }
		}
	}
	return @found;
}

sub drivers
{
	my @found = ([ 'c', "$root/test/lib/client/conformance" ]);

	foreach (packages())
	{
		my ($name, $check, $folder) = @$_;

		push @found, map { [ $_, $check, 'driver', $folder, $_ ] } split ' ', slurp_file("$folder/drivers");
	}
	return @found;
}

sub database
{
	my ($self) = @_;

	$self->{session} //= session($shared{node}, $self->{name});
	return $self->{session};
}

# The variables of this scenario in a query
sub filled
{
	my ($self, $text) = @_;

	$text =~ s/\$(\w+)/$self->{variables}{$1} \/\/ die "\$$1 has no value"/ge;
	return $text;
}

sub sql
{
	my ($self, $query) = @_;
	my $answer = ask($self->database, $self->filled($query) . ';');

	die $self->{session}{stderr} if $self->{session}{stderr} =~ /ERROR|FATAL/;
	return $answer // '';
}

# A value as it was expected, or "$name": the same as last time.
sub expect
{
	my ($self, $what, $expected, $value) = @_;

	$value //= '';
	$value = join ',', @$value if ref $value eq 'ARRAY';
	if ($expected =~ /^\$(\w+)$/)
	{
		$self->{variables}{$1} //= $value;
		$expected = $self->{variables}{$1};
	}
	die "$what: \"$value\", not \"$expected\"\n" unless "$value" eq $expected;
	return;
}

sub start_driver
{
	my ($self) = @_;

	return if $self->{run};
	@$self{qw(in out err)} = ('', '', '');
	$self->{timer} = IPC::Run::timer($PostgreSQL::Test::Utils::timeout_default);
	$self->{run} = IPC::Run::start($self->{command}, '<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err}, $self->{timer});
	return;
}

sub stop_driver
{
	my ($self) = @_;

	return unless $self->{run};
	kill 'CONT', map { $_->{PID} } @{ $self->{run}{KIDS} };
	eval { $self->{run}->kill_kill(grace => 0); };
	note "$self->{name}: $_" foreach split /\n/, $self->{err};
	delete $self->{run};
	return;
}

sub read_lines
{
	my ($self) = @_;

	while ($self->{out} =~ s/^([^\n]*)\n//)
	{
		my $said = eval { decode_json($1) } or die "the driver says: $1";

		note "$self->{name}: $1";
		if (exists $said->{event}) { push @{ $self->{events} }, $said if $said->{event} =~ /^(lost|asked)$/; }
		else { $self->{answers}{ $said->{id} } = $said; }
	}
	return;
}

sub await
{
	my ($self, $what, $found) = @_;

	$self->{timer}->start($PostgreSQL::Test::Utils::timeout_default);
	for (;;)
	{
		$self->read_lines;
		my $it = $found->();
		if (defined $it) { $self->{timer}->reset; return $it; }
		die "the driver is gone while waiting for $what: $self->{err}" unless $self->{run}->pumpable;
		$self->{run}->pump;
		die "there is no sign of $what\n" if $self->{timer}->is_expired;
	}
	return;
}

# Send a command; its id.
sub command
{
	my ($self, %command) = @_;

	$self->{in} .= encode_json({ id => ++$self->{id}, %command }) . "\n";
	note "$self->{name}: " . encode_json(\%command) if length encode_json(\%command) < 500;
	$self->{run}->pump_nb while length $self->{in} && $self->{run}->pumpable;
	return $self->{id};
}

sub check_answer
{
	my ($self, $id, $expected) = @_;
	my ($result, @fields) = split ' ', $expected;
	my $said = $self->await('an answer', sub { return delete $self->{answers}{$id} });

	$self->expect('the result' . ($said->{message} ? " ($said->{message})" : ''), $result, $said->{result});
	foreach (@fields)
	{
		my ($name, $value) = /^(\w+)=(.*)$/;
		$self->expect($name, $value, $said->{$name});
	}
	return;
}

sub open_client
{
	my ($self, $client, %options) = @_;
	my $to = delete $options{through};

	$self->start_driver;
	$self->{clients}{$client} = 1;
	my $port = !$to ? $shared{node}->port : $to eq 'proxy' ? $self->{proxy}->port : $shared{bouncer}->port;
	return $self->command(
		do => 'open',
		client => $client,
		host => '127.0.0.1',
		port => $port + 0,
		dbname => $self->{name},
		user => 'app',
		timeout => 10_000,
		pool => 3,
		%options);
}

# "a acquire key ttl=1s": the beginning of a step of this language; its end is a sub.
sub client_step
{
	my ($self, $client, $do, $rest, $expected) = @_;
	my $label = $rest =~ s/(?:^|\s)&(\w+)$// ? $1 : undef;
	my %command = (do => $do, client => $client);

	if ($do eq 'open')
	{
		my $through = $rest =~ s/^through (\w+)\s*// ? $1 : undef;

		my $id = $self->open_client($client, options(split ' ', $rest), through => $through);
		return sub { $self->check_answer($id, $expected // 'ok'); };
	}
	if ($do eq 'hears')
	{
		my ($event, $lock, @fields) = split ' ', $rest;

		return sub { $self->check_event($client, $event, $lock, @fields); };
	}
	if (!defined $self->{clients}{$client})
	{
		$self->check_answer($self->open_client($client), 'ok');
	}
	if ($do eq 'fenced')
	{
		@command{qw(lock sql)} = split ' ', $rest, 2;
	}
	else
	{
		my ($lock, @words) = split ' ', $rest;
		%command = (%command, options(@words));
		$command{lock} = $lock if defined $lock;
	}
	if ($do eq 'limit') { $command{key} = delete $command{lock}; }
	if ($do eq 'acquire')
	{
		$command{keys} = [ split /,/, $command{lock} ];
		$command{lock} = delete $command{as} // $command{lock};
		$command{wait} //= 0;
		$command{ttl} //= 20_000;
	}
	$self->{clients}{$client} = 0 if $do eq 'close' || ($do eq 'collect' && !defined $command{lock});

	my $id = $self->command(%command);
	if (defined $label)
	{
		push @{ $self->{labels}{$label} }, $id;
		return sub { };
	}
	return sub { $self->check_answer($id, $expected); };
}

sub check_event
{
	my ($self, $client, $event, $lock, @fields) = @_;
	my $said = $self->await(
		"$event of $lock",
		sub {
			my ($found) = grep { "$_->{client} $_->{event} $_->{lock}" eq "$client $event $lock" } @{ $self->{events} };

			@{ $self->{events} } = grep { $_ != $found } @{ $self->{events} } if $found;
			return $found;
		});

	foreach (@fields)
	{
		my ($name, $value) = /^(\w+)=(.*)$/;
		$self->expect("$event of $lock, $name", $value, $said->{$name});
	}
	return;
}

sub until
{
	my ($self, $query, $expected) = @_;
	my $answer;

	for (my $i = 0; $i < 10 * $PostgreSQL::Test::Utils::timeout_default; $i++)
	{
		$answer = $self->sql($query);
		return if $answer eq $self->filled($expected);
		usleep(100_000);
	}
	die "it remains \"$answer\"\n";
}

# How many statements of this language the log has since the mark.
sub logged
{
	my ($self, $pattern, $operator, $n) = @_;
	my $count = grep { / \Q$self->{name}\E LOG:  (statement|execute [^:]*):.*$pattern/ }
	  split /\n/, slurp_file($shared{node}->logfile, $self->{mark});

	die "$count statements match\n"
	  unless $operator eq '<=' ? $count <= $n : $operator eq '>=' ? $count >= $n : $count == $n;
	return;
}

# The beginning of a step; its end, if there is more to do, is a sub.
sub step
{
	my ($self, $step) = @_;
	my $expected = $step->{expected};
	my ($verb, $rest) = split ' ', $step->{text}, 2;

	if ($verb eq 'sql') { return sub { $self->expect('the answer', $expected, $self->sql($rest)); }; }
	if ($verb eq 'until') { return sub { $self->until($rest, $expected); }; }
	if ($verb eq 'answer')
	{
		return sub { $self->check_answer($_, $expected) foreach @{ delete $self->{labels}{$rest} }; };
	}
	if ($verb eq 'pending')
	{
		$self->{run}->pump_nb;
		$self->read_lines;
		die "\"$rest\" has an answer\n" if grep { exists $self->{answers}{$_} } @{ $self->{labels}{$rest} };
		return;
	}
	if ($verb eq 'driver')
	{
		$self->{run}->signal($rest eq 'stop' ? 'STOP' : 'CONT');
		return;
	}
	if ($verb eq 'proxy')
	{
		my ($do, $text) = split ' ', $rest, 2;

		return sub { $self->{proxy}->eaten; }
		  if $do eq 'eaten';
		$self->{proxy}->$do($text);
		return;
	}
	if ($verb eq 'mark') { $self->{mark} = -s $shared{node}->logfile; return; }
	if ($verb eq 'logged')
	{
		my ($pattern, $operator, $n) = $rest =~ /^(.*) ([<>]?=) (\d+)$/;

		return sub { $self->logged($pattern, $operator, $n); };
	}
	my ($do, $more) = split ' ', $rest, 2;
	return $self->client_step($verb, $do, $more // '', $expected);
}

# Steps of all languages at once.
sub shared_step
{
	my ($text) = @_;
	my $node = $shared{node};

	end_session(map { delete $_->{session} // () } @languages);
	if ($text eq 'server restart') { $node->restart; }
	elsif ($text eq 'server crash') { $node->stop('immediate'); $node->start; }
	elsif ($text eq 'server stop') { $node->stop('immediate'); }
	elsif ($text eq 'standby serve')
	{
		$shared{node} = $shared{standby};
		$_->{proxy}->to($shared{node}->port) foreach @languages;
	}
	elsif ($text eq 'standby promote') { promote($node); }
	else { die "what is \"$text\"?"; }
	return;
}

#
# Playing
#

# What a scenario leaves behind must not reach the next one.
sub clean
{
	my ($self) = @_;

	$self->{proxy}->go;
	if ($self->{run})
	{
		$self->check_answer($self->command(do => 'close', client => $_), 'ok') foreach sort grep { $self->{clients}{$_} } keys %{ $self->{clients} };
		# what the clients say until they are closed is the business of this scenario
		my @lost = grep { !($_->{event} eq 'lost' && $_->{reason} eq 'closed') } @{ $self->{events} };
		die "was told: $_->{event} $_->{lock} ($_->{reason})\n" foreach @lost;
	}
	return;
}

sub play
{
	my ($scenario) = @_;
	my (%failed, @players);

	foreach my $self (@languages)
	{
		my $why = $scenario->{without}{ $self->{name} } // $scenario->{without}{ $self->{name} =~ s/_.*//r };

		@$self{qw(variables labels answers events clients)} = ({}, {}, {}, [], {});
		if (defined $why)
		{
		  SKIP: { skip "$self->{name}: $scenario->{title}: $why", 1; }
		}
		else { push @players, $self; }
	}

	# a failure ends the scenario for this language
	my $try = sub {
		my ($self, $step, $code) = @_;

		return if $failed{ $self->{name} };
		return if eval { $code->(); 1 };
		$failed{ $self->{name} } = "$step: $@";
		return;
	};
	foreach my $step (@{ $scenario->{steps} })
	{
		my %ends;

		note $step->{text};
		if ($step->{text} =~ /^(server|standby) /) { shared_step($step->{text}); next; }
		foreach my $self (@players)
		{
			$try->($self, $step->{text}, sub { $ends{ $self->{name} } = $self->step($step); });
		}
		foreach my $self (grep { $ends{ $_->{name} } } @players)
		{
			$try->($self, $step->{text}, $ends{ $self->{name} });
		}
	}
	foreach my $self (@players)
	{
		$try->($self, 'the end', sub { $self->clean; });
		ok(!$failed{ $self->{name} }, "$self->{name}: $scenario->{title}");
		if ($failed{ $self->{name} })
		{
			diag("$self->{name}: $failed{$self->{name}}");
			$self->stop_driver;
			$self->{proxy}->go;
		}
		$self->sql("SELECT dlock_force_release(key, 'end') FROM dlock_locks");
		$self->sql('TRUNCATE journal');
	}
	return;
}

sub conformance
{
	my ($files, %params) = @_;
	my $wanted = $ENV{DLOCK_SCENARIO} // '';
	my @scenarios = grep { $_->{title} =~ /$wanted/ } map { scenarios($_) } ref $files ? @$files : $files;

	client_build('tests');
	$shared{extension} = $params{extension} // 'dlock';
	$shared{node} = new_node(
		'conformance',
		bare => defined $params{extension},
		streaming => $params{standby},
		conf => "listen_addresses = '127.0.0.1'\nmax_worker_processes = 40\nmax_connections = 200\nlog_statement = all\nlog_line_prefix = '%m [%p] %q%d '\n"
		  . ($params{conf} // ''));
	$shared{node}->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE ROLE stranger LOGIN');
	@languages = map { new_language(@$_) } drivers();

	my @features = split ' ', $shared{node}->safe_psql($languages[0]{name}, q{SELECT array_to_string(features, ' ') FROM dlock_features()});
	if ($params{standby})
	{
		$shared{standby} = new_standby($shared{node}, 'standby');
		make_synchronous($shared{node}, $shared{standby});
	}
	$shared{bouncer} = DlockBouncer->new(
		user => 'app',
		target => 'host=' . $shared{node}->host . ' port=' . $shared{node}->port,
		databases => [ map { $_->{name} } @languages ],
		pool_size => 5,
		listen => '127.0.0.1',
		more => 'max_client_conn = 2000') if $params{bouncer};

	foreach my $scenario (@scenarios)
	{
		my ($missing) = grep { my $it = $_; !grep { $_ eq $it } @features } @{ $scenario->{needs} };

		if (defined $missing)
		{
		  SKIP: { skip "$scenario->{title}: the server has no $missing", 1; }
		}
		else { play($scenario); }
	}

	$_->stop_driver foreach @languages;
	end_session(map { $_->{session} // () } @languages);
	delete $shared{bouncer};    # the global destruction could wait for it for ever
	done_testing();
	return;
}

END
{
	my $status = $?;

	$_->stop_driver foreach @languages;
	$? = $status;
}

1;
