# Open transactions of every kind of lock, and what they leave for the others.  A line of
# the table below is a case: its steps in order, each with its result.  A probe tries each
# kind of acquire, undoes it, and shows those that are granted: x is exclusive, r a reader,
# 2 and 3 are one of at most two or three.  No step waits.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DlockTest;
use Test::More;

my $node = new_node('open', bare => 1);

$node->safe_psql('postgres', q{
CREATE FUNCTION probe() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	granted text := '';
	kind text;
BEGIN
	FOREACH kind IN ARRAY ARRAY['x', 'r', '2', '3'] LOOP
		BEGIN
			IF dlock_acquire('k', '1 h', slots => CASE WHEN kind IN ('x', 'r') THEN 1 ELSE kind::int END, shared => kind = 'r') IS NOT NULL THEN
				granted := granted || kind;
			END IF;
			RAISE EXCEPTION 'undo';
		EXCEPTION WHEN raise_exception THEN
		END;
	END LOOP;
	RETURN granted;
END $$});

# what is committed before; "lapse" is another session of the holder, which lets it expire
my %base = (
	x => q{SELECT dlock_acquire('k', '1 h', 'o')},
	r => q{SELECT dlock_acquire('k', '1 h', 'o', shared => true)},
	r2 => q{SELECT dlock_acquire('k', '1 h', shared => true)},
	s => q{SELECT dlock_acquire('k', '1 h', 'o', slots => 2)},
	s2 => q{SELECT dlock_acquire('k', '1 h', slots => 2)},
	xfree => q{SELECT dlock_release('k', dlock_acquire('k', '1 h'))},
	xexpired => q{SELECT dlock_acquire('k', '1 ms', 'o')},
	rexpired => q{SELECT dlock_acquire('k', '1 ms', 'o', shared => true)},
	xlapsed => q{SELECT dlock_acquire('k', '1 ms', 'o', lazy => true)},
	rlapsed => q{SELECT dlock_acquire('k', '1 ms', 'o', shared => true, lazy => true)},
	xleast => q{SELECT dlock_acquire('k', '1 h', 'o', at_least => '1 h')},
	sleast => q{SELECT dlock_acquire('k', '1 h', 'o', slots => 2, at_least => '1 h')},
	lapse => q{SELECT dlock_refresh('k', 1, '1 ms') IS NOT NULL});
my %open = (
	begin => 'BEGIN',
	sp => 'SAVEPOINT a',
	ax => q{SELECT dlock_acquire('k', '1 h')},
	ar => q{SELECT dlock_acquire('k', '1 h', shared => true)},
	as => q{SELECT dlock_acquire('k', '1 h', slots => 2)},
	up => q{SELECT dlock_acquire('k', '1 h', 'o')},
	down => q{SELECT dlock_acquire('k', '1 h', 'o', shared => true)},
	again => q{SELECT dlock_acquire('k', '1 h', 'o', slots => 2)},
	release => q{SELECT dlock_release('k', 1)},
	hand => q{SELECT dlock_handover('k', 1, 'p')},
	refresh => q{SELECT dlock_refresh('k', 1) IS NOT NULL},
	fence => q{SELECT dlock_fence('k', 1)},
	force => q{SELECT dlock_force_release('k', 'test')},
	back => 'ROLLBACK TO a',
	commit => 'COMMIT',
	rollback => 'ROLLBACK');
my %other = (
	rr => 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1',
	ser => 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1',
	probe => 'SELECT probe()',
	end => 'COMMIT; SELECT probe()');

my @actors = map { [ session($node), $_ ] } \%base, \%open, \%other;
my %ends_at_once = map { $_ => 1 } qw(xexpired rexpired xlapsed rlapsed lapse);

# What a step returns, "-" if that is nothing; what fails says so.
sub step
{
	my ($name) = @_;
	my ($actor) = grep { $_->[1]{$name} } @actors;
	my ($session, $sql) = ($actor->[0], $actor->[1]{$name});
	my $answer = ask($session, "$sql;");

	$answer = $session->{stderr} if $session->{stderr} ne '';
	ask($session, 'SELECT pg_sleep(0.01);') if $ends_at_once{$name};
	return $sql =~ /SELECT/ ? "$name=" . ($answer eq '' ? '-' : $answer) : $name . $answer;
}

# Every case begins with a new extension, so the first version is 1.
my ($base) = map { $_->[0] } @actors;
while (my $case = <DATA>)
{
	chomp $case;
	next if $case =~ /^(#|$)/;
	ask($base, 'CREATE EXTENSION dlock;');
	is(join(' ', map { step(s/=.*//r) } split ' ', $case), $case, $case);
	ask($base, 'DROP EXTENSION dlock;');
}
end_session(map { $_->[0] } @actors);
$node->stop;
done_testing();

__DATA__
# a key without a row, and a free one
begin ax=1 probe=- commit probe=-
begin ax=1 probe=- rollback probe=xr23
begin sp ax=1 probe=- back probe=xr23 rollback
begin ar=1 probe=r23 commit probe=r23
begin ar=1 probe=r23 rollback probe=xr23
begin sp ar=1 probe=r23 back probe=xr23 rollback
begin as=1 probe=r23 commit probe=r23
begin as=1 probe=r23 rollback probe=xr23
begin sp as=1 probe=r23 back probe=xr23 rollback
xfree=released begin ax=2 probe=- commit probe=-
xfree=released begin ax=2 probe=- rollback probe=xr23
xfree=released begin sp ax=2 probe=- back probe=xr23 rollback
xfree=released begin ar=2 probe=r23 commit probe=r23
xfree=released begin ar=2 probe=r23 rollback probe=xr23
xfree=released begin sp ar=2 probe=r23 back probe=xr23 rollback
xfree=released begin as=2 probe=r23 commit probe=r23
xfree=released begin as=2 probe=r23 rollback probe=xr23
xfree=released begin sp as=2 probe=r23 back probe=xr23 rollback

# a writer
x=1 begin release=released probe=- commit probe=xr23
x=1 begin release=released probe=- rollback probe=-
x=1 begin sp release=released probe=- back probe=- rollback
x=1 begin refresh=t probe=- commit probe=-
x=1 begin refresh=t probe=- rollback probe=-
x=1 begin sp refresh=t probe=- back probe=- rollback
x=1 begin fence=- probe=- commit probe=-
x=1 begin fence=- probe=- rollback probe=-
x=1 begin sp fence=- probe=- back probe=- rollback
x=1 begin force=1 probe=- commit probe=xr23
x=1 begin force=1 probe=- rollback probe=-
x=1 begin sp force=1 probe=- back probe=- rollback
x=1 begin down=1 probe=- commit probe=r23
x=1 begin down=1 probe=- rollback probe=-
x=1 begin sp down=1 probe=- back probe=- rollback

# a reader
r=1 begin ar=2 probe=r3 commit probe=r3
r=1 begin ar=2 probe=r3 rollback probe=r23
r=1 begin sp ar=2 probe=r3 back probe=r23 rollback
r=1 begin as=2 probe=r3 commit probe=r3
r=1 begin as=2 probe=r3 rollback probe=r23
r=1 begin sp as=2 probe=r3 back probe=r23 rollback
r=1 begin release=released probe=r23 commit probe=xr23
r=1 begin release=released probe=r23 rollback probe=r23
r=1 begin sp release=released probe=r23 back probe=r23 rollback
r=1 begin refresh=t probe=r23 commit probe=r23
r=1 begin refresh=t probe=r23 rollback probe=r23
r=1 begin sp refresh=t probe=r23 back probe=r23 rollback
r=1 begin fence=- probe=r23 commit probe=r23
r=1 begin fence=- probe=r23 rollback probe=r23
r=1 begin sp fence=- probe=r23 back probe=r23 rollback
r=1 begin force=1 probe=r23 commit probe=xr23
r=1 begin force=1 probe=r23 rollback probe=r23
r=1 begin sp force=1 probe=r23 back probe=r23 rollback
r=1 begin up=2 probe=- commit probe=-
r=1 begin up=2 probe=- rollback probe=r23
r=1 begin sp up=2 probe=- back probe=r23 rollback
r=1 begin again=1 probe=r23 commit probe=r23
r=1 begin again=1 probe=r23 rollback probe=r23
r=1 begin sp again=1 probe=r23 back probe=r23 rollback

# two readers
r=1 r2=2 begin ar=3 probe=r commit probe=r
r=1 r2=2 begin ar=3 probe=r rollback probe=r3
r=1 r2=2 begin release=released probe=r3 commit probe=r23
r=1 r2=2 begin release=released probe=r3 rollback probe=r3
r=1 r2=2 begin fence=- probe=r3 commit probe=r3
r=1 r2=2 begin fence=- probe=r3 rollback probe=r3
r=1 r2=2 begin force=2 probe=r3 commit probe=xr23
r=1 r2=2 begin force=2 probe=r3 rollback probe=r3
r=1 r2=2 begin up=- probe=r3 commit probe=r3
r=1 r2=2 begin up=- probe=r3 rollback probe=r3

# a semaphore with room
s=1 begin as=2 probe=r3 commit probe=r3
s=1 begin as=2 probe=r3 rollback probe=r23
s=1 begin release=released probe=r23 commit probe=xr23
s=1 begin release=released probe=r23 rollback probe=r23
s=1 begin fence=- probe=r23 commit probe=r23
s=1 begin fence=- probe=r23 rollback probe=r23
s=1 begin up=2 probe=- commit probe=-
s=1 begin up=2 probe=- rollback probe=r23
s=1 begin down=1 probe=r23 commit probe=r23
s=1 begin down=1 probe=r23 rollback probe=r23

# a full semaphore
s=1 s2=2 begin as=- probe=r3 commit probe=r3
s=1 s2=2 begin as=- probe=r3 rollback probe=r3
s=1 s2=2 begin release=released probe=r3 commit probe=r23
s=1 s2=2 begin release=released probe=r3 rollback probe=r3
s=1 s2=2 begin refresh=t probe=r3 commit probe=r3
s=1 s2=2 begin refresh=t probe=r3 rollback probe=r3
s=1 s2=2 begin fence=- probe=r3 commit probe=r3
s=1 s2=2 begin fence=- probe=r3 rollback probe=r3
s=1 s2=2 begin force=2 probe=r3 commit probe=xr23
s=1 s2=2 begin force=2 probe=r3 rollback probe=r3

# a handover: a place counts twice until it is committed
x=1 begin hand=2 probe=- commit probe=-
x=1 begin hand=2 probe=- rollback probe=-
x=1 begin sp hand=2 probe=- back probe=- rollback
r=1 begin hand=2 probe=r3 commit probe=r23
r=1 begin hand=2 probe=r3 rollback probe=r23
r=1 begin sp hand=2 probe=r3 back probe=r23 rollback
s=1 begin hand=2 probe=r3 commit probe=r23
s=1 begin hand=2 probe=r3 rollback probe=r23
s=1 s2=2 begin hand=3 probe=r commit probe=r3
s=1 s2=2 begin hand=3 probe=r rollback probe=r3
xlapsed=1 begin hand=2 probe=- rollback probe=xr23
rlapsed=1 begin hand=2 probe=r3 rollback probe=xr23
s=1 rr=1 begin hand=2 probe=r3 commit probe=r23 end=r23

# what has expired
xexpired=1 begin ax=2 probe=- commit probe=-
xexpired=1 begin ax=2 probe=- rollback probe=xr23
xexpired=1 begin ar=2 probe=- commit probe=r23
xexpired=1 begin ar=2 probe=- rollback probe=xr23
xexpired=1 begin as=2 probe=- commit probe=r23
xexpired=1 begin as=2 probe=- rollback probe=xr23
rexpired=1 begin ax=2 probe=- commit probe=-
rexpired=1 begin ax=2 probe=- rollback probe=xr23
rexpired=1 begin ar=2 probe=r23 commit probe=r23
rexpired=1 begin ar=2 probe=r23 rollback probe=xr23
rexpired=1 begin as=2 probe=r23 commit probe=r23
rexpired=1 begin as=2 probe=r23 rollback probe=xr23

# what has lapsed
xlapsed=1 begin ax=2 probe=- commit probe=-
xlapsed=1 begin ax=2 probe=- rollback probe=xr23
xlapsed=1 begin ar=2 probe=- commit probe=r23
xlapsed=1 begin ar=2 probe=- rollback probe=xr23
xlapsed=1 begin as=2 probe=- commit probe=r23
xlapsed=1 begin as=2 probe=- rollback probe=xr23
xlapsed=1 begin fence=- probe=- commit probe=xr23
xlapsed=1 begin fence=- probe=- rollback probe=xr23
xlapsed=1 begin release=released probe=- commit probe=xr23
xlapsed=1 begin release=released probe=- rollback probe=xr23
rlapsed=1 begin ax=2 probe=- commit probe=-
rlapsed=1 begin ax=2 probe=- rollback probe=xr23
rlapsed=1 begin ar=2 probe=r23 commit probe=r23
rlapsed=1 begin ar=2 probe=r23 rollback probe=xr23
rlapsed=1 begin as=2 probe=r23 commit probe=r23
rlapsed=1 begin as=2 probe=r23 rollback probe=xr23
rlapsed=1 begin fence=- probe=r23 commit probe=xr23
rlapsed=1 begin fence=- probe=r23 rollback probe=xr23
rlapsed=1 begin release=released probe=r23 commit probe=xr23
rlapsed=1 begin release=released probe=r23 rollback probe=xr23

# what has to cool
xleast=1 begin release=released probe=- commit probe=-
xleast=1 begin release=released probe=- rollback probe=-
xleast=1 begin sp release=released probe=- back probe=- rollback
sleast=1 begin release=released probe=r23 commit probe=r23
sleast=1 begin release=released probe=r23 rollback probe=r23
sleast=1 begin sp release=released probe=r23 back probe=r23 rollback

# a fence keeps what has expired
x=1 begin fence=- lapse=t probe=- commit probe=xr23
x=1 begin fence=- lapse=t probe=- rollback probe=xr23
r=1 begin fence=- lapse=t probe=r23 commit probe=xr23
r=1 begin fence=- lapse=t probe=r23 rollback probe=xr23
s=1 begin fence=- lapse=t probe=r23 commit probe=xr23
s=1 begin fence=- lapse=t probe=r23 rollback probe=xr23
r=1 r2=2 begin fence=- lapse=t probe=r3 commit probe=r23
r=1 r2=2 begin fence=- lapse=t probe=r3 rollback probe=r23
r=1 begin sp fence=- back lapse=t probe=xr23 commit probe=xr23

# an old snapshot sees the newest state all the same
rr=1 begin ar=1 probe=r23 commit probe=r23 end=r23
r=1 rr=1 begin release=released probe=r23 commit probe=xr23 end=xr23
s=1 s2=2 rr=1 begin release=released probe=r3 commit probe=r23 end=r23
r=1 rr=1 begin up=2 probe=- commit probe=- end=-
x=1 rr=1 begin down=1 probe=- commit probe=r23 end=r23
r=1 rr=1 begin fence=- probe=r23 commit probe=r23 end=r23
ser=1 begin ar=1 probe=r23 commit probe=r23 end=r23
r=1 ser=1 begin release=released probe=r23 commit probe=xr23 end=xr23
s=1 s2=2 ser=1 begin release=released probe=r3 commit probe=r23 end=r23
r=1 ser=1 begin up=2 probe=- commit probe=- end=-
x=1 ser=1 begin down=1 probe=- commit probe=r23 end=r23
r=1 ser=1 begin fence=- probe=r23 commit probe=r23 end=r23
