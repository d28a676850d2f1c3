# PgBouncer, on a socket in its own folder; in transaction mode unless another mode is
# given.
#
#   my $bouncer = DlockBouncer->new(user => $name, target => 'host=... port=...');
#   $bouncer->folder, $bouncer->port
#   $bouncer->reload($other_target);
#
# "more" is added to the configuration; "listen" is an address.  Every client is logged in as that user.  PgBouncer ends with the object.
#
# From here on the clients of this test speak protocol 3.0.  PgBouncer 1.18 does not
# negotiate, and libpq of PostgreSQL 19 offers 3.9999 to find such servers.

package DlockBouncer;

use strict;
use warnings FATAL => 'all';

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use DlockTest;

$ENV{PGMAXPROTOCOLVERSION} = '3.0';

sub new
{
	my ($class, %params) = @_;
	my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $self = bless { pool_size => 20, mode => 'transaction', databases => ['postgres'], listen => '', more => '', log => "$folder/log", %params, folder => $folder, port => $port }, $class;

	die 'pgbouncer is missing (Debian package pgbouncer)' unless $program;
	$self->configure($params{target});
	$self->{run} = IPC::Run::start([ $program, '-q', "$folder/ini" ], '<', \undef, '>&', "$folder/out");
	wait_until('there is a pgbouncer', sub { return -S "$folder/.s.PGSQL.$port" });
	return $self;
}

sub folder { return $_[0]{folder}; }

sub port { return $_[0]{port}; }

sub configure
{
	my ($self, $target) = @_;
	my $databases = join "\n", map { "$_ = $target dbname=$_ user=$self->{user}" } @{ $self->{databases} };

	unlink "$self->{folder}/ini";
	append_to_file("$self->{folder}/ini", <<"END");
[databases]
$databases
[pgbouncer]
listen_addr = $self->{listen}
listen_port = $self->{port}
unix_socket_dir = $self->{folder}
auth_type = any
pool_mode = $self->{mode}
default_pool_size = $self->{pool_size}
server_login_retry = 1
logfile = $self->{log}
pidfile = $self->{folder}/pid
$self->{more}
END
	return;
}

# Point it to another server.
sub reload
{
	my ($self, $target) = @_;

	$self->configure($target);
	$self->{run}->signal('HUP');
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $@);

	return unless $self->{run};
	$self->{run}->signal('INT');
	$self->{run}->finish;
	return;
}

1;
