# Every package adapts to the portable edition, which has no tickets, events or priorities.  libdlock
# needs the extension in C.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DlockConformance;

conformance([ 'basics', 'loss' ], extension => 'dlock_portable', but => 'c');
