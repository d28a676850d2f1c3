# Routers and the clusters behind them, for the TAP tests.

package DlockRouter;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Test::More;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(need_plproxy new_router set_clusters address key_of keys_of);

# PL/Proxy is a package of its own, and may not exist for this PostgreSQL.
sub need_plproxy
{
	my ($lib, $stderr) = run_command([ 'pg_config', '--pkglibdir' ]);

	plan skip_all => 'PL/Proxy is not installed' unless -e "$lib/plproxy.so";
	return;
}

# How a router reaches a database of a node.
sub address
{
	my ($node, $database) = @_;

	return join ' ', 'host=' . $node->host, 'port=' . $node->port, 'dbname=' . ($database // 'postgres');
}

# A router in a database of its own.
sub new_router
{
	my ($node, $database) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, 'CREATE EXTENSION plproxy; CREATE EXTENSION dlock_router');
	return;
}

# Name, shards, connection string, and so on.
sub set_clusters
{
	my ($node, $database, @clusters) = @_;
	my @rows;

	while (my ($name, $shards, $connection) = splice @clusters, 0, 3)
	{
		push @rows, "('$name', '$shards', '$connection')";
	}
	$node->safe_psql($database,
		"BEGIN; DELETE FROM dlock_router.clusters; INSERT INTO dlock_router.clusters VALUES " . join(', ', @rows) . "; COMMIT");
	return;
}

my @table;

sub crc32
{
	my ($text) = @_;
	my $crc = 0xffffffff;

	if (!@table)
	{
		foreach my $byte (0 .. 255)
		{
			my $c = $byte;

			$c = $c & 1 ? 0xedb88320 ^ ($c >> 1) : $c >> 1 foreach 1 .. 8;
			push @table, $c;
		}
	}
	$crc = $table[($crc ^ $_) & 0xff] ^ ($crc >> 8) foreach unpack 'C*', $text;
	return $crc ^ 0xffffffff;
}

# The first keys of a shard, computed as a client would.
sub keys_of
{
	my ($shard, $count) = @_;
	my @keys;

	for (my $i = 0; @keys < $count; $i++)
	{
		push @keys, "k$i" if crc32("k$i") % 1024 == $shard;
	}
	return @keys;
}

sub key_of
{
	my ($shard) = @_;

	return (keys_of($shard, 1))[0];
}

1;
