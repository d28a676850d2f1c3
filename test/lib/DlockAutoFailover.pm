# A cluster of pg_auto_failover: a monitor and two nodes (Debian packages
# postgresql-15-auto-failover and pg-auto-failover-cli).

package DlockAutoFailover;

use strict;
use warnings FATAL => 'all';

use parent -norequire, 'DlockHa';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use DlockHa;
use DlockTest qw(wait_until);

# Settings of the monitor, as docs/failover.md recommends.
our %tuned = (
	'pgautofailover.health_check_period' => 1000,
	'pgautofailover.health_check_timeout' => 1000,
	'pgautofailover.health_check_retry_delay' => 500,
	'pgautofailover.node_considered_unhealthy_timeout' => 3000,
	'pgautofailover.primary_demote_timeout' => 3000,
	'pgautofailover.startup_grace_period' => 2000);

sub missing
{
	my $missing = DlockHa::missing('pg_autoctl');
	my ($sharedir) = PostgreSQL::Test::Utils::run_command([ 'pg_config', '--sharedir' ]);

	return $missing if $missing;
	return -e "$sharedir/extension/pgautofailover.control"
	  ? undef
	  : 'the extension pgautofailover is not there for this PostgreSQL';
}

# Monitor and nodes, synchronous, with dlock in database postgres.
sub new
{
	my ($class, %params) = @_;
	my $self = DlockHa::new($class, 'autofailover', %params);
	my $monitor = $self->new_member("monitor");

	mkdir "$self->{folder}/home" or die "could not make a folder: $!";
	$self->{monitor} = $monitor;
	push @{ $self->{services} }, $monitor;
	$self->autoctl($monitor, 'create', 'monitor', '--hostname', '127.0.0.1', $self->common($monitor));
	append_to_file("$monitor->{data}/postgresql.conf",
		join '', map { "$_ = $params{monitor}{$_}\n" } sort keys %{ $params{monitor} });
	$self->start_manager($monitor);
	$self->{monitor_conninfo} =
	  "host=127.0.0.1 port=$monitor->{port} user=autoctl_node dbname=pg_auto_failover sslmode=prefer";
	wait_until('there is a monitor',
		sub { return !($self->psql($self->{monitor_conninfo}, 'SELECT pgautofailover.formation_settings()'))[0] });

	foreach my $name ('a', 'b')
	{
		my $member = $self->add_member($name);

		$self->autoctl($member, 'create', 'postgres', '--name', $name, '--hostname', '127.0.0.1',
			'--listen', '127.0.0.1', '--dbname', 'postgres', '--username', $self->{user}, '--monitor',
			"postgres://autoctl_node\@127.0.0.1:$monitor->{port}/pg_auto_failover?sslmode=prefer",
			$self->common($member));
		if ($name eq 'a')
		{
			my $conf = $self->server_conf;

			append_to_file("$member->{data}/postgresql.conf",
				join '', map { "$_ = '$conf->{$_}'\n" } sort keys %$conf);
		}
		$self->start_manager($member);
		$self->until_says('a', 'SELECT NOT pg_is_in_recovery()') if $name eq 'a';
	}
	$self->until_ready('a');
	$self->ask('a', 'CREATE EXTENSION dlock');
	return $self;
}

sub common
{
	my ($self, $member) = @_;

	return ('--pgdata', $member->{data}, '--pgport', $member->{port}, '--pgctl', DlockHa::bindir() . '/pg_ctl',
		'--auth', 'trust', '--no-ssl');
}

# It keeps its own files below these.
sub env
{
	my ($self) = @_;

	return {
		HOME => "$self->{folder}/home",
		XDG_RUNTIME_DIR => "$self->{folder}/home",
		PG_REGRESS_SOCK_DIR => $self->{folder},
		PGHOST => $self->{folder},
	};
}

sub autoctl
{
	my ($self, $member, @command) = @_;

	$self->run($member->{log}, $self->env, 'pg_autoctl', @command);
	return;
}

sub start_manager
{
	my ($self, $member) = @_;

	$member->{pid} = $self->spawn($member->{log}, $self->env, 'pg_autoctl', 'run', '--pgdata', $member->{data});
	return;
}

sub revive { my ($self, $name) = @_; $self->start_manager($self->member($name)); return; }

# What the monitor has assigned, and what it has been told: "a primary primary, b ...".
sub states
{
	my ($self) = @_;

	return $self->answer($self->{monitor_conninfo},
		"SELECT string_agg(nodename || ' ' || reportedstate || ' ' || goalstate, ', ' ORDER BY nodename) FROM pgautofailover.node");
}

# Wait until the other node could take over from this one; before that, none is promoted.
sub until_ready
{
	my ($self, $primary) = @_;

	$self->until_states(join ', ',
		map { my $state = $_ eq $primary ? 'primary' : 'secondary'; "$_ $state $state" } $self->names);
	$self->until_synchronous($primary);
	return;
}

sub until_states
{
	my ($self, $expected) = @_;
	my $states = '';

	eval {
		wait_until("the monitor says $expected", sub { $states = $self->states; return $states eq $expected });
		1;
	} or die "$@, it says $states";
	return;
}

1;
