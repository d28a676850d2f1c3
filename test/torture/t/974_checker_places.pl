# The checker of torture histories: locks that several hold, locks that cool, and groups of
# keys.  As in 972_checker.pl, each violation is found under its name, with the lines that
# show it, and nothing is found in legal histories.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use Test::More;

use DlockChecker;

# overlap

border('overlap', 'a reader beside a reader, or beside a writer', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=0
* 1100 done 1 1 acquire granted version=1
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=[0|1]
* 1600 done 2 1 acquire granted version=2
END

border('overlap', 'a place of a semaphore beside a reader, or beside a writer', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=[0|1]
* 1100 done 1 1 acquire granted version=1
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1600 done 2 1 acquire granted version=2
END

violates('overlap', 'the reader that stays longest, behind one that is gone', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=0
* 1100 done 1 1 acquire granted version=1
1000 call 2 1 acquire key=k owner=b ttl=1 wait=0 slots=0
1100 done 2 1 acquire granted version=2
* 5000 call 3 1 acquire key=k owner=c ttl=1000 wait=0
* 5100 done 3 1 acquire granted version=3
END

border('overlap', 'an exclusive lock that becomes a shared one, before a reader comes or after', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
* 1100 done 1 1 acquire granted version=1
[1200|1700] call 1 2 acquire key=k owner=a ttl=1000 wait=0 slots=0
1800 done 1 2 acquire granted version=1
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=0
* 1600 done 2 1 acquire granted version=2
END

border('overlap', 'a downgrade that nobody answered, before a reader comes or after', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
* 1100 done 1 1 acquire granted version=1
[1200|1700] call 1 2 acquire key=k owner=a ttl=1000 wait=0 slots=0
2800 done 1 2 acquire unknown
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=0
* 1600 done 2 1 acquire granted version=2
END

legal('a reader that becomes the writer', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=0
1100 done 1 1 acquire granted version=1
1200 call 1 2 acquire key=k owner=a ttl=1000 wait=0
1300 done 1 2 acquire granted version=2
1400 call 1 3 write key=k version=1
1500 done 1 3 write fenced
1600 call 1 4 refresh key=k version=2 ttl=1000
1700 done 1 4 refresh ok
END

legal('a reader that perhaps has become the writer', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=0
1100 done 1 1 acquire granted version=1
1200 call 1 2 acquire key=k owner=a ttl=1000 wait=0
1300 done 1 2 acquire unknown
1400 call 1 3 refresh key=k version=1 ttl=1000
1500 done 1 3 refresh lost
END

# vanish, revive

border('vanish', 'a reader that did not become the writer and is still there, or not', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=0
* 1100 done 1 1 acquire granted version=1
1200 call 1 2 acquire key=k owner=a ttl=1000 wait=0
1300 done 1 2 acquire busy
* 1400 call 1 3 refresh key=k version=1 ttl=1000
* 1500 done 1 3 refresh [ok|lost]
END

violates('vanish', 'a writer beside a reader that died', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=0
* 1100 done 1 1 acquire granted version=1
* 1200 fault client-kill client=1
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=0
* 1600 done 2 1 acquire granted version=2
END

border('revive', 'a reader that another reader does not end, and a writer does', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0 slots=0
* 1100 done 1 1 acquire granted version=1
2500 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=[0|1]
* 2600 done 2 1 acquire granted version=2
* 2700 call 1 2 release key=k version=1
* 2800 done 1 2 release released
END

legal('a reader that comes back though its client thought that it had ended', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0 slots=0
1100 done 1 1 acquire granted version=1
2500 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
2600 done 2 1 acquire granted version=2
2700 call 1 2 refresh key=k version=1 ttl=1000
2800 done 1 2 refresh ok
END

# versions

border('versions', 'an owner that shares a lock gets its version again, a new one a higher one', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=0
1100 done 1 1 acquire granted version=5
* 1200 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=0
* 1300 done 2 1 acquire granted version=7
* 1400 call 1 2 acquire key=k owner=[a|c] ttl=1000 wait=0 slots=0
* 1500 done 1 2 acquire granted version=[5|6]
END

legal('the head at the end does not know the readers', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
1100 done 1 1 acquire granted version=5
2200 call 2 1 acquire key=k owner=b ttl=1 wait=0 slots=0
2300 done 2 1 acquire granted version=7
2400 final version key=k version=5
END

# slots

border('slots', 'one of three or of two places beside two', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=2
* 1100 done 1 1 acquire granted version=1
* 1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1100 done 2 1 acquire granted version=2
* 1500 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=[3|2]
* 1600 done 3 1 acquire granted version=3
END

border('slots', 'readers count, and a reader does not count them', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=0
* 1100 done 1 1 acquire granted version=1
* 1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1100 done 2 1 acquire granted version=2
* 1500 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=[0|2]
* 1600 done 3 1 acquire granted version=3
END

border('slots', 'a place that ends when the next is granted, or a microsecond later', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0 slots=2
* 1100 done 1 1 acquire granted version=1
* 1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1100 done 2 1 acquire granted version=2
* 1500 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=2
* [2000|1999] done 3 1 acquire granted version=3
END

border('slots', 'a place that is released when the next is granted, or a microsecond later', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=2
* 1100 done 1 1 acquire granted version=1
* 1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1100 done 2 1 acquire granted version=2
* 1500 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=2
* [2000|1999] done 3 1 acquire granted version=3
* 2000 call 1 2 release key=k version=1
* 2500 done 1 2 release released
END

border('slots', 'all at once, in the order of their versions', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=[3|2]
* 1600 done 1 1 acquire granted version=3
* 1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1500 done 2 1 acquire granted version=2
* 1000 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=2
* 1700 done 3 1 acquire granted version=1
END

violates('slots', 'a place of a client that died counts until its end', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=2
* 1100 done 1 1 acquire granted version=1
* 1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1100 done 2 1 acquire granted version=2
* 1200 fault client-kill client=1
* 1500 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=2
* 1600 done 3 1 acquire granted version=3
END

violates('slots', 'an exclusive lock that became a place counts', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0
* 1100 done 1 1 acquire granted version=1
1200 call 1 2 acquire key=k owner=a ttl=1000 wait=0 slots=2
1300 done 1 2 acquire granted version=1
* 1400 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1500 done 2 1 acquire granted version=2
* 1500 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=2
* 1600 done 3 1 acquire granted version=3
END

legal('a place whose owner asks again, and a higher priority that takes one', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=2
1100 done 1 1 acquire granted version=1
1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
1100 done 2 1 acquire granted version=2
1500 call 1 2 acquire key=k owner=a ttl=1000 wait=0 slots=2
1600 done 1 2 acquire granted version=1
1700 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=2 priority=1
1800 done 3 1 acquire granted version=3
END

border('slots', 'what a failover loses', <<'END', mode => 'async');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=2
* 1100 done 1 1 acquire granted version=1
* 1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1100 done 2 1 acquire granted version=2
* 1200 fault promote node=n2 mode=async lost=[1|0]
* 1300 healthy
* 1500 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=2
* 1600 done 3 1 acquire granted version=3
END

# cooling

border('cooling', 'a lock that is released before its time, and granted again in time or not', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 at_least=10
* 1100 done 1 1 acquire granted version=1
* 1200 call 1 2 release key=k version=1
* 1300 done 1 2 release released
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=100
* [11000|10999] done 2 1 acquire granted version=2
END

border('cooling', 'a lock that has expired, and its delay', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1 wait=0 delay=10
* 1100 done 1 1 acquire granted version=1
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=100 slots=0
* [12000|11999] done 2 1 acquire granted version=2
END

legal('no delay after a release', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 delay=1000
1100 done 1 1 acquire granted version=1
1200 call 1 2 release key=k version=1
1300 done 1 2 release released
1500 call 2 1 acquire key=k owner=b ttl=1000 wait=100
1600 done 2 1 acquire granted version=2
END

border('cooling', 'a reader that cools keeps out a writer, but not a reader', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 at_least=10 slots=0
* 1100 done 1 1 acquire granted version=1
* 1200 call 1 2 release key=k version=1
* 1300 done 1 2 release released
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=[0|1]
* 1600 done 2 1 acquire granted version=2
END

border('slots', 'a place that cools counts', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=2 at_least=[0|10]
* 1100 done 1 1 acquire granted version=1
* 1200 call 1 2 release key=k version=1
* 1300 done 1 2 release released
* 1000 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
* 1100 done 2 1 acquire granted version=2
* 1500 call 3 1 acquire key=k owner=c ttl=1000 wait=0 slots=2
* 1600 done 3 1 acquire granted version=3
END

border('cooling', 'a repeated request may shorten it', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 at_least=10
* 1100 done 1 1 acquire granted version=1
1110 call 1 3 acquire key=k owner=a ttl=1000 wait=0 at_least=[0|10]
1120 done 1 3 acquire granted version=1
* 1200 call 1 2 release key=k version=1
* 1300 done 1 2 release released
* 1500 call 2 1 acquire key=k owner=b ttl=1000 wait=100
* 1600 done 2 1 acquire granted version=2
END

# whole

border('whole', 'all keys or one', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 with=1
1000 call 1 2 acquire key=l owner=a ttl=1000 wait=0 with=1
* 1000 call 1 3 acquire key=m owner=a ttl=1000 wait=0 with=1
* 1100 done 1 1 acquire granted version=1
1100 done 1 2 acquire granted version=2
* 1100 done 1 3 acquire [granted version=3|busy]
END

border('whole', 'nothing is left of a group that was busy', <<'END');
* 1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 with=1
1000 call 1 2 acquire key=l owner=a ttl=1000 wait=0 with=1
* 1100 done 1 1 acquire busy
1100 done 1 2 acquire busy
* 1200 call 1 3 check key=k owner=a after=1
* 1300 done 1 3 check [held_by_other|held]
END

# fence

legal('those that share a lock write in any order', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=0 slots=2
1100 done 1 1 acquire granted version=1
1200 call 2 1 acquire key=k owner=b ttl=1000 wait=0 slots=2
1300 done 2 1 acquire granted version=2
1400 call 2 2 write key=k version=2
1500 done 2 2 write ok n=1
1400 call 1 2 write key=k version=1
1700 done 1 2 write unknown
3000 final register key=k n=1 token=2 client=2 op=2
3000 final register key=k n=2 token=1 client=1 op=2
END

violates('fence', 'a writer after a reader that came later', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0
1100 done 1 1 acquire granted version=1
2200 call 2 1 acquire key=k owner=b ttl=1 wait=0 slots=0
2300 done 2 1 acquire granted version=2
* 2250 call 2 2 write key=k version=2
* 2500 done 2 2 write ok n=1
* 2250 call 1 2 write key=k version=1
* 2700 done 1 2 write unknown
* 3000 final register key=k n=1 token=2 client=2 op=2
* 3000 final register key=k n=2 token=1 client=1 op=2
END

violates('fence', 'a reader after a writer that came later', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0 slots=0
1100 done 1 1 acquire granted version=1
2200 call 2 1 acquire key=k owner=b ttl=1 wait=0
2300 done 2 1 acquire granted version=2
* 2250 call 2 2 write key=k version=2
* 2500 done 2 2 write ok n=1
* 2250 call 1 2 write key=k version=1
* 2700 done 1 2 write unknown
* 3000 final register key=k n=1 token=2 client=2 op=2
* 3000 final register key=k n=2 token=1 client=1 op=2
END

border('fence', 'a token that a reader or a writer has overtaken', <<'END');
1000 call 1 1 acquire key=k owner=a ttl=1 wait=0 slots=0
1100 done 1 1 acquire granted version=1
* 2200 call 2 1 acquire key=k owner=b ttl=1 wait=0 slots=[0|1]
* 2300 done 2 1 acquire granted version=2
* 2400 call 1 2 write key=k version=1
* 2700 done 1 2 write unknown
* 3000 final register key=k n=1 token=1 client=1 op=2
END

# starve

my $overtaken = join '', map { my $at = 3_000_000 + $_ * 10_000; "$at call 2 $_ acquire key=k owner=b$_ ttl=1 wait=0 slots=0\n" . ($at + 1) . " done 2 $_ acquire granted version=" . ($_ + 10) . "\n" } 1 .. 101;

legal('one of a group is in no queue while it waits for another key', <<"END");
1000 call 1 1 acquire key=k owner=a ttl=1000 wait=9000 slots=0 with=1
${overtaken}5000000 done 1 1 acquire busy
END

done_testing();
