# The labels of what scripts/bench measures: how they are called, and in which
# order tables and plots show them.

package BenchLabels;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

our @EXPORT_OK = qw(named plain kind wait_clients @cycles @waits @several
  @counted_cycles @counted_calls %snapshot);

my %name = (
	dlock => 'dlock',
	dlock_async => 'dlock, grants not flushed',
	dlock_pipe => 'dlock, pipeline of 16',
	dlock_one => 'dlock, one by one',
	dlock_batch => 'dlock, one statement',
	plpgsql => 'plpgsql upsert',
	portable => 'portable edition',
	plpgsql_one => 'plpgsql upsert, one by one',
	plpgsql_batch => 'plpgsql upsert, one statement',
	advisory => 'advisory lock',
	redis => 'Redis',
	redis_one => 'Redis, one by one',
	redis_pipe => 'Redis, pipeline of 16',
	redis_aof => 'Redis, fsync always',
	redis_aof_one => 'Redis, fsync always, one by one',
	redis_aof_pipe => 'Redis, fsync always, pipeline of 16',
	redis_counter => 'Redis, a counter for each minute of the clock',
	redis_aof_counter => 'Redis, fsync always, a counter for each minute of the clock',
	etcd => 'etcd',
	zookeeper => 'ZooKeeper',
	commit => 'two bare commits',
	xid => 'two transaction ids, no WAL',
	guarded => 'dlock, durable, which serves some shards',
	routed => 'dlock, durable, through a router: in the router',
	routed_cluster => 'the same: in the cluster',
	hot_update => 'one HOT update',
	select => '`SELECT 1` twice',
	select_once => '`SELECT 1`',
	try => 'dlock, failed try',
	refresh => 'dlock, refresh',
	exclusive => 'an exclusive lock of dlock, with keys of its own',
	dlock_all => 'dlock, `dlock_acquire_all`',
	marked => 'dlock, exclusive, the key was shared before',
	reader_1 => 'dlock, reader, 1 other',
	reader_1000 => 'dlock, reader, 1,000 others',
	reader_head => 'dlock, reader, 1 other, the key has had a writer',
	semaphore_1 => 'dlock, semaphore of 200, 1 other',
	semaphore_100 => 'dlock, semaphore of 200, 100 others',
	semaphore_last => 'dlock, semaphore of 101, 100 others',
	handles => 'libdlock, a handle for each thread',
	calls => 'libdlock, one thread with an event loop',
	redis_aof_threads => 'Redis, fsync always, a thread for each connection',
	redis_threads => 'Redis, a thread for each connection',
	connections => 'a connection for each client, prepared statements',
	ten => 'dlock, ten acquires in one statement',
	ten_all => 'dlock, `dlock_acquire_all` of ten keys');
foreach my $who (qw(dlock plpgsql redis redis_aof))
{
	$name{"${who}_retry_$_"} =
	  $name{$who} . ', retry ' . ($_ ? "$_ ms" : 'at once')
	  foreach 0, 10, 100;
}

# of acquire and release, and of waiting for one key
our @cycles = qw(dlock dlock_pipe plpgsql advisory redis redis_pipe redis_aof
  redis_aof_pipe etcd zookeeper hot_update commit select);
our @waits = (qw(dlock dlock_async advisory zookeeper etcd),
	map { my $who = $_; map { "${who}_retry_$_" } 0, 10, 100 } qw(dlock plpgsql redis redis_aof));

# of many keys or leases at a time
our @several = map { ("${_}_one", "${_}_pipe", "${_}_batch") } qw(dlock plpgsql redis_aof redis);

# while another session holds an old snapshot
our %snapshot = (
	dlock => 'dlock',
	plpgsql => 'plpgsql upsert',
	dlock_free => 'dlock, without the snapshot');

# whose instructions are counted; the first of each list is the bare protocol
our @counted_cycles = qw(select advisory xid commit hot_update dlock_async dlock guarded routed routed_cluster plpgsql);
our @counted_calls = qw(select_once try refresh);

# With emphasis if it is dlock; $pipe is the length of a pipeline other than 16.
sub named
{
	my ($label, $pipe) = @_;
	my $text = $name{$label} // $label;

	$text =~ s/pipeline of 16/pipeline of $pipe/ if $pipe;
	return $text =~ /^dlock/ ? "**$text**" : $text;
}

# The same without emphasis.
sub plain
{
	my ($label, $pipe) = @_;

	return named($label, $pipe) =~ s/[*`]//gr;
}

# What a bar stands for, which BenchPlot.pm shows by its colour.
sub kind
{
	my ($label) = @_;

	return 'dlock' if $label =~ /^(?:dlock|try|refresh)/;
	return $label =~ /^(?:select|commit|xid|hot_update)/ ? 'bare' : 'peer';
}

# The number of clients at which waiting and retrying are compared: the one that
# has the retries, or else the largest.
sub wait_clients
{
	my ($data) = @_;
	my @clients = $data->clients('wait') or return;
	my ($n) = (grep({ $_ == 32 } @clients), $clients[-1]);

	return $n;
}

1;
