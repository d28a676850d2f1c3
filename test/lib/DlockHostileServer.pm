# A process between a client and a server that changes what the server says.  What it changes
# follows from a seed, so a failure can be repeated.

package DlockHostileServer;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

our @EXPORT = qw(changes replaces replaces_numbers);

# What no client expects in a column.
my @values = (
	undef, undef, undef, '', '0', '-1', 'x', '9223372036854775807', '-9223372036854775808', '4294967296',
	'2147483648', 't', 'held', "\x{ff}\x{fe}", "\e[2J", '1e400', 'a' x 3000);

# What no client asks for.  While rows come, libpq itself would forget some memory at these.
my @copies = (
	"G\0\0\0\x07\0\0\0",			# CopyInResponse
	"H\0\0\0\x07\0\0\0",			# CopyOutResponse
	"W\0\0\0\x07\0\0\0");			# CopyBothResponse
my @messages = (
	"I\0\0\0\x04",				# EmptyQueryResponse
	"s\0\0\0\x04",				# PortalSuspended
	"1\0\0\0\x04",				# ParseComplete
	"n\0\0\0\x04",				# NoData
	"E\0\0\0\x05\0",				# an error that says nothing
	"N\0\0\0\x05\0",				# a notice that says nothing
	"Z\0\0\0\x05I",				# ReadyForQuery
	message('A', pack('N', 1) . "dlock\0" . '{"event":"forced","key":"k","version":' . '9' x 40 . "}\0"),
	message('A', pack('N', 1) . "dlock\0" . '{"event":"missed","ticket":1,"code":"' . 'x' x 300 . "\0"),
	message('A', pack('N', 1) . "dlock\0{\"\\\0"),
	message('C', "SELECT 99999999999999999999\0"));

sub message
{
	my ($type, $body) = @_;

	return $type . pack('N', length($body) + 4) . $body;
}

# The columns of a DataRow; undef is null.
sub columns
{
	my ($body) = @_;
	my $n = unpack 'n', substr $body, 0, 2, '';
	my @columns;

	while ($n-- > 0)
	{
		my $length = unpack 'l>', substr $body, 0, 4, '';

		push @columns, $length < 0 ? undef : substr $body, 0, $length, '';
	}
	return @columns;
}

sub row
{
	my (@columns) = @_;

	return message('D', pack('n', scalar @columns) . join '', map { defined $_ ? pack('N', length $_) . $_ : pack('l>', -1) } @columns);
}

# A function for DlockClient::proxy(): it gets each message of a server, and returns what is sent.
sub by_message
{
	my ($change) = @_;
	my (%rest, %rows);

	return sub {
		my ($from, $bytes) = @_;
		my $out = '';

		$rest{$from} .= $bytes;
		while (length $rest{$from} >= 5)
		{
			my ($type, $length) = unpack 'a N', $rest{$from};

			last if length $rest{$from} < $length + 1;
			my $message = substr $rest{$from}, 0, $length + 1, '';
			$rows{$from}++ if $type eq 'D';
			$out .= $change->($type, substr($message, 5), $message, $rows{$from} // 0);
		}
		return $out;
	};
}

# In all rows but the first one of a connection, which lets the client in, this column is that value.
sub replaces
{
	my ($column, $value) = @_;

	return by_message(
		sub {
			my ($type, $body, $message, $rows) = @_;

			return $message if $type ne 'D' || $rows < 2;
			my @columns = columns($body);

			return $message if $column >= @columns;
			$columns[$column] = $value;
			return row(@columns);
		});
}

# The same of all that is a number.
sub replaces_numbers
{
	my ($value) = @_;

	return by_message(
		sub {
			my ($type, $body, $message, $rows) = @_;

			return $message if $type ne 'D' || $rows < 2;
			return row(map { defined $_ && /^-?[0-9]+$/ ? $value : $_ } columns($body));
		});
}

sub any { return $_[ int rand @_ ]; }

sub change_row
{
	my ($body, $message) = @_;
	my @columns = columns($body);
	my $what = rand;

	if ($what < 0.7 && @columns) { $columns[ rand @columns ] = any(@values) for 0 .. rand 3; }
	elsif ($what < 0.75) { return ''; }
	elsif ($what < 0.8) { return $message x 3; }
	elsif ($what < 0.85) { pop @columns; }
	elsif ($what < 0.9) { push @columns, any(@values); }
	else { @columns = map { any(@values) } @columns; }
	return row(@columns);
}

sub change_any
{
	my ($type, $body, $message) = @_;
	my @messages = (@messages, $type =~ /[TDC]/ ? () : @copies);
	my $what = rand;

	if ($what < 0.35 && length $body) { substr($body, rand length $body, 1) = chr int rand 256; }
	elsif ($what < 0.5) { $body = substr $body, 0, rand length $body; }
	elsif ($what < 0.6) { return any(@messages) . $message; }
	elsif ($what < 0.7) { return $message . any(@messages); }
	elsif ($what < 0.75) { return any(@messages); }
	elsif ($what < 0.8) { return $message x 2; }
	elsif ($what < 0.85) { return ''; }
	elsif ($what < 0.9) { $type = chr int rand 256; }
	elsif ($what < 0.95) { return $type . pack('N', int rand 64) . $body; }
	else { $body .= chr(int rand 256) x rand 20; }
	return message($type, $body);
}

# Some messages of each kind are changed; the seed says which, and how.
sub changes
{
	my ($seed) = @_;
	my $seeded = 0;

	return by_message(
		sub {
			my ($type, $body, $message) = @_;

			srand $seed unless $seeded++;
			return change_row($body, $message) if $type eq 'D' && rand() < 0.25;
			return change_any($type, $body, $message) if rand() < 0.03;
			return $message;
		});
}

1;
