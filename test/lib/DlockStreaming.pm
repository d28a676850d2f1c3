# Plain streaming replication, as docs/failover.md sets it up: all nodes have the same
# settings, whichever is the primary, and nothing watches them.

package DlockStreaming;

use strict;
use warnings FATAL => 'all';

use parent -norequire, 'DlockHa';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use DlockHa;
use DlockTest qw(wait_until);

sub missing { return; }

# Two nodes, of which a is the primary; each names the other as its synchronous standby.
sub new
{
	my ($class, %params) = @_;
	my $self = DlockHa::new($class, 'streaming', %params);

	$self->add_member($_) foreach 'a', 'b';
	foreach my $name ($self->names)
	{
		my $member = $self->member($name);
		my $conf = {
			%{ $self->server_conf },
			listen_addresses => '127.0.0.1',
			unix_socket_directories => $self->{folder},
			port => $member->{port},
			data_directory => $member->{data},
			cluster_name => $name,
			wal_log_hints => 'on',
			wal_keep_size => '256MB',		# for pg_rewind
			hot_standby => 'on',
			primary_conninfo => $self->all_conninfo(dbname => undef),
			synchronous_standby_names => $self->other($name),
		};

		# not in the data directory, where pg_rewind would replace it by the other node's
		$member->{conf} = "$self->{base}/$name.conf";
		append_to_file($member->{conf}, join '', map { "$_ = '$conf->{$_}'\n" } sort keys %$conf);
	}

	my $a = $self->member('a');
	my @no_sync = $params{durable} ? () : '--no-sync';
	$self->run($a->{log}, {}, 'initdb', '-D', $a->{data}, '-A', 'trust', @no_sync);
	$self->start('a');
	my $b = $self->member('b');
	$self->run($b->{log}, {}, 'pg_basebackup', '-D', $b->{data}, '-d', $self->conninfo('a'), '-c', 'fast', @no_sync);
	$self->start_standby('b');
	$self->until_ready('a');
	$self->ask('a', 'CREATE EXTENSION dlock');
	return $self;
}

sub start
{
	my ($self, $name) = @_;
	my $member = $self->member($name);

	$self->run($member->{log}, {}, 'pg_ctl', '-D', $member->{data}, '-w', '-o', "-c config_file=$member->{conf}", 'start');
	return;
}

sub start_standby
{
	my ($self, $name) = @_;

	append_to_file($self->member($name)->{data} . '/standby.signal', '');
	$self->start($name);
	return;
}

sub promote
{
	my ($self, $name) = @_;

	$self->ask($name, 'SELECT pg_promote()');
	return;
}

# What the operator or a script does when the primary is lost: let the promoted standby
# grant alone until there is another one.
sub take_over
{
	my ($self, $name) = @_;

	$self->commit_alone($name, 1);
	$self->promote($name);
	return;
}

sub commit_alone
{
	my ($self, $name, $alone) = @_;

	$self->ask($name, 'ALTER SYSTEM ' . ($alone ? "SET synchronous_standby_names = ''" : 'RESET synchronous_standby_names'));
	$self->ask($name, 'SELECT pg_reload_conf()');
	$self->until_says($name, 'SHOW synchronous_standby_names', $alone ? '' : $self->other($name));
	return;
}

# The other node has been promoted: become its standby.
sub revive
{
	my ($self, $name) = @_;
	my $member = $self->member($name);
	my @no_sync = $self->{params}{durable} ? () : '--no-sync';

	# before that, pg_rewind does not see the new timeline
	$self->ask($self->other($name), 'CHECKPOINT');
	$self->run($member->{log}, {}, 'pg_rewind', '--target-pgdata', $member->{data},
		'--config-file', $member->{conf}, '--source-server', $self->conninfo($self->other($name)), @no_sync);
	$self->start_standby($name);
	$self->commit_alone($self->other($name), 0);
	return;
}

sub until_ready
{
	my ($self, $primary) = @_;

	$self->until_synchronous($primary);
	return;
}

1;
