# dlock top: what the server counts, hot keys, the filter and the help.  Scrolling and narrow
# terminals are in test/t/cli/706_cli_screen.pl.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockCli;
use DlockTerminal;
use DlockTest;

my $node = new_node('cli_top');
my $interval = '--interval=200ms';

server_is($node);

sub sql { my ($sql) = @_; return $node->safe_psql('postgres', $sql); }

#
# Without a terminal, everything is since the reset.
#

like((dlock('top'))[1], qr/^0 held, 0 waiting\n0 grants, 0 renewals, 0 releases, 0 busy since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n0 waits\n0 timeouts, 0 deadlocks, /m,
	'nothing has happened');
my $hot = sql("SELECT dlock_acquire('hot', '1h', owner => 'holder')");
sql("SELECT dlock_refresh('hot', $hot) FROM generate_series(1, 3)");
sql("SELECT count(dlock_acquire('hot')) FROM generate_series(1, 1234)");
sql("SELECT dlock_acquire('hot', wait => '30ms')");
sql("SELECT dlock_release('free', dlock_acquire('free'))");
my $page = (dlock('top', '--once'))[1];
like($page, qr/^1 held, 0 waiting, next expiry in 59m \d\ds\n2 grants, 3 renewals, 1 releases, 1,23\d busy since /m, '--once: the counters');
like($page, qr/^1 waits, half <= (\S+), 99 % <= \1 since /m, '--once: one wait has one length');
like($page, qr/^1 timeouts, 0 deadlocks, 0 expired, 0 fenced off, 0 preempted, 0 forced since /m, '--once: what ended badly');
like($page, qr/^HOT KEY +WAITING +LONGEST +BUSY +WAITS +WAITED +HOLDERS +OWNER\nhot +0 +- +1234 +1 +\d+ms +1 +holder\n\n/m,
	'--once: hot keys');
like((dlock('top', 'fr*', '--once'))[1], qr/\n\nKEY .*\n\z/, 'a pattern is for hot keys, too');

my $json = decode_json((dlock('top', '--json'))[1]);
my $stats = decode_json((dlock('stats', '--json'))[1]);
is_deeply($json->{stats}, $stats, '--json: the same as of dlock stats');
is("$json->{held} $json->{stats}{grants}", '1 2', '--json: counters and locks');
is($json->{more}, JSON::PP::false, '--json: all of them');

# the key is contended, but nobody holds it
sql("SELECT dlock_release('hot', $hot)");
like((dlock('top', '--once'))[1], qr/^hot +0 +- +1234 .* +0 +-\n\nKEY.*\n\z/m, 'a hot key that is free');
$hot = sql("SELECT dlock_acquire('hot', '1h', owner => 'holder')");

#
# On a terminal
#

# Wait until the frame is complete and has this line; act before each look at it.
sub shows
{
	my ($t, $line, $what, $act) = @_;
	my @lines;

	wait_until(
		"the screen shows $what",
		sub {
			$act->() if $act;
			@lines = last_frame($t);
			return @lines >= $t->{rows} && grep { $_ =~ $line } @lines;
		});
	pass($what);
	is(scalar(grep { columns_of($_) > $t->{columns} } @lines), 0, "$what: no line is wider");
	return @lines;
}

sub start_top
{
	my ($rows, $columns, @args) = @_;
	my $t = on_terminal([ 'top', $interval, @args ], rows => $rows, columns => $columns, env => { NO_COLOR => 1 });

	@{$t}{qw(rows columns)} = ($rows, $columns);
	return $t;
}

sql("SELECT count(dlock_acquire('job:' || to_char(i, 'FM000'), '1h', owner => 'w' || i)) FROM generate_series(1, 40) i");
my $t = start_top(24, 100);
sees($t, qr/43 grants, 3 renewals, .*? since \d{4}-.*?1 waits, half <= /s, 'the first frame is since the reset');
shows($t, qr/^0 grants\/s, 0 renewals\/s, 0 releases\/s, 0 busy\/s$/, 'the next ones are rates');
shows($t, qr/^0 waits\/s, half <= \S+, 99 % <= \S+ since \d{4}/, 'without new waits, those since the reset');
my @lines = shows($t, qr/^0 timeouts, 0 deadlocks, 0 expired, .* since \d\d:\d\d:\d\d$/, 'what ended badly counts from now on');
is(scalar(grep { /^HOT KEY/ } @lines), 0, 'nothing is hot');

# something happens between any two looks
my $load = sub {
	sql("SELECT count(dlock_release('free', dlock_acquire('free'))), count(dlock_refresh('hot', $hot)) FROM generate_series(1, 50)");
	sql("SELECT count(dlock_acquire('hot')) FROM generate_series(1, 50)");
};
shows($t, qr/^[1-9][\d.,]* grants\/s, [1-9][\d.,]* renewals\/s, [1-9][\d.,]* releases\/s, [1-9][\d.,]* busy\/s$/, 'rates', $load);
@lines = shows($t, qr/^hot +0 +\d+ +0 +0ms +1 +holder$/, 'a hot key and its holder', $load);
is(scalar(grep { /^HOT KEY +WAITING +LONGEST +BUSY\/MIN +WAITS\/MIN +WAITED\/MIN +HOLDERS +OWNER$/ } @lines), 1, 'what happened to it within a minute');
is(scalar(grep { /^hot .* holder$/ } @lines), 2, 'it is also the first of the locks');
like((grep { /^hot / } @lines)[1], qr/^hot +\d+ .* 0 /, 'with its version');
shows($t, qr/^0 grants\/s, 0 renewals\/s/, 'the rates go back to zero');
shows($t, qr/^hot +0 +\d+ +0 +0ms +1 +holder$/, 'the hot key stays for a minute');

# a wait
my $timeouts = 0;
sql("SELECT dlock_acquire('hot', wait => '10ms')");
shows($t, qr/^1 timeouts,? .* since/, 'a timeout');
shows($t, qr/^0 waits\/s, half <= \S+, 99 % <= \S+ in \S+$/, 'a wait within the minute');
shows($t, qr/^[1-9]\d* timeouts \(\+[1-9]\d*\), 0 deadlocks/, 'another one since the last look', sub { sql("SELECT dlock_acquire('hot', wait => '10ms')"); $timeouts++; });
shows($t, qr/^[1-9][\d.]* waits\/s, half <= \S+, 99 % <= \S+ in \d+ms$/, 'waits since the last look', sub { sql("SELECT dlock_acquire('hot', wait => '10ms')"); $timeouts++; });
$timeouts++;
shows($t, qr/^$timeouts timeouts, 0 deadlocks/, 'they stay');

# hot keys alone
type($t, 'c');
@lines = shows($t, qr/^ 1-1 of 1 /, 'c: hot keys');
like($lines[0], qr/^ dlock top  postgres on local:\d+  \d\d:\d\d:\d\d  hot keys  every /, 'c: the title says so');
is(scalar(grep { /^KEY |^job:/ } @lines), 0, 'c: nothing else');
sql("SELECT count(dlock_acquire(key)) FROM dlock_list('job:00*')");
@lines = shows($t, qr/^ 1-10 of 10 /, 'c: more of them');
like((grep { /^job:/ } @lines)[0], qr/^job:\d+ +0 +1 +0 +0ms +1 +w\d+$/, 'c: with their holders');
type($t, 'c');
shows($t, qr/^ 1-\d+ of 41 /, 'c: the locks again');

# the order
type($t, 's');
@lines = shows($t, qr/^ dlock top .* order: busy /, 's: by busy');
my ($heading) = grep { $lines[$_] =~ /^KEY / } 0 .. $#lines;
like($lines[ $heading + 1 ], qr/^hot /, 's: the busiest comes first');

#
# The filter
#

type($t, '/');
shows($t, qr/^ keys: _   Enter show   Esc back/, '/: a question');
type($t, "job:02q");
shows($t, qr/^ keys: job:02q_ /, '/: q is a letter');
type($t, "\x7f");
@lines = shows($t, qr/^ keys: job:02_ /, '/: the last one is taken back');
type($t, "\r");
@lines = shows($t, qr/^ 1-10 of 10 /, '/: those that begin with it');
like($lines[0], qr/  keys: job:02\*  /, '/: the title says so');
is(scalar(grep { /^hot / } @lines), 0, '/: no others');
like($lines[1], qr/^10 held, /, '/: the summary is of these');
like($lines[4], qr/^$timeouts timeouts, /, '/: the counters are of all');
type($t, "/*9\r");
@lines = shows($t, qr/^ 1-4 of 4 /, '/: a text within the keys');
like($lines[0], qr/  keys: \*9\*  /, '/: as a pattern');
type($t, "/job:?3?\r");
shows($t, qr/^ 1-10 of 10 /, '/: of single characters');
type($t, "/nothing\cU");
shows($t, qr/^ keys: _ /, '/: Ctrl-U takes all back');
type($t, "x\e");
shows($t, qr/^ 1-10 of 10 /, '/: Esc leaves it as it was');
type($t, "/na\xc3\xafve\x7f\x7f\x7f\xc3\xb6");
shows($t, qr/^ keys: na\x{f6}_ /, '/: characters of several bytes');
type($t, "\cG/no such key\r");
@lines = shows($t, qr/^ 0-0 of 0 /, '/: there is none');
type($t, "/\r");
@lines = shows($t, qr/^ 1-\d+ of 41 /, '/: nothing shows all');
unlike($lines[0], qr/keys:/, '/: and the title says nothing');

#
# One lock, opened; its release by force
#

sql("SELECT dlock_acquire('opened', '1 h', 'its owner', 'its value')");
my $holder = session($node);
ask($holder, 'BEGIN');
ask($holder, "SELECT dlock_acquire('pending') IS NOT NULL");
my $holder_pid = ask($holder, 'SELECT pg_backend_pid()');
shows($t, qr/^ 1-\d+ of 43 /, 'two more');
type($t, "\r");
shows($t, qr/^ open: _   Enter open   Esc back   how the key begins; nothing: the first one *$/, 'Enter: which lock');
type($t, "opene\r");
@lines = shows($t, qr/^owner +its owner$/, 'Enter: all that is known of it');
like($lines[0], qr/^ dlock top  postgres on local:/, 'Enter: below the title');
like(join("\n", @lines), qr/^key +opened\nstate +held\nversion .*^value +its value$/ms, 'Enter: as dlock info');
like($lines[-1], qr/^ Esc back   x release by force *$/, 'Enter: what can be done');
type($t, 'x');
shows($t, qr/^ reason for a release by force: _   Esc back *$/, 'x: asks for a reason');
type($t, "\r");
shows($t, qr/^ Esc back   x release by force *$/, 'x: not without a reason');
is(sql("SELECT count(*) FROM dlock_locks WHERE key = 'opened'"), 1, 'x: it is still held');
type($t, 'x');
type($t, "it hangs\r");
shows($t, qr/^ take the lock away from its holders \(y\/n\)\? _   Esc back *$/, 'x: asks once more');
type($t, "n\r");
shows($t, qr/^ Esc back   x release by force *$/, 'x: no');
is(sql("SELECT count(*) FROM dlock_locks WHERE key = 'opened'"), 1, 'x: it is still held');
type($t, 'x');
type($t, "it hangs\r");
shows($t, qr/^ take the lock away/, 'x: again');
type($t, "y\r");
@lines = shows($t, qr/^ Esc back   x release by force   version \d+ was taken away *$/, 'x: yes');
like(join("\n", @lines), qr/^state +not held$/m, 'x: nobody holds it');
like(slurp($node->logfile), qr/it hangs/, 'x: the reason is in the log');
type($t, "\e");
shows($t, qr/^ 1-\d+ of 4\d /, 'Esc: the list');
type($t, "\r");
type($t, "pending\r");
@lines = shows($t, qr/^in use by +$holder_pid, /, 'Enter: the session of what is pending');
like(join(' ', @lines), qr/in use by +$holder_pid, .*idle in\s+transaction.*transaction\s+since\s+20/, 'Enter: what it does, and since when');
type($t, "\e");
shows($t, qr/^ 1-\d+ of 4\d /, 'Esc: the list');
ask($holder, 'ROLLBACK');
end_session($holder);

# what is typed is not more than there is room for
type($t, '/' . 'x' x 1000);
shows($t, qr/^ keys: x+.*x+_$/, '/: a long one');
type($t, "\cG");
shows($t, qr/^ 1-\d+ of 41 /, '/: Ctrl-G leaves, too');

#
# Help
#

foreach my $size ([ 24, 40 ], [ 24, 80 ])
{
	@{$t}{qw(rows columns)} = (22, $size->[1]);
	resize($t, @$size);
	foreach my $key ('?', 'h')
	{
		type($t, $key);
		@lines = shows($t, qr/^q +quit$/, "$key: help, $size->[1] columns");
		is(scalar(grep { /^pending +an open transaction/ } @lines), 1, "$key: the words");
		type($t, $key eq '?' ? ' ' : "\e");
		$t->{rows} = 24;
		shows($t, qr/^ 1-\d+ of 41 /, "$key: back");
		$t->{rows} = 22;
	}
}
$t->{rows} = 24;

#
# The server counts anew
#

sql("SELECT count(dlock_acquire('hot')) FROM generate_series(1, 50)");
pump($t);
$t->{out} = '';
sql('SELECT dlock_stats_reset()');
sees($t, qr/0 grants, 0 renewals, 0 releases, 0 busy since \d{4}-.*?0 timeouts, 0 deadlocks, /s, 'after a reset, the first frame is since then');
shows($t, qr/^0 grants\/s, 0 renewals\/s, 0 releases\/s, 0 busy\/s$/, 'and then rates, none of them negative');
type($t, 'q');
is(ended($t), 0, 'q ends it');

# a low screen has less above the table
foreach my $case ([ 9, 'held' ], [ 12, 'grants' ], [ 18, 'timeouts' ])
{
	my ($rows, $line) = @$case;

	$t = start_top($rows, 60, 'job:*');
	@lines = shows($t, qr/^ 1-(\d+) of 40 /, "$rows rows");
	like(join("\n", @lines), qr/\d $line/, "$rows rows: $line");
	type($t, 'q');
	is(ended($t), 0, "$rows rows: q ends it");
}

$node->stop;
done_testing();
