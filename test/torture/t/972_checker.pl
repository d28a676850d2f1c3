# The checker of torture histories, with small ones: it finds what is planted, each under
# the right name and with the lines that show it, and it finds nothing in legal histories.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use DlockChecker;

# overlap

border('overlap', 'the release is called as the next is granted, or a microsecond later', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
* 1100 done 1 1 acquire granted version=1
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=10
* [2000|1999] done 2 1 acquire granted version=2
* 2000 call 1 2 release key=k version=1
2500 done 1 2 release released
END

border('overlap', 'the own deadline is when the next is granted, or a microsecond later', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 done 1 1 acquire granted version=1
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=10
* [2000|1999] done 2 1 acquire granted version=2
END

border('overlap', 'the library says that it is lost, in time or not', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=20 wait=0
* 1100 done 1 1 acquire granted version=1
* 2000 call 1 2 refresh key=k version=1 ttl=20
* 2500 done 1 2 refresh ok
* 18000 call 2 1 acquire key=k owner=b ttl=1000 wait=10
* [22000|21999] done 2 1 acquire granted version=2
30000 lost 1 key=k version=1 reason=deadline
END

border('overlap', 'two grants to one client', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=20 wait=0
* 1100 done 1 1 acquire granted version=1
* 1200 call 1 2 acquire key=k owner=b ttl=20 wait=0
* 1300 done 1 2 acquire [busy|granted version=2]
END

border('overlap', 'a client that was killed believes nothing', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
* 1100 done 1 1 acquire granted version=1
* [2000|1101] call 2 1 acquire key=k owner=b ttl=1000 wait=2000
* [1002000|1400] done 2 1 acquire granted version=2
* 1500 fault client-kill client=1
END

border('overlap', 'who waited long believes from the base on that it names', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=10 wait=100
* 51000 done 1 1 acquire granted version=1 base=[45000|50000]
* 52000 call 2 1 acquire key=k owner=b ttl=10 wait=100
* 59000 done 2 1 acquire granted version=2
END

border('overlap', 'renewals of the library count', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=10 wait=0
* 1100 done 1 1 acquire granted version=1
* 5000 renewed 1 key=k version=1 base=[4000|4800] ttl=10
* 12000 call 2 1 acquire key=k owner=b ttl=10 wait=100
* 14000 done 2 1 acquire granted version=2
END

violates('overlap', 'the library says that it owns what is over', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=10 wait=0
* 1100 done 1 1 acquire granted version=1
* 12000 call 2 1 acquire key=k owner=b ttl=10 wait=100
* 13000 done 2 1 acquire granted version=2
* 14000 owns 1 key=k version=1
END

border('overlap', 'what a promotion loses', <<'END', mode => 'async');
* 1000 call 1 1 acquire key=k owner=a ttl=5000 wait=0
* 1100 done 1 1 acquire granted version=10
* 1500 fault failover-kill node=n1
* 1600 fault promote node=n2 mode=async lost=[1|0]
* 2000 call 2 1 acquire key=k owner=b ttl=1000 wait=0
* 2100 done 2 1 acquire granted version=5000000000
2200 heal failover-kill node=n1
END

border('overlap', 'what a promotion loses, and what came after it', <<'END', mode => 'async');
1500 fault failover-kill node=n1
1600 fault promote node=n2 mode=async lost=1
2200 heal failover-kill node=n1
* 100220[0|1] call 1 1 acquire key=k owner=a ttl=5000 wait=0
* 1002300 done 1 1 acquire granted version=5000000010
* 1002400 call 2 1 acquire key=k owner=b ttl=1000 wait=0
* 1002500 done 2 1 acquire granted version=5000000020
END

border('overlap', 'a lock of a session ends with its connection', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=5000 wait=0 session=1
* 1100 done 1 1 acquire granted version=10
[1200|2001200] fault backend-kill node=n1
* 2000 call 2 1 acquire key=k owner=b ttl=1000 wait=0
* 2100 done 2 1 acquire granted version=11
END

# versions

border('versions', 'requests that overlap are in no order', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* [1100|1049] done 1 1 acquire granted version=11
* 1050 call 2 1 acquire key=k owner=b ttl=1 wait=50
* 5000 done 2 1 acquire granted version=10
END

border('versions', 'requests that touch are in no order', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* [1050|1049] done 1 1 acquire granted version=11
* 1050 call 2 1 acquire key=k owner=b ttl=1 wait=50
* 5000 done 2 1 acquire granted version=10
END

border('versions', 'another key has another version', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=10 wait=0
* 1100 done 1 1 acquire granted version=11
* 1200 call 2 1 acquire key=l owner=a ttl=10 wait=50
* 1300 done 2 1 acquire granted version=1[2|1]
END

border('versions', 'the same owner gets the same', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 done 1 1 acquire granted version=11
* 1200 call 1 2 acquire key=k owner=[a|b] ttl=1 wait=0
* 1300 done 1 2 acquire granted version=11
END

violates('versions', 'a promotion that loses commits repeats none', <<'END', mode => 'async');
* 1000 call 1 1 acquire key=k owner=a ttl=5000 wait=0
* 1100 done 1 1 acquire granted version=10
* 1500 fault failover-kill node=n1
* 1600 fault promote node=n2 mode=async lost=1
* 2000 call 2 1 acquire key=k owner=b ttl=1000 wait=0
* 2100 done 2 1 acquire granted version=10
2200 heal failover-kill node=n1
END

border('versions', 'an old primary may lag a whole leap behind, not a little', <<'END', mode => 'async');
* 1000 call 1 1 acquire key=k owner=a ttl=5000 wait=0
* 1100 done 1 1 acquire granted version=5000000000
* 1500 fault split-brain node=n1
* 1600 fault promote node=n2 mode=async lost=1
* 2000 call 2 1 acquire key=k owner=b ttl=1000 wait=0
* 2100 done 2 1 acquire granted version=[100|4999999999]
2200 heal split-brain node=n1
END

border('versions', 'the row at the end', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 done 1 1 acquire granted version=11
* 2000 final version key=k version=1[1|0]
END

border('versions', 'the row at the end is that of this key', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 done 1 1 acquire granted version=11
* 2000 final version key=[k|l] version=11
END

# vanish

my $hold = <<'END';
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 done 1 1 acquire granted version=11
END

border('vanish', 'a refresh finds it gone, or the library has given up', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=100 wait=0
* 1100 done 1 1 acquire granted version=11
* 1200 call 1 2 refresh key=k version=11 ttl=100
* [90000|89999] done 1 2 refresh lost
END

border('vanish', 'a write is fenced off', $hold . <<'END');
* 1200 call 1 2 write key=k version=11
* [2000|1999] done 1 2 write fenced
END

border('vanish', 'a release finds it gone', $hold . <<'END');
* 1200 call 1 2 release key=k version=11
* [2000|1999] done 1 2 release not_held
END

border('vanish', 'a release finds it gone, perhaps because it was asked twice', $hold . <<'END');
[1150|2001150] fault backend-kill node=n1
* 1200 call 1 2 release key=k version=11
* 1300 done 1 2 release held_by_other
END

border('vanish', 'what is left is that of the last refresh', $hold . <<'END');
* 1900 call 1 2 refresh key=k version=11 ttl=1
* 1950 done 1 2 refresh ok
* 2000 call 1 3 write key=k version=11
* [2900|2899] done 1 3 write fenced
END

border('vanish', 'a refresh that had no answer may have made it shorter', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=10 wait=0
* 1100 done 1 1 acquire granted version=11
1200 call 1 2 refresh key=k version=11 ttl=[1|10]
1300 done 1 2 refresh unknown
* 2300 call 1 3 write key=k version=11
* 2400 done 1 3 write fenced
END

border('vanish', 'a release, if it may have had an effect', $hold . <<'END');
[1200|1200] call 1 2 release key=k version=11
[1250|1250] done 1 2 release [unknown|error state=57014]
* 1300 call 1 3 write key=k version=11
* 1400 done 1 3 write fenced
END

border('vanish', 'the client is dead, the lease is not', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
* 1100 done 1 1 acquire granted version=11
* 1200 fault client-kill client=1
* 1300 call 2 1 acquire key=k owner=b ttl=1000 wait=2000
* [1001000|1000999] done 2 1 acquire granted version=12
END

border('vanish', 'the library gave up, or was told', $hold . <<'END');
* 1900 lost 1 key=k version=11 reason=[deadline|expired]
1910 call 1 2 refresh key=k version=11 ttl=1
1920 done 1 2 refresh lost
END

border('vanish', 'an old primary knows nothing', $hold . <<'END');
* 1150 fault [split-brain|failover-kill] node=n1
* 1160 fault promote node=n2 mode=sync lost=0
* 1200 call 1 2 write key=k version=11
* 1300 done 1 2 write fenced
1400 heal [split-brain|failover-kill] node=n1
END

legal('after a failover a lease lasts longer', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=10 wait=0
1100 done 1 1 acquire granted version=11
1200 fault failover-kill node=n1
9000 fault promote node=n2 mode=sync lost=0
9100 heal failover-kill node=n1
15000 call 2 1 acquire key=k owner=b ttl=10 wait=0
15100 done 2 1 acquire busy
16000 call 1 2 refresh key=k version=11 ttl=10
16100 done 1 2 refresh ok
25900 call 1 3 release key=k version=11
25950 done 1 3 release released
END

legal('who sleeps through its lease', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=10 wait=0
1100 done 1 1 acquire granted version=11
12000 call 2 1 acquire key=k owner=b ttl=10 wait=0
12100 done 2 1 acquire granted version=12
13000 call 1 2 write key=k version=11
13100 done 1 2 write fenced
13200 call 1 3 refresh key=k version=11 ttl=10
13300 done 1 3 refresh lost
13400 call 1 4 release key=k version=11
13500 done 1 4 release held_by_other
END

legal('a ghost: granted, but nobody knows', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=10 wait=0
2000 done 1 1 acquire unknown
3000 call 2 1 acquire key=k owner=b ttl=10 wait=0
3100 done 2 1 acquire busy
4000 call 1 2 acquire key=k owner=a ttl=10 wait=0
4100 done 1 2 acquire granted version=11
14000 call 2 2 acquire key=k owner=c ttl=10 wait=0
14100 done 2 2 acquire granted version=12
END

# revive

border('revive', 'what the library thinks is over need not be', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 done 1 1 acquire granted version=11
* 2000 lost 1 key=k version=11 reason=[deadline|expired]
2001 call 1 2 refresh key=k version=11 ttl=1
2002 done 1 2 refresh lost
* 2020 call 1 3 write key=k version=11
* 2030 done 1 3 write ok n=1
9000 final register key=k n=1 token=11 client=1 op=3
END

border('revive', 'a release that a crash undid', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
* 1100 done 1 1 acquire granted version=11
* 1200 call 1 2 release key=k version=11
* 1250 done 1 2 release released
[1300|2001300] fault primary-kill node=n1
* 1400 call 1 3 write key=k version=11
* 1500 done 1 3 write ok n=1
1600 final register key=k n=1 token=11 client=1 op=3
END

border('revive', 'an answer that is older than the end', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 done 1 1 acquire granted version=11
2000 call 2 1 acquire key=k owner=b ttl=10 wait=10
* [3000|2999] done 2 1 acquire granted version=12
* 3000 call 1 2 refresh key=k version=11 ttl=1
* 4000 done 1 2 refresh ok
END

# fence

my $write = <<'END';
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
1100 done 1 1 acquire granted version=11
* 1200 call 1 2 write key=k version=11
* 1250 done 1 2 write ok n=1
END

border('fence', 'rows are numbered without a gap', $write . <<'END');
* 1300 call 1 3 write key=k version=11
* 1350 done 1 3 write ok n=[2|3]
* 2000 final register key=k n=1 token=11 client=1 op=2
* 2000 final register key=k n=[2|3] token=11 client=1 op=3
END

border('fence', 'rows are numbered once', $write . <<'END');
* 1300 call 1 3 write key=k version=11
* 1350 done 1 3 write ok n=[2|1]
* 2000 final register key=k n=1 token=11 client=1 op=2
* 2000 final register key=k n=[2|1] token=11 client=1 op=3
END

border('fence', 'tokens do not decrease', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
1100 done 1 1 acquire granted version=11
* 1200 call 1 2 write key=k version=11
* 3500 done 1 2 write unknown
1900 call 2 1 acquire key=k owner=b ttl=1 wait=10
2900 done 2 1 acquire granted version=12
* 2901 call 2 2 write key=k version=12
* 3000 done 2 2 write unknown
* 9000 final register key=k n=1 token=1[1|2] client=[1|2] op=2
* 9000 final register key=k n=2 token=1[2|1] client=[2|1] op=2
END

border('fence', 'a newer version had been acknowledged', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
1100 done 1 1 acquire granted version=11
* 2000 call 2 1 acquire key=k owner=b ttl=1 wait=10
* [2900|2899] done 2 1 acquire granted version=12
* 2900 call 1 2 write key=k version=11
* 3500 done 1 2 write unknown
* 9000 final register key=k n=1 token=11 client=1 op=2
END

border('fence', 'the order of the rows is that of time', $write =~ s/ok n=1/ok n=2/r . <<'END');
* 12[50|51] call 1 3 write key=k version=11
* 1350 done 1 3 write ok n=1
* 2000 final register key=k n=1 token=11 client=1 op=3
* 2000 final register key=k n=2 token=11 client=1 op=2
END

# outcome

border('outcome', 'an acknowledged write is there', $write . <<'END');
[2000 final register key=k n=1 token=11 client=1 op=2|2000 final version key=k version=11]
END

border('outcome', 'an acknowledged write is there, unless it was lost', <<'END', mode => 'async');
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
1100 done 1 1 acquire granted version=11
* 1200 call 1 2 write key=k version=11
* 1250 done 1 2 write ok n=1
1300 fault promote node=n2 mode=async lost=[1|0]
END

border('outcome', 'a write is there once', $write . <<'END');
* 2000 final register key=k n=1 token=11 client=1 op=2
[2000|* 2000] final register key=k n=2 token=11 client=[-1 op=-1|1 op=2]
END

border('outcome', 'with its number', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
1100 done 1 1 acquire granted version=11
* 1200 call 1 2 write key=k version=11
* 1250 done 1 2 write ok n=[1|2]
* 2000 final register key=k n=1 token=11 client=1 op=2
END

foreach my $answer ('fenced', 'error state=57014')
{
	border('outcome', "a write that was answered $answer", <<"END");
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
1100 done 1 1 acquire granted version=11
* 2200 call 1 2 write key=k version=11
* 2250 done 1 2 write [unknown|$answer]
* 5000 final register key=k n=1 token=11 client=1 op=2
END
}

border('outcome', 'the write of a client that was killed', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
1100 done 1 1 acquire granted version=11
* 1200 call 1 2 write key=k version=11
1300 fault client-kill client=1
* 5000 final register key=k n=1 token=11 client=1 op=2
[5000|* 5000] final register key=k n=2 token=11 client=[-1 op=-1|1 op=2]
END

border('outcome', 'a row that somebody wrote', $write =~ s/^\* //mgr . <<'END');
2000 final register key=k n=1 token=11 client=1 op=2
* 2000 final register key=k n=2 token=11 client=[-1 op=-1|1 op=77]
END

border('outcome', 'an answer', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
[1100 done 1 1 acquire busy|100 fault other]
1200 call 1 2 acquire key=k owner=b ttl=1 wait=0
1300 done 1 2 acquire busy
* 1400 end 1
END

border('outcome', 'no answer of who was killed', <<'END', endless => 1);
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 [fault client-kill client=1|end 1]
END

border('outcome', 'one answer', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
[1001 call 1 2 acquire key=k owner=a ttl=1 wait=0|100 fault other]
* 1100 done 1 1 acquire busy
* 1100 done 1 [2|1] acquire busy
END

border('outcome', 'an answer to a question', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
[1001 call 1 2 acquire key=k owner=a ttl=1 wait=0|1001 fault other]
1100 done 1 1 acquire busy
* 1150 done 1 2 acquire busy
END

border('outcome', 'a client comes to an end', <<'END', endless => 1);
* 500 begin 1
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
* 1100 done 1 1 acquire busy
[1300 end 1|100 fault other]
END

# starve

my @bounds = ('--bound-ms', 1000, '--overtake', 2);

border('starve', 'an answer comes after the wait and the bound', <<'END', options => \@bounds);
1000 call 1 1 acquire key=k owner=a ttl=10 wait=0
1001000 done 1 1 acquire busy
1100000 call 1 2 release key=k version=4
2100000 done 1 2 release not_held
* 4000000 call 1 3 acquire key=k owner=b ttl=1 wait=500
* 550000[0|1] done 1 3 acquire busy
END

border('starve', 'a second after a fault time begins to count', <<'END', options => \@bounds);
* 1000 call 1 1 release key=k version=1
* 500000 fault other
* 2[500000|500001] done 1 1 release not_held
END

border('starve', 'a fault lasts until it is healed', <<'END', options => \@bounds);
* 1000 call 1 1 release key=k version=1
* 5000 fault cut link=l1
* [3000000|2999999] heal cut link=l1
* 5000000 done 1 1 release not_held
END

legal('a fault lasts until that very one is healed', <<'END', options => \@bounds);
1000 call 1 1 release key=k version=1
5000 fault cut link=l1
10000 heal cut link=l2
5000000 done 1 1 release not_held
9000000 heal cut link=l1
END

border('starve', 'who is dead waits no more', <<'END', options => \@bounds);
* 1000 call 1 1 release key=k version=1
* [1001000|1001001] fault client-kill client=1
END

border('starve', 'without limit behind one who renews', <<'END', options => \@bounds);
1000 call 1 1 acquire key=k owner=a ttl=500 wait=0
1100 done 1 1 acquire granted version=11
* 1200 call 2 1 acquire key=k owner=b ttl=500 wait=-1
400000 call 1 2 refresh key=k version=11 ttl=500
400100 done 1 2 refresh ok
1000000 renewed 1 key=k version=11 base=999000 ttl=500
* [2500000|2500001] done 2 1 acquire granted version=12
END

border('starve', 'without limit behind a ghost', <<'END', options => \@bounds);
1000 call 1 1 acquire key=k owner=a ttl=500 wait=0
1100 done 1 1 acquire [unknown|busy]
* 1200 call 2 1 acquire key=k owner=b ttl=500 wait=-1
* 2000000 done 2 1 acquire granted version=12
END

my $queue = <<'END';
* 1000 call 1 1 acquire key=k owner=a ttl=10 wait=60000
2001000 call 2 1 acquire key=k owner=b ttl=10 wait=0
2001100 done 2 1 acquire granted version=11
* 2011201 call 2 2 acquire key=k owner=c ttl=10 wait=0
* 2011300 done 2 2 acquire granted version=12
* 2031400 call 2 3 acquire key=k owner=d ttl=10 wait=0
* 2031500 done 2 3 acquire granted version=13
END

border('starve', 'overtaken', $queue . <<'END', options => [ '--overtake', 2 ]);
* 2051600 call 2 4 acquire key=k owner=e ttl=10 wait=0 priority=[1|0]
* 2051700 done 2 4 acquire granted version=14
* 2071800 done 1 1 acquire granted version=15
END

border('starve', 'overtaken in times of trouble', $queue . <<'END', options => [ '--overtake', 2 ]);
[2040000|2071801] fault other
* 2051600 call 2 4 acquire key=k owner=e ttl=10 wait=0
* 2051700 done 2 4 acquire granted version=14
* 2071800 done 1 1 acquire granted version=15
END

# leaks

border('leaks', 'what is left', <<'END');
1 final count what=rows value=3 expect=3
* 2 final count what=waiters value=[0|1] expect=0
END

#
# Files that are not a history
#

my $good = <<'END';
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0 more=x
1100 done 1 1 acquire granted version=11 more=x
1200 call 1 2 refresh key=k version=11 ttl=1
1300 done 1 2 refresh error state=57014
1400 lost 1 key=k version=11 reason=deadline
1500 fault promote node=n1 mode=sync lost=0 detail=x
1600 heal promote node=n1
1700 healthy
9000 final register key=l n=1 token=0 client=-1 op=-1
9000 final version key=k version=11
9000 final count what=x value=0 expect=0
END

legal('a bit of everything', $good);
foreach my $case (
	[ '1100 done 1 1', 'x100 done 1 1' ],
	[ '1100 done 1 1', '-1 done 1 1' ],
	[ '1100 done 1 1', '1100  done 1 1' ],
	[ '1100 done 1 1', "1100\tdone 1 1" ],
	[ '1100 done 1 1', '999 done 1 1' ],
	[ '1100 done 1 1', '1100 did 1 1' ],
	[ '1100 done 1 1', '1100 done x 1' ],
	[ '1100 done 1 1', '1100 done 1 99999999999999999999' ],
	[ 'granted version=11', 'granted' ],
	[ 'granted version=11', 'granted version=' ],
	[ 'granted version=11', 'granted version=eleven' ],
	[ 'granted version=11', 'granted version=11 version=12' ],
	[ 'granted version=11', 'fenced' ],
	[ 'granted version=11', 'gr' ],
	[ 'granted version=11', 'granted version=11 word' ],
	[ 'granted version=11', 'granted version=11 ' ],
	[ 'acquire granted', 'refresh ok' ],
	[ 'owner=a ', '' ],
	[ 'ttl=1 wait', 'wait' ],
	[ 'ttl=1 wait', 'ttl=0 wait' ],
	[ 'wait=0', 'wait=-2' ],
	[ 'call 1 2', 'call 1 1' ],
	[ 'error state=57014', 'error' ],
	[ ' reason=deadline', '' ],
	[ ' lost=0', '' ],
	[ 'lost=0', 'lost=1' ],
	[ 'fault promote', 'fault' ],
	[ 'heal promote', 'heal' ],
	[ '1700 healthy', '1700 healthy again' ],
	[ '1700 healthy', '1700 mode async' ],
	[ '1700 healthy', '1700 mode both' ],
	[ '1700 healthy', '1700 begin 1' ],
	[ '1700 healthy', '1700 call 2 1 release key=k version=1' ],
	[ '1700 healthy', '1100 end 1' ],
	[ 'final register', 'final registry' ],
	[ ' client=-1', ' client=-2' ],
	[ 'expect=0', 'expect' ])
{
	my ($from, $to) = @$case;
	my ($lines) = parse($good);

	# parse() does not see the client that has no beginning
	if ($to =~ /call 2/) { push @$lines, [ 1700, $to =~ s/^\d+ //r, 'nemesis' ]; }
	else
	{
		my $found = 0;

		foreach my $line (@$lines)
		{
			my $text = "$line->[0] $line->[1]";

			next unless $text =~ s/\Q$from\E/$to/;
			@$line[ 0, 1 ] = $text =~ /^(.*?) (.*)$/s;
			$found = 1;
			last;
		}
		die "there is no $from" unless $found;
	}
	my ($status, $out) = check($lines);

	is($status, 2, "malformed: $to for $from") or diag($out);
	like($out, qr/^malformed: \S+:\d+: /, '  and where');
}

# Checks one file; returns exit status and output
sub check_text
{
	my ($text, @options) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/file';

	append_to_file($file, $text);
	return run_check(@options, $file);
}

is((check_text("0 mode sync\n1 final end\n"))[0], 0, 'an empty history');
is((check_text("1 final end\n"))[0], 2, 'without a mode');
is((check_text("0 mode sync\n1 final end"))[0], 2, 'cut within a line');
is((check_text(''))[0], 2, 'nothing');

my ($status, $out) = check_text("0 mode sync\n1 begin 1\n9 end 1\n");
is($status, 2, 'incomplete');
like($out, qr/^incomplete: /m, 'and says so');
($status, $out) = check_text("0 mode sync\n1 begin 1\n");
is($status, 1, 'incomplete, with a violation');
like($out, qr/^incomplete: /m, 'and says so');

foreach my $arguments ([], ['/nonexistent'], [ PostgreSQL::Test::Utils::tempdir() ], [ '--bad', '/dev/null' ],
	[ '--limit', 'x', '/dev/null' ], ['--limit'], ['--summary'])
{
	($status, $out) = run_check(@$arguments);
	is($status, 2, "arguments: @$arguments");
	isnt($out, '', '  says something');
}

#
# The report
#

my $twice = join "\n", '0 mode sync', '1 begin 1', '9 end 1',
	(map { ("2 call 1 $_ acquire key=k owner=o$_ ttl=1 wait=0", "3 done 1 $_ acquire busy", "3 done 1 $_ acquire busy") } 1 .. 9),
	'4 fault backend-kill node=n', "10 final end\n";

($status, $out) = check_text($twice, '--limit', 3);
is(scalar(() = $out =~ /^violation of outcome/mg), 3, 'no more than asked for');
like($out, qr/^violations: outcome 9$/m, 'but counted');
like($out, qr/^acquire: busy 9$/m, 'operations');
like($out, qr/^faults: backend-kill 1$/m, 'faults');
like($out, qr/^history: 32 lines, 1 clients, 1 keys, 0.0 s, mode sync$/m, 'what was read');

my $summary = PostgreSQL::Test::Utils::tempdir() . '/summary';
check_text($twice, '--summary', $summary);
my %figures = map { split /=/, $_, 2 } split /\n/, slurp_file($summary);
is_deeply(
	[ @figures{qw(mode operations operations_acquire_busy faults_backend-kill violations violations_outcome violations_fence complete)} ],
	[ 'sync', 9, 9, 1, 9, 9, 0, 1 ],
	'the summary');

done_testing();
