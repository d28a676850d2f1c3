# How the command line shows keys, owners and values that are long, wide or misleading: on
# terminals of any width, in a pipe, and in JSON; and dlock top with thousands of locks.

use strict;
use warnings FATAL => 'all';
use utf8;

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use Encode qw(encode decode);
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockCli;
use DlockTerminal;

my $node = new_node('screen', conf => "max_connections = 40\n");
my %utf8 = (env => { LC_ALL => 'C.UTF-8' });

server_is($node);

sub quoted { my ($string) = @_; $string =~ s/'/''/g; return "'$string'"; }

sub take
{
	my ($key, %with) = @_;

	$node->safe_psql('postgres',
		encode('UTF-8', 'SELECT dlock_acquire(' . join(', ', quoted($key), "'1h'", map { "$_ => " . quoted($with{$_}) } sort keys %with) . ')'));
	return;
}

# As characters.
sub output_of { my @args = @_; return decode('UTF-8', (dlock(@args, \%utf8))[1]); }

my %hostile = (
	long => 'h:long' . '/and/longer' x 90 . '/end',
	wide => 'h:' . '長い名前の鍵' x 20 . '終',
	accents => 'h:' . "e\x{301}o\x{308}" x 60 . '!',
	emoji => "h:\x{1f468}\x{200d}\x{1f469}\x{200d}\x{1f467} \x{2764}\x{fe0f} \x{1f680} done",
	bidi => "h:\x{202e}gnirts\x{202c}",
	zalgo => 'h:z' . "\x{300}\x{301}\x{302}" x 100 . '.',
	control => "h:a\x{1b}[31mb\nc\td\x{9b}1me\\f",
	spaces => 'h:a  b ',
);

take($hostile{$_}, owner => "$_ \x{200b}" . 'owner' x 10, value => $hostile{$_}) foreach sort keys %hostile;
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_locks'), scalar keys %hostile, 'the keys are there');
my @waiters = map { start_dlock('acquire', encode('UTF-8', $hostile{$_}), '--wait=1h') } qw(long wide bidi);
$node->poll_query_until('postgres', 'SELECT count(*) = 3 FROM dlock_waiters');

#
# No line is wider than the terminal.
#

sub fits
{
	my ($width, $what, $args, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $t = on_terminal([ map { encode('UTF-8', $_) } @$args ], columns => $width, %params);
	my $code = ended($t);
	my @lines = lines_of($t->{out});
	my @wider = grep { columns_of($_) > $width } @lines;

	is($code, 0, "$what, $width columns: exit code");
	is(join("\n", @wider), '', "$what, $width columns: no line is wider");
	cmp_ok(scalar @lines, '>', 1, "$what, $width columns: there are lines");
	return @lines;
}

foreach my $width (40, 60, 80, 132, 200)
{
	my @lines = fits($width, 'ls', ['ls']);
	is(scalar @lines, keys(%hostile) + 2, "ls, $width columns: a row is a line");
	like($lines[0], qr/^KEY +(?:VERSION +)?(?:STATE +)?(?:HOLDERS +)?REMAINING .*WAITING .*OWNER/, "ls, $width columns: the columns that matter");
	like(join("\n", @lines), qr/^h:long\S*…\S*end /m, "ls, $width columns: cut in the middle");
	like(join("\n", @lines), qr/^h:長\S*…\S*終 /m, "ls, $width columns: wide characters, too");

	# each cell is in its column, whatever is to the left of it
	my $column = index $lines[0], 'WAITING';
	foreach my $line (@lines[ 1 .. keys %hostile ])
	{
		my ($before) = $line =~ /^(.*? (?:59m \d\ds|1h 00m).*?) [01](?:  |$)/;
		my $right = columns_of($before // '') + 2;

		is($right, $column + length('WAITING'), "ls, $width columns: aligned") or diag(encode('UTF-8', $line));
	}

	fits($width, 'ls --waiters', [ 'ls', '--waiters' ]);
	fits($width, 'top --once', [ 'top', '--once' ]);
	fits($width, 'info', [ 'info', $hostile{$_} ]) foreach sort keys %hostile;
	fits($width, 'watch', [ 'watch', $hostile{$_}, '--count=1' ]) foreach sort keys %hostile;
}
my @all = fits(200, 'ls', ['ls']);
like($all[0], qr/^KEY +VERSION +STATE +HOLDERS +REMAINING +TTL +HELD FOR +WAITING +PRIORITY +ROLE +OWNER +VALUE$/, 'ls: all columns where there is room');
@all = fits(40, 'ls', ['ls']);
like($all[0], qr/^KEY +REMAINING +WAITING +OWNER$/, 'ls: the least where there is not');

# info shortens nothing
my @info = fits(40, 'info', [ 'info', $hostile{long} ]);
like(join('', map { s/^ {14}//r } @info), qr/^key {11}\Q$hostile{long}\Estate/, 'info: a long key is continued');

# where the locale has no such characters
foreach my $width (40, 80)
{
	my @lines = fits($width, 'ls in C', ['ls'], env => { LC_ALL => 'C' });
	is(scalar(grep { /[^\x20-\x7e]/ } @lines), 0, 'ls in C: nothing but ASCII');
	like(join("\n", @lines), qr/^h:lon\S*\.\.\.\S*end /m, 'ls in C: cut in the middle');
}

#
# A pipe gets everything, and a long key widens only its own row.
#

my @rows = split /\n/, output_of('ls');
is(scalar(split / {2,}/, $_), 12, 'a pipe: all columns, between two spaces') foreach @rows;
my ($long) = grep { /^h:long/ } @rows;
is((split / {2,}/, $long)[0], $hostile{long}, 'a pipe: nothing is cut');
take('short');
my ($short) = grep { /^short/ } split /\n/, output_of('ls');
is(scalar(split / {2,}/, $short), 12, 'a pipe: an empty cell is there');
like($short, qr/  - +-$/, 'a pipe: as a dash');
cmp_ok(length $short, '<', 200, 'a pipe: a short key has a short row');

#
# Misleading characters are escaped, and no others.
#

my $rows = join "\n", @rows;
like($rows, qr/^h:\\u202egnirts\\u202c  /m, 'the order of letters cannot be changed');
like($rows, qr/^h:\x{1f468}\\u200d\x{1f469}\\u200d\x{1f467} \x{2764}\\ufe0f \x{1f680} done  /m, 'joiners are seen');
like($rows, qr/^h:a\\x1b\[31mb\\x0ac\\x09d\\u009b1me\\\\f  /m, 'controls, and the backslash itself');
like($rows, qr/^h:a \\x20b\\x20  /m, 'spaces that are not seen');
like($rows, qr/^h:(?:e\x{301}o\x{308}){60}!  /m, 'accents are not');
like($rows, qr/^h:z\x{300}\x{301}\x{302}\x{300}\\u0301\\u0302/m, 'unless there are too many');
like($rows, qr/^h:(?:長い名前の鍵){20}終  /m, 'letters are not either');

my @hidden = grep {
	chr =~ /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}]/
	  || $_ == 0xe000
	  || $_ == 0xf8ff
	  || $_ == 0xf0000
	  || $_ == 0x10fffd
} 0x21 .. 0xd7ff, 0xe000 .. 0xfdcf, 0xfdf0 .. 0xfffd, 0x10000 .. 0x1fffd, 0xe0000 .. 0xefffd, 0xf0000, 0x10fffd;
my $hidden = join '', map { chr } @hidden;
my $set = quotemeta $hidden;
my $shown = join '', map { sprintf $_ < 0x80 ? '\\x%02x' : $_ <= 0xffff ? '\\u%04x' : '\\U%08x', $_ } @hidden;

cmp_ok(scalar @hidden, '>', 4000, 'there are characters that cannot be seen');
take('hidden', value => $hidden);
my ($value) = output_of('info', 'hidden') =~ /^value +(.*)$/m;
ok($value eq $shown, 'each is escaped');
my $json = output_of('info', 'hidden', '--json');
unlike($json, qr/[$set]/, 'JSON: each is escaped');
is(JSON::PP->new->decode($json)->{value}, $hidden, 'JSON: and is what it was');
$json = output_of('ls', 'h:*', '--json');
like($json, qr/長い名前の鍵/, 'JSON: letters are not escaped');
is(join('|', sort map { $_->{key} } @{ JSON::PP->new->decode($json) }), join('|', sort values %hostile), 'JSON: the keys');

# in messages, and in the names of roles
my ($code, $out, $err) = dlock('acquire', encode('UTF-8', $hostile{control}), \%utf8);
is($code, 75, 'busy');
is((split /\n/, $err)[0], 'dlock: error: lock "h:a\x1b[31mb\x0ac\x09d\u009b1me\f" is busy', 'a message is one line without controls');
like($err, qr/^dlock: detail: .*, owner control \\u200bowner/m, 'an owner in a message');
like((dlock('acquire', "h:\xff", \%utf8))[2], qr/^dlock: error: .*0xff$/, 'what is not UTF-8');
like((dlock("l\xe2\x80\xaes\xff", \%utf8))[2], qr/^dlock: error: unknown command "l\\u202es\\xff"$/m, 'an unknown command');
$node->safe_psql('postgres', encode('UTF-8', qq{CREATE ROLE "ad\x{200b}min" LOGIN; SET ROLE "ad\x{200b}min"; SELECT dlock_acquire('role', '1h')}));
like(output_of('ls', 'role'), qr/  "ad\\u200bmin"  /, 'a role');
like(output_of('watch', 'role', '--count=1'), qr/  role "ad\\u200bmin"$/m, 'a role: watch');

#
# dlock top with hundreds of locks, which is as many as it reads
#

$node->safe_psql('postgres', "SELECT count(dlock_acquire('job:' || to_char(i, 'FM00000'), '1h')) FROM generate_series(1, 480) i");

# Wait until the frame has all its lines and the last one matches.
sub shows
{
	my ($t, $status, $what) = @_;
	my @lines;

	wait_until(
		"the screen shows $what",
		sub {
			@lines = last_frame($t);
			return @lines == $t->{rows} && $lines[-1] =~ $status;
		});
	is(scalar(grep { columns_of($_) > $t->{columns} } @lines), 0, "$what: no line is wider");
	like($lines[0], qr/^ dlock top /, "$what: the title is there");
	is(scalar(grep { /^KEY +/ } @lines), 1, "$what: the heading is there");
	return @lines;
}

sub rows_of { my @lines = @_; return map { /^(job:\d+)/ ? $1 : () } @lines; }

my $t = on_terminal([ 'top', 'job:*', '--sort=key', '--interval=200ms' ], rows => 24, columns => 80);
@{$t}{qw(rows columns)} = (24, 80);
my @lines = shows($t, qr/^ 1-16 of 480 /, 'the first page');
is(join(' ', (rows_of(@lines))[ 0, -1 ]), 'job:00001 job:00016', 'its rows');
like($lines[1], qr/^480 held, 0 waiting/, 'the summary is there');

foreach my $case (
	[ 'down', "\033[B", '2-17', 'job:00002' ],
	[ 'j', 'j', '3-18', 'job:00003' ],
	[ 'up', "\033OA", '2-17', 'job:00002' ],
	[ 'k', 'k', '1-16', 'job:00001' ],
	[ 'up at the top', "\033[A", '1-16', 'job:00001' ],
	[ 'page down', "\033[6~", '17-32', 'job:00017' ],
	[ 'Ctrl and down', "\033[1;5B", '18-33', 'job:00018' ],
	[ 'page up', "\033[5~", '2-17', 'job:00002' ],
	[ 'f', 'f', '18-33', 'job:00018' ],
	[ 'b, b', 'bb', '1-16', 'job:00001' ],
	[ 'end', "\033[F", '465-480', 'job:00465' ],
	[ 'down at the end', "\033[B", '465-480', 'job:00465' ],
	[ 'home', "\033[H", '1-16', 'job:00001' ],
	[ 'G', 'G', '465-480', 'job:00465' ],
	[ 'g', 'g', '1-16', 'job:00001' ],
	[ 'an old end', "\033[4~", '465-480', 'job:00465' ],
	[ 'an old home', "\033[1~", '1-16', 'job:00001' ],
	[ 'several at once', "\033[B\033[Bj\033[6~", '20-35', 'job:00020' ])
{
	my ($name, $keys, $where, $first) = @$case;

	# nothing of an older frame is left
	pump($t);
	$t->{out} = '';
	type($t, $keys);
	@lines = shows($t, qr/^ \Q$where\E of 480 /, "top, $name");
	is((rows_of(@lines))[0], $first, "top, $name: the first row");
}

# input of a key that arrives in parts
type($t, "\033");
type($t, '[');
type($t, 'B');
shows($t, qr/^ 21-36 of 480 /, 'top, a key in parts');

foreach my $size ([ 10, 40 ], [ 50, 132 ], [ 6, 60 ], [ 24, 40 ])
{
	@{$t}{qw(rows columns)} = @$size;
	resize($t, @$size);
	@lines = shows($t, qr/^ 21-\d+ of 480 /, "top, $size->[1] columns, $size->[0] rows");
	is((rows_of(@lines))[0], 'job:00021', 'top: it stays where it was');
}

# the list becomes shorter
$node->safe_psql('postgres', "SELECT count(dlock_force_release(key, '')) FROM dlock_locks WHERE key LIKE 'job:%' AND key > 'job:00030'");
@lines = shows($t, qr/^ 15-30 of 30 /, 'top, the list has become shorter');
$node->safe_psql('postgres', "SELECT count(dlock_force_release(key, '')) FROM dlock_locks WHERE key LIKE 'job:%'");
@lines = shows($t, qr/^ 0-0 of 0 /, 'top, the list is empty');
type($t, 'q');
is(ended($t), 0, 'top: q ends it');

# hostile keys at any width, live
foreach my $width (40, 60, 80, 132)
{
	$t = on_terminal([ 'top', 'h:*', '--interval=200ms' ], rows => 30, columns => $width);
	@{$t}{qw(rows columns)} = (30, $width);
	shows($t, qr/^ 1-8 of 8 /, "top, hostile keys, $width columns");
	type($t, 'q');
	is(ended($t), 0, 'top: q ends it');
}

foreach my $waiter (@waiters)
{
	kill 'TERM', $waiter->{pid};
	end_dlock($waiter);
}
$node->stop;
done_testing();
