# What must hold on every cluster (DlockHa) that loses its primary while grants are made.

package DlockHaTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run ();
use Test::More;

use PostgreSQL::Test::Utils;

use DlockClient;
use DlockHa;
use DlockTest qw(wait_until);

our @EXPORT = qw(lose_primary refused_without_standby start_answer
  start_session);

my $leap = 2**32;
my $loads = 0;

# Grants one after the other, each in its own transaction.  A grant that psql has printed
# was acknowledged.
sub start_load
{
	my ($ha) = @_;
	my $load = {
		name => 'load' . ++$loads,
		sql => PostgreSQL::Test::Utils::tempdir() . '/sql',
		out => '',
		err => ''
	};

	append_to_file($load->{sql},
		join '', map { "SELECT '$load->{name}:$_', dlock_acquire('$load->{name}:$_', '30 min');\n" } 1 .. 50_000);
	$load->{run} =
	  IPC::Run::start([ DlockHa::psql_command($ha->all_conninfo), '-f', $load->{sql} ],
		'<', \undef, '>', \$load->{out}, '2>', \$load->{err});
	return $load;
}

sub acknowledged
{
	my ($load) = @_;

	return { $load->{out} =~ /^(\Q$load->{name}\E:\d+)\|(\d+)$/mg };
}

sub until_acknowledged
{
	my ($load, $count) = @_;

	wait_until(
		"$count grants are acknowledged",
		sub {
			die "the load has ended: $load->{err}" unless $load->{run}->pumpable;
			$load->{run}->pump_nb;
			return ($load->{out} =~ tr/\n//) >= $count;
		});
	return;
}

# Kill the primary under load, and check what the other node has; the sub is called as
# soon as it is promoted.  Returns the names of the new primary and the lost one.
sub lose_primary
{
	my ($ha, $alone) = @_;
	my $from = $ha->primary;
	my $to = $ha->other($from);
	my $all = $ha->all_conninfo;
	my $holder = driver($all);
	my $newcomer = driver($all);
	my $lock = $holder->ask('acquire', 'kept', ttl => 150000, renew => 1, value => 'mine');
	my $static = $ha->ask($from, "SELECT dlock_acquire('static', '30 min', owner => 'somebody')");
	my @loads = map { start_load($ha) } 1 .. 2;

	is($lock->{status}, 'ok', 'a lock is held');
	until_acknowledged($_, 50) foreach @loads;
	$ha->kill9($from);

	$newcomer->send('acquire', 'during', ttl => 600000, timeout => 150000);
	$ha->take_over($to) if $ha->can('take_over');
	wait_until("$to is promoted", sub { return ($ha->primary // '') eq $to });
	$alone->($to, $from) if $alone;
	my $during = $newcomer->answer;
	is($during->{status}, 'ok', 'an acquire that was begun without a primary is granted');

	my %acknowledged;
	foreach my $load (@loads)
	{
		$load->{run}->finish;
		%acknowledged = (%acknowledged, %{ acknowledged($load) });
	}
	my ($highest) = sort { $b <=> $a } values %acknowledged;
	my $there = $ha->ask($to, "SELECT key || '|' || version FROM dlock_locks WHERE key LIKE 'load%'");
	my %there = $there =~ /^(\S+)\|(\d+)$/mg;
	my @lost = grep { ($there{$_} // 0) != $acknowledged{$_} } keys %acknowledged;

	cmp_ok(scalar keys %acknowledged, '>=', 100, 'grants were acknowledged before');
	is("@lost", '', 'every one of them is held');
	ok($during->{version} > $highest + $leap / 2 && $during->{version} < $highest + 2 * $leap + 1_000_000, 'versions have leapt')
	  or diag("$highest, then $during->{version}");

	is($ha->ask($to, "SELECT dlock_check('static', $static)"), 'held', 'what was held is held');
	is($ha->ask($to, "SELECT dlock_acquire('static')"), '', 'nobody else can have it');
	is($ha->ask($to, "SELECT version FROM dlock_locks WHERE key = 'kept'"), $lock->{version}, 'and libdlock still has its lock');
	is($holder->ask('refresh', 'kept', timeout => 150000)->{status}, 'ok', 'whose holder continues');
	is($holder->ask('state', 'kept')->{version}, $lock->{version}, 'with the same token');
	unlike($holder->events, qr/lost/, 'and noticed nothing');
	$holder->ask('release', 'kept', timeout => 150000);
	is($_->finish, '', 'nothing was printed') foreach $holder, $newcomer;
	return ($to, $from);
}

# Send a statement that does not return at once, in its own psql.  The returned sub waits
# for the answer; with "now" it returns the answer if there is one.
sub start_answer
{
	my ($conninfo, $sql) = @_;
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start([ DlockHa::psql_command($conninfo), '-c', $sql ],
		'<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	return sub {
		my ($now) = @_;

		if ($now)
		{
			$run->pump_nb if $run->pumpable;
		}
		else
		{
			$run->finish;
		}
		return $out =~ s/\n$//r, $err;
	};
}

# A psql session that stays open.
sub start_session
{
	my ($conninfo) = @_;
	my ($in, $out, $err) = ('', '', '');
	my $run = IPC::Run::start([ DlockHa::psql_command($conninfo) ],
		'<', \$in, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	return {
		ask => sub {
			my ($sql) = @_;

			$out = '';
			$in .= "$sql;\n\\echo end\n";
			$run->pump until $out =~ s/^end\n//m;
			return $out =~ s/\n$//r;
		},
		end => sub { $run->finish; return; },
	};
}

# With dlock.require_sync, a server now grants nothing.
sub refused_without_standby
{
	my ($ha, $name, $message) = @_;
	my ($failed, $out, $err) =
	  $ha->psql($ha->conninfo($name), "SET dlock.require_sync = on;\nSELECT dlock_acquire('refused')");

	is($out, '', 'with dlock.require_sync, no grant');
	like($err, qr/ERROR:  55000: \Q$message\E/, 'the message says why');
	return;
}

1;
