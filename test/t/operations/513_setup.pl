# What scripts/setup says where it cannot install packages: one sentence that says what to do.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $setup = "$FindBin::RealBin/../../../scripts/setup";
my $bin = PostgreSQL::Test::Utils::tempdir();

# A machine that has nothing but these
foreach my $program (qw(awk bash cat dirname env grep head id mktemp rm sed sort tail tr uniq))
{
	my ($path) = grep { -x } map { "$_/$program" } split /:/, $ENV{PATH};
	symlink $path, "$bin/$program" or die "$program: $!";
}

sub program
{
	my ($name, $text) = @_;

	PostgreSQL::Test::Utils::append_to_file("$bin/$name.new", "#!/bin/bash\n$text\n");
	chmod 0755, "$bin/$name.new";
	rename "$bin/$name.new", "$bin/$name";
}

# setup <sudo> <options...>: what it prints, and its exit status
sub setup
{
	my ($sudo, @options) = @_;
	my ($out, $err) = ('', '');

	unlink "$bin/sudo";
	program('sudo', $sudo) if defined $sudo;
	local %ENV = (PATH => $bin, DLOCK_PG => 17, TMPDIR => $bin);
	IPC::Run::run([ "$bin/bash", $setup, @options ], '>', \$out, '2>', \$err);
	return ($out, $err, $? >> 8);
}

sub says
{
	my ($sudo, $expected, $name) = @_;
	my (undef, $err, $status) = setup($sudo, '--build');

	like($err, $expected, $name);
	is($status, 1, "$name: exit status");
}

plan skip_all => 'root needs no sudo' if $> == 0;

program('apt-get', 'exit 100');
program('apt-cache', 'shift; for name; do printf "%s:\n  Candidate: 1.0\n" "$name"; done');
program('dpkg-query', 'exit 1');

my $again = qr/as root, run "apt-get install [^"]*\bgcc\b[^"]*", and start again\n\z/;
says(undef, qr/\Asetup: packages are missing, and you cannot become root; $again/, 'without sudo');
says('exit 1', qr/\Asetup: packages are missing, and you cannot become root; $again/, 'with a sudo that refuses');
says(qq{[ "\$1" = true ] || { echo "E: Failed to fetch http://deb.example/gcc  Could not resolve 'deb.example'"; exit 100; }},
	qr/\Asetup: apt cannot reach its archive; when this machine has a network, run "apt-get install [^"]*\bgcc\b[^"]*" as root, and start again\n\z/,
	'without a network');
says('[ "$1" = true ] || { echo "E: Unable to locate package postgresql-17"; exit 100; }',
	qr/\Asetup: this distribution has no package postgresql-17\n\z/, 'without such a package');

foreach my $mode ('--build', '--core', '--bench', '--package-check', '')
{
	my (undef, $err) = setup(undef, $mode ? $mode : ());
	my %names;

	$names{$_}++ foreach split ' ', $err =~ /apt-get install ([^"]*)"/ ? $1 : '';
	cmp_ok(keys %names, '>', 3, "setup $mode: packages");
	is(join(' ', grep { $names{$_} > 1 } sort keys %names), '', "setup $mode: none is named twice");
}

program('dpkg-query', 'printf "ii "');
is(join('|', setup(undef, '--build')), '||0', 'nothing to do');

done_testing();
