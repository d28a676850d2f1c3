# The client in a database whose owner is hostile: libdlock and the command line
# run as superuser, and none of the owner's objects is reached.
#
# test/lib/DlockHostile.pm says which there are.  Everything runs directly, and
# through PgBouncer, where libdlock cannot set a search_path of its own.  The
# list of commands is the command line's own, that of calls the library's.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockBouncer;
use DlockCli;
use DlockClient;
use DlockHostile;
use DlockTest;

client_build('all', 'tests');
delete $ENV{PGAPPNAME};		# libdlock is known by its own name in the log

my $node = new_node(
	'hostile',
	bare => 1,
	initdb => [ '--locale=C', '--encoding=UTF8' ],
	conf => "max_connections = 60\nlog_statement = all\n");

#
# CREATE EXTENSION among them
#

hostile_database($node, 'trap');

sub install
{
	my ($database, $schema, $template) = @_;

	$node->safe_psql('postgres',
		"CREATE DATABASE $database TEMPLATE $template OWNER $DlockHostile::owner;"
		  . "ALTER DATABASE $database SET search_path = public, pg_catalog");
	return $node->psql($database,
		"\\set VERBOSITY verbose\n" . ($schema eq 'public' ? '' : "CREATE SCHEMA $schema;")
		  . "DROP EXTENSION IF EXISTS dlock; CREATE EXTENSION dlock SCHEMA $schema");
}

my $start = -s $node->logfile;
is((install('in_public', 'public', 'trap'))[0], 0, 'created in a schema that is full of them');
is((install('in_locks', 'locks', 'trap'))[0], 0, 'created in a schema of its own');
is(reached($node, $start), '', 'none is reached');

# what the first grant has to leap over, in SQL of the extension's own
plain_sql($node, $_, "SELECT setval('dlock.versions', 5), setval('dlock.incarnation', 1)")
  foreach 'in_public', 'in_locks';

cmp_ok(hostile_overloads($node, 'in_public'), '>', 40, 'functions beside those of the extension');
cmp_ok(hostile_copies($node, 'in_locks'), '>', 10, 'functions like those of the extension');
cmp_ok(hostile_overloads($node, 'in_locks'), '>', 40, 'and others');

# planted before there is an extension
foreach my $case (
	[ 'the same functions', 'in_locks', '42723' ],
	[ 'functions of the same names', 'in_public', '42725' ])
{
	my ($what, $template, $code) = @$case;

	$start = -s $node->logfile;
	my ($rc, $out, $err) = install('planted', 'public', $template);
	like($err, qr/ERROR:  $code: /, "$what in the schema: refused");
	is(reached($node, $start), '', "$what in the schema: none is reached");
	is(plain_sql($node, 'planted', "SELECT count(*) FROM pg_namespace WHERE nspname = 'dlock'"),
		0, "$what in the schema: nothing is left");
	$node->safe_psql('postgres', 'DROP DATABASE planted');
}

#
# Every command, and every call
#

my $user = $node->safe_psql('postgres', 'SELECT current_user');
my $bouncer = DlockBouncer->new(
	user => $user,
	databases => [ 'in_public', 'in_locks' ],
	target => 'host=' . $node->host . ' port=' . $node->port);
my (%commands, %calls);

sub commands
{
	my ($place) = @_;
	my $env = { env => { PGHOST => $place->host, PGPORT => $place->port, PGDATABASE => $place->{database} } };
	my $run = sub {
		my ($expected, @args) = @_;
		my ($code, $out, $err) = dlock(@args, $env);

		$commands{ $args[0] }++;
		is($code, $expected, "$place->{name}: dlock @args") or diag($err);
		return $out =~ s/\n$//r;
	};
	my $in_background = sub { $commands{ $_[0] }++; return start_dlock(@_, $env); };
	my $becomes = sub { plain_poll($node, $place->{database}, $_[0]); };
	my $locks = "$place->{schema}.dlock_locks";

	# if these do not work, nothing will
	my $version = $run->(0, 'acquire', 'a', '--ttl=1h', '--cleanup=1h', '--owner=me', '--value=text');
	return unless $version =~ /^\d+$/ && $run->(0, 'exec', 'b', '--', 'echo', 'runs') eq 'runs';

	# a command that is renewed, and one that is asked to yield; behind a pooler it learns of that at its renewal
	my $renewed = $in_background->('exec', 'long', '--ttl=20s', '--', 'sleep', '600');
	my $yields = $in_background->('exec', 'yields', '--ttl=1min', '--cleanup=10min', '--', 'sleep', '600');
	$becomes->("SELECT count(*) = 2 FROM $locks WHERE key <> 'a'");
	my $higher = $in_background->('acquire', 'yields', '--priority=5', '--wait=10min', '--ttl=1h');

	$run->(75, 'acquire', 'a');
	$run->(75, 'acquire', 'a', '--wait=10ms');
	is($run->(0, 'check', 'a', $version), 'held', 'check');
	$run->(0, 'refresh', 'a', $version, '--ttl=1h');
	$run->(0, 'refresh', 'a', $version, '--json');

	my $watcher = $in_background->('watch', 'a', '--count=2');
	my $observer = $in_background->('elect', 'a', '--observe', '--count=2');
	my $waiter = $in_background->('acquire', 'a', '--priority=1', '--wait=10min', '--ttl=1h');
	$becomes->("SELECT count(*) = 3 FROM $place->{schema}.dlock_waiters WHERE key = 'a'");
	is($run->(0, 'check', 'a', $version), 'preempting', 'check');
	like($run->(0, 'info', 'a'), qr/^requested by .*priority 1/m, 'info: who asks');
	like($run->(0, 'ls'), qr/^a +$version +preempting /m, 'ls');
	like($run->(0, 'ls', 'a*'), qr/^a +$version /m, 'ls of a pattern');
	like($run->(0, 'ls', '--waiters'), qr/^a +1 +exclusive +1 /m, 'ls of those who wait');
	like($run->(0, 'top', '--once'), qr/^HOT KEY .*^a +1 /ms, 'top');
	$run->(0, 'top', '--json');
	like($run->(0, 'stats'), qr/^grants +\d/m, 'stats');
	$commands{health}++;
	cmp_ok((dlock('health', $env))[0], '<', 3, "$place->{name}: dlock health");
	# it wants a router, and no pooler; 802_router.pl has these
	$commands{shard}++;
	like((dlock('shard', 'list', $env))[0], qr/^(64|78)$/, "$place->{name}: dlock shard");
	is($run->(0, 'release', 'a', $version), 'released', 'release');
	my ($code, $next) = end_dlock($waiter);
	is($code, 0, 'it is the turn of the one that waits');
	is((end_dlock($watcher))[0], 0, 'watch');
	is((end_dlock($observer))[0], 0, 'elect --observe');
	is($run->(0, 'force-release', 'a', '--reason=test'), 0 + $next, 'force-release');
	is($run->(0, 'elect', 'a', '--', 'echo', 'leads'), 'leads', 'elect');
	$run->(0, 'release', 'h', 0 + $run->(0, 'handover', 'h', 0 + $run->(0, 'acquire', 'h', '--ttl=1h'), '--to=next'));
	is($run->(0, 'exec', 'rate', '--rate=1000/1ms', '--wait=10min', '--', 'echo', 'runs'), 'runs', 'exec --rate');

	# several holders, several keys, how a grant ends, and a command within a command
	is($run->(0, 'exec', 'k', '--slots=3', '--at-least=10ms', '--delay=10ms', '--', 'echo', 'runs'), 'runs', 'exec --slots');
	is($run->(0, 'exec', 'r', '--shared', '--lazy', '--wait=10min', '--', 'echo', 'runs'), 'runs', 'exec --shared');
	is($run->(0, 'exec', 'm', '--and=n', '--', 'echo', 'runs'), 'runs', 'exec --and');
	is($run->(0, 'exec', 'm', '--and=n', '--wait=10min', '--', dlock_program(), 'exec', 'n', '--', 'echo', 'runs'), 'runs', 'exec within exec');
	$run->(0, 'ls', '--holders');

	$becomes->("SELECT refreshed_at > acquired_at FROM $locks WHERE key = 'long'");
	kill 'TERM', $renewed->{pid};
	is((end_dlock($renewed))[0], 143, 'exec: renewed, and ended by a signal');
	is((end_dlock($yields))[0], 76, 'exec: asked to yield');
	($code, $next) = end_dlock($higher);
	is($code, 0, 'the one that asked has it');
	$run->(0, 'release', 'yields', 0 + $next);
	return;
}

sub calls
{
	my ($place) = @_;
	my $conninfo = conninfo($place, dbname => $place->{database});
	my $driver = driver($conninfo);
	my $call = sub {
		my ($expected, $command, @args) = @_;
		my $answer = $driver->ask($command, @args);

		$calls{$command}++;
		is($answer->{status}, $expected, "$place->{name}: $command @args") or diag($answer->{message});
		return $answer;
	};

	$call->('ok', 'ping');
	my $lock = $call->('ok', 'acquire', 'a', ttl => 600000, owner => 'me', cleanup => 600000);
	$call->('ok', 'acquire', 'B', wait => 100, ttl => 600000);
	$call->('ok', 'refresh', 'a');
	$call->('ok', 'fence', 'a', owner => $conninfo =~ s/\s+$//r);
	$call->('ok', 'check', 'a');
	$call->('ok', 'check_key', 'a', version => $lock->{version}, owner => 'me');
	$call->('ok', 'refresh_key', 'a', owner => 'me', ttl => 600000);
	is($call->('ok', 'info', 'a')->{version}, $lock->{version}, 'info');
	is($call->('ok', 'list', '*')->{first}, 'B', 'list: in the order of the real collation "C"');
	is($call->('ok', 'list', '?')->{count}, 2, 'list of a pattern');
	is($call->('ok', 'watch', 'a', version => 1, wait => 100)->{version}, $lock->{version}, 'watch');
	$call->('unchanged', 'watch', 'a', version => $lock->{version}, wait => 1);
	$call->('ok', 'observe', 'a', version => 1, wait => 100);
	$call->('ok', 'waiters', '*');
	$call->('ok', 'force_release', 'B', reason => 'test');
	$call->('ok', 'release', 'a');
	$lock = $call->('ok', 'campaign', 'leader', ttl => 600000);
	$call->('ok', 'resign', 'leader');
	$call->('ok', 'acquire', 'forgotten', ttl => 600000);
	$call->('ok', 'release_free', 'forgotten');
	$lock = $call->('ok', 'acquire', 'key', ttl => 600000);
	$call->('ok', 'release_key', 'key', version => $lock->{version});
	$call->('ok', 'acquire', 'blue', ttl => 600000);
	$call->('ok', 'fence_connection', 'blue', owner => $conninfo =~ s/\s+$//r);
	$lock = $call->('ok', 'handover', 'blue', owner => 'green', ttl => 600000);
	$call->('ok', 'handover_key', 'blue', version => $lock->{version}, owner => 'red');
	$call->('ok', 'force_release', 'blue', reason => 'test');
	$call->('ok', 'limit', 'rate', n => 1000, per => 1, wait => 60000);
	$call->('ok', 'all', 'x,y', ttl => 600000, slots => '-1,3');
	$call->('ok', 'all', 'p,q', ttl => 600000, wait => 100);
	is($call->('ok', 'infos', 'x')->{count}, 1, 'infos');
	$lock = $call->('ok', 'acquire', 'kind', ttl => 600000, slots => 5, at_least => 1, lazy => 1);
	$call->('ok', 'acquire', 'kind', slots => 5, reentrant => 1);
	$call->('ok', 'adopt', 'kind', version => $lock->{version}, renew => 1);
	$call->('ok', 'release_all', 'x,y,p,q');
	$call->('ok', 'force_release', 'kind', version => $lock->{version}, reason => 'test');
	$call->('ok', 'acquire', 'session', ttl => 600000, session => 1) if $place->{direct};

	# calls that go together, tickets, and those that are withdrawn
	is($call->('ok', 'flights', 'own', threads => 8, count => 3, ttl => 60000)->{bad}, 0, 'calls that go together');
	is($call->('ok', 'queue', 'queue', threads => 8, count => 2, ttl => 60000, wait => 60000)->{counter}, 16, 'threads that wait');
	is($call->('ok', 'started', 'started', count => 10, ttl => 60000, wait => 60000, value => 'text')->{counter}, 10, 'calls that are started');
	$call->('ok', 'acquire', 'held', ttl => 600000);
	is($call->('ok', 'cancelled', 'held', count => 5, ttl => 60000, wait => -1)->{bad}, 0, 'calls that are cancelled');
	plain_poll($node, $place->{database}, "SELECT count(*) = 0 FROM $place->{schema}.dlock_waiters");
	$call->('busy', 'acquire', 'held', wait => 100);
	$call->('ok', 'release', 'held');
	$driver->finish;

	# what was granted without an answer, and is released for nobody knows of it
	my $proxy = proxy($place);
	my $offset = -s $node->logfile;
	$driver = driver(conninfo($proxy, host => $proxy->{host}, port => $proxy->{port}, dbname => $place->{database}));
	$call->('ok', 'acquire', 'first', ttl => 600000);
	$proxy->stop;
	# long enough to send the request on a busy machine, too: what is not sent is not granted
	$call->('timeout', 'acquire', 'doubt', ttl => 600000, timeout => 3000);
	$proxy->go;
	wait_until('it is released', sub { return slurp_file($node->logfile, $offset) =~ /dlock_release.*unnest/ });
	plain_poll($node, $place->{database}, "SELECT count(*) = 0 FROM $place->{schema}.dlock_locks WHERE key = 'doubt'");
	$call->('ok', 'release', 'first');
	$driver->finish;
	return;
}

my $first = -s $node->logfile;
foreach my $case (
	[ 'in_locks', 'locks', 'through a pooler' ],
	[ 'in_public', 'public', 'through a pooler' ],
	[ 'in_public', 'public', 'directly' ])
{
	my ($database, $schema, $how) = @$case;
	my $place = Place->new(
		direct => $how eq 'directly',
		host => $how eq 'directly' ? $node->host : $bouncer->folder,
		port => $how eq 'directly' ? $node->port : $bouncer->port,
		database => $database,
		schema => $schema,
		name => "$database, $how");

	$start = -s $node->logfile;
	eval { commands($place); 1 } or fail("$place->{name}: $@");
	is(reached($node, $start), '', "$place->{name}: the command line reaches none");
	$start = -s $node->logfile;
	eval { calls($place); 1 } or fail("$place->{name}: $@");
	is(reached($node, $start), '', "$place->{name}: the library reaches none");
}

# and that was everything
my ($help) = (dlock('--help'))[1] =~ /^Commands:\n(.*?)\n\n/ms;
is(join(' ', sort keys %commands), join(' ', sort $help =~ /^  (\S+)/mg), 'every command was run');

my %local = map { $_ => 1 } qw(close event_name free handle_fd handle_process info_free is_owner is_shared key left_ms lib_version list_free lost_detail lost_reason
  open open_options_init_size options_init_size owner reason_name slots status_name ttl_ms version waiters_free);
my %named = (acquire_all => 'all', acquire_start => 'started', release_start => 'started', op_cancel => 'cancelled', get_info => 'info', list_waiters => 'waiters');
my @exported = slurp_file(client_dir() . '/libdlock.map') =~ /^\t\tdlock_(\w+);/mg;
is(join(' ', grep { !$calls{ $named{$_} // $_ } } grep { !$local{$_} } @exported), '', 'every call was made');

# None is missing beside anything that was used: what is qualified in the
# statements is known by its name.
{
	my $log = slurp_file($node->logfile, $first);
	my (%names, %operators);

	foreach my $line (grep { /(?:libdlock|dlock \w+) LOG:  (?:execute|statement)/ } split /\n(?=\d{4}-)/, $log)
	{
		$names{$1}++ while $line =~ /pg_catalog\.(\w+)/g;
		$names{extract}++ if $line =~ /\bEXTRACT\(/;
		$operators{$1}++ while $line =~ /OPERATOR\(pg_catalog\.([^)]+)\)/g;
	}
	cmp_ok(scalar keys %names, '>=', 15, 'functions, types and relations of pg_catalog are used');
	cmp_ok(scalar keys %operators, '>=', 4, 'and operators');
	is( plain_sql(
			$node,
			'in_public',
			'SELECT n FROM unnest($${' . join(',', sort keys %names) . '}$$::text[]) n'
			  . " WHERE 'public'::regnamespace <> ALL (ARRAY("
			  . ' SELECT pronamespace FROM pg_proc WHERE proname = n UNION ALL SELECT typnamespace FROM pg_type WHERE typname = n'
			  . ' UNION ALL SELECT relnamespace FROM pg_class WHERE relname = n))'),
		'',
		'beside each of them is one of the owner of the database');
	is( plain_sql(
			$node,
			'in_public',
			'SELECT n FROM unnest($${"' . join('","', sort keys %operators) . '"}$$::text[]) n'
			  . " WHERE NOT EXISTS (SELECT FROM pg_operator WHERE oprname = n AND oprnamespace = 'public'::regnamespace)"),
		'',
		'beside each operator too');
}

# A search_path that another client of the pooler has left behind.
{
	my $shared = DlockBouncer->new(
		user => $user,
		pool_size => 1,
		databases => ['in_locks'],
		target => 'host=' . $node->host . ' port=' . $node->port);
	my %env = (PGHOST => $shared->folder, PGPORT => $shared->port, PGDATABASE => 'in_locks');

	# each time anew: a client that leaves in the middle takes the connection along
	my $leaves = sub {
		my ($sql) = @_;
		local %ENV = (%ENV, %env);

		return (run_command([ 'psql', '-XAtqc', $sql ]))[0];
	};
	my $after = sub {
		my ($expected, @args) = @_;

		$leaves->('SET search_path = public, pg_catalog');
		my ($code, $out) = dlock(@args, { env => \%env });
		is($code, $expected, "after another client: dlock $args[0]");
		return $out;
	};

	plain_sql($node, 'postgres', 'ALTER DATABASE in_locks RESET search_path');
	$leaves->('SET search_path = public, pg_catalog');
	is($leaves->('SHOW search_path'), 'public, pg_catalog', 'what a client of the pooler sets, the next one has');
	$start = -s $node->logfile;
	my $version = 0 + $after->(0, 'acquire', 'a', '--ttl=1h');
	$after->(0, 'ls');
	$after->(0, 'info', 'a');
	$after->(0, 'refresh', 'a', $version);
	$after->(0, 'release', 'a', $version);
	$after->(0, 'exec', 'a', '--', 'true');
	is(reached($node, $start), '', 'none is reached');
	$after->(64, 'shard', 'list');
	is($leaves->('SHOW search_path'), 'public, pg_catalog', 'and what is refused behind a pooler changes nothing there');
}

# A connection of its own gets a search_path of its own, one of a pooler keeps
# what it has; told by a function in the place of one of the extension's.
plain_sql($node, 'postgres', 'ALTER DATABASE in_locks SET search_path = public, pg_catalog');
plain_sql($node, 'in_locks', <<'END');
CREATE OR REPLACE FUNCTION locks.dlock_check(key text, version bigint DEFAULT NULL, owner text DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS
$$ BEGIN RAISE LOG 'search_path is %', pg_catalog.current_setting('search_path'); RETURN 'held'; END $$
END
foreach my $case ([ $node->host, $node->port, 'pg_catalog, pg_temp' ], [ $bouncer->folder, $bouncer->port, 'public, pg_catalog' ])
{
	my ($host, $port, $path) = @$case;

	$start = -s $node->logfile;
	dlock('check', 'a', 1, { env => { PGHOST => $host, PGPORT => $port, PGDATABASE => 'in_locks' } });
	like(slurp_file($node->logfile, $start), qr/search_path is \Q$path\E\n/, "the search_path is $path");
}

# The roles of the README: one that may use the schema, and create nothing there.
{
	my $env = { env => { PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'in_locks', PGUSER => 'app' } };

	plain_sql($node, 'in_locks', 'CREATE ROLE app LOGIN');
	is((dlock('acquire', 'app', $env))[0], 77, 'a role without a privilege on the schema');
	plain_sql($node, 'in_locks', 'GRANT USAGE ON SCHEMA locks TO app; ALTER ROLE app SET search_path = "$user", public, locks');
	is((dlock('acquire', 'app', $env))[0], 0, 'a role with USAGE on it');
	foreach my $role ('app', $DlockHostile::owner)
	{
		my $rc = $node->psql('in_locks', 'CREATE FUNCTION locks.dlock_release(text) RETURNS text LANGUAGE sql RETURN 1',
			connstr => $node->connstr('in_locks') . " user=$role");

		isnt($rc, 0, "$role can create nothing there");
	}
}

#
# What cannot be kept out: a function with all our arguments and more that have
# defaults.  The calls fail, and say why; and a lock that cannot be renewed is
# given up in time.
#

{
	my $env = { env => { PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'in_public' } };
	my $signature = 'public.dlock_refresh(key text, version bigint, ttl interval, owner text, value text, at_least interval, more integer';
	my ($code, $version) = dlock('acquire', 'a', '--ttl=1h', $env);

	is($code, 0, 'acquired');
	my $run = start_dlock('exec', 'b', '--ttl=15s', '--', 'sleep', '600', $env);
	plain_poll($node, 'in_public', "SELECT count(*) = 1 FROM public.dlock_locks WHERE key = 'b'");
	$start = -s $node->logfile;
	plain_sql($node, 'in_public',
		"CREATE FUNCTION $signature DEFAULT 0) RETURNS timestamptz LANGUAGE sql"
		  . " AS 'SELECT NULL::timestamptz WHERE public.reached(''dlock_refresh'')'",
		"user=$DlockHostile::owner");
	my ($failed, undef, $err) = dlock('refresh', 'a', 0 + $version, $env);
	is($failed, 78, 'an ambiguous call: not ready');
	# from PostgreSQL 19 on with a detail
	like($err, qr/^dlock: error: function public\.dlock_refresh\(.*\) is not unique(?: \([^()]*\))?$/m, 'it says which function');
	like($err, qr/^dlock: hint: .*[Dd]rop .* schema public/m, 'and what to do');
	($failed, undef, $err) = end_dlock($run);
	is($failed, 76, 'a command whose lock cannot be renewed is ended');
	like($err, qr/lock "b" (?:cannot be renewed|is lost: it could not be renewed in time)/, 'with the reason');
	plain_sql($node, 'in_public', "DROP FUNCTION $signature)");
	is((dlock('refresh', 'a', 0 + $version, $env))[0], 0, 'and it continues when the other one is gone');
	is(reached($node, $start), '', 'none is reached');
}

$node->stop;
done_testing();

# What conninfo() and proxy() want to know of a server.
package Place;

sub new { my ($class, %place) = @_; return bless {%place}, $class; }
sub host { return $_[0]{host}; }
sub port { return $_[0]{port}; }
