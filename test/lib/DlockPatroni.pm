# A Patroni cluster: one etcd and two nodes (Debian packages patroni and etcd-server).

package DlockPatroni;

use strict;
use warnings FATAL => 'all';

use parent -norequire, 'DlockHa';

use HTTP::Tiny;
use JSON::PP;
use MIME::Base64;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use DlockHa;

# Settings as docs/failover.md recommends.
our %tuned = (ttl => 20, loop_wait => 1, retry_timeout => 3);

sub missing
{
	return DlockHa::missing('patroni', 'etcd');
}

sub new
{
	my ($class, %params) = @_;
	my $self = DlockHa::new($class, 'patroni', %params);
	my $etcd = $self->new_member('etcd');
	my $peer = 'http://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port();
	my $url = "http://127.0.0.1:$etcd->{port}";

	$self->{etcd} = $url;
	push @{ $self->{services} }, $etcd;
	$etcd->{pid} = $self->spawn(
		$etcd->{log}, {}, 'etcd', '--name', 'etcd', '--data-dir', $etcd->{data},
		'--listen-client-urls', $url, '--advertise-client-urls', $url,
		'--listen-peer-urls', $peer, '--initial-advertise-peer-urls', $peer,
		'--initial-cluster', "etcd=$peer", '--logger', 'zap');
	$self->await('there is an etcd', sub { return HTTP::Tiny->new(timeout => 1)->get("$url/health")->{success} });

	foreach my $name ('a', 'b')
	{
		my $member = $self->add_member($name);

		$member->{api} = PostgreSQL::Test::Cluster::get_free_port();
		$member->{conf} = "$self->{base}/$name.json";
		append_to_file($member->{conf}, JSON::PP->new->pretty->canonical->encode($self->conf($member, $etcd)));
		$self->revive($name);
		$self->await('a leads', sub { return ($self->leader // '') eq 'a' });
		$self->create_user if $name eq 'a';
	}
	$self->until_ready('a');
	$self->ask('a', 'CREATE EXTENSION dlock');
	return $self;
}

# Patroni has a role of its own, and its commits wait for nobody (docs/failover.md).  The
# test has another.
sub create_user
{
	my ($self) = @_;

	$self->answer($self->multi_conninfo([ $self->member('a')->{port} ], user => 'patroni'), qq{
		SET synchronous_commit = local;
		ALTER ROLE patroni SET synchronous_commit = local;
		CREATE ROLE "$self->{user}" SUPERUSER LOGIN});
	return;
}

# JSON is YAML.
sub conf
{
	my ($self, $member, $etcd) = @_;
	my $user = { username => 'patroni' };
	my $dynamic = {
		synchronous_mode => JSON::PP::true,
		postgresql => {
			use_pg_rewind => JSON::PP::true,
			parameters => { %{ $self->server_conf }, wal_log_hints => 'on' },
		},
		%{ $self->{params}{dynamic} // {} },
	};

	return {
		scope => 'dlock',
		name => $member->{name},
		restapi => { listen => "127.0.0.1:$member->{api}", connect_address => "127.0.0.1:$member->{api}" },
		etcd3 => { host => "127.0.0.1:$etcd->{port}" },
		bootstrap => { dcs => $dynamic, initdb => [ 'data-checksums', { encoding => 'UTF8' }, $self->{params}{durable} ? () : 'no-sync' ] },
		postgresql => {
			listen => "127.0.0.1:$member->{port}",
			connect_address => "127.0.0.1:$member->{port}",
			data_dir => $member->{data},
			bin_dir => DlockHa::bindir(),
			pgpass => "$self->{base}/$member->{name}.pgpass",
			authentication => { superuser => $user, replication => $user, rewind => $user },
			pg_hba => [ 'host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust', 'local all all trust' ],
			$self->{params}{durable} ? () : (basebackup => [ { checkpoint => 'fast' }, 'no-sync' ]),
			parameters => { unix_socket_directories => $self->{folder} },
		},
	};
}

sub revive
{
	my ($self, $name) = @_;
	my $member = $self->member($name);

	$member->{pid} = $self->spawn($member->{log}, {}, 'patroni', $member->{conf});
	return;
}

# What a member's Patroni answers, JSON or a sentence; with data to send, PATCH /config or
# POST.
sub api
{
	my ($self, $name, $path, $body) = @_;
	my $url = "http://127.0.0.1:" . $self->member($name)->{api} . $path;
	my $http = HTTP::Tiny->new(timeout => 5);
	my $answer =
	  $body
	  ? $http->request($path eq '/config' ? 'PATCH' : 'POST',
		$url, { content => encode_json($body), headers => { 'Content-Type' => 'application/json' } })
	  : $http->get($url);

	return eval { decode_json($answer->{content}) } // $answer->{content};
}

# etcdctl del /service/dlock/sync
sub forget_sync_key
{
	my ($self) = @_;
	my $answer = HTTP::Tiny->new(timeout => 5)->post("$self->{etcd}/v3/kv/deleterange",
		{ content => encode_json({ key => encode_base64('/service/dlock/sync', '') }) });

	die "etcd: $answer->{content}" unless $answer->{success};
	return;
}

# The members as one of them sees them; none if it does not answer.
sub cluster
{
	my ($self, $name) = @_;
	my $cluster = $self->api($name, '/cluster');

	return ref $cluster ? @{ $cluster->{members} } : ();
}

# The member that has the leader key, as a live member sees it.
sub leader
{
	my ($self) = @_;

	foreach my $name ($self->names)
	{
		my ($leader) = grep { $_->{role} eq 'leader' && $_->{state} eq 'running' } $self->cluster($name);

		return $leader->{name} if $leader;
	}
	return;
}

# Wait until the other node could take over from this one: etcd, too, must list it as
# synchronous.
sub until_ready
{
	my ($self, $primary) = @_;

	$self->await(
		"$primary leads and the other follows",
		sub {
			my %role = map { $_->{name} => "$_->{role} $_->{state}" } $self->cluster($primary);

			return ($role{$primary} // '') eq 'leader running'
			  && ($role{ $self->other($primary) } // '') =~ /^sync_standby (running|streaming)$/;
		});
	$self->until_synchronous($primary);
	return;
}

1;
