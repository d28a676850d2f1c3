# The models of test/model: with all guards, every property holds in every state; without a
# guard, Spin finds a violation of the property that it protects.

use strict;
use warnings FATAL => 'all';

use FindBin;

use PostgreSQL::Test::Utils;
use Test::More;

my $folder = "$FindBin::RealBin/..";

# exit status 2 of test/model/check means that a search was cut short, or was not meant to be
# complete
my %said = (0 => 'holds', 1 => 'does not hold', 2 => 'nobody knows');

my %guards;
foreach my $line (split /\n/, slurp_file("$folder/cases"))
{
	next if $line =~ /^#|^\s*$/;
	my ($case, $expected) = $line =~ /^([\w= ]+): (\w+)$/ or die "malformed case: $line\n";
	my $holds = $expected eq 'holds';
	my @command = ("$folder/check", ($holds ? () : '--short'), split / /, $case);
	my ($out, $err) = ('', '');

	IPC::Run::run(\@command, '>', \$out, '2>', \$err);
	my $status = $? >> 8;
	is($said{$status} // "exit status $status", $said{ $holds ? 0 : 1 }, $case)
	  or diag("$out$err");
	like($out, $holds ? qr/^\d{4,} states\nholds\n\z/ : qr/^violated: $expected\n\z/m,
		$holds ? "$case: all states were searched" : "$case: finds $expected");

	$guards{$1}{$2} = 1 if !$holds && $case =~ /^(\w+).* (\w+)$|^(?:\w+)$/;
}

# the list of cases has every switch that removes a guard
foreach my $model ('dlock', 'wait', 'places')
{
	my ($list) = slurp_file("$folder/$model.pml") =~ /^ \* The guard to remove.*?\n(.*?)^ \*\//ms
	  or die "no list of guards in $model.pml";
	my @listed = $list =~ /^ \*\t([A-Z_]+)\t/mg;

	is_deeply([ sort keys %{ $guards{$model} } ], [ sort @listed ], "$model: every guard is removed once");
}

done_testing();
