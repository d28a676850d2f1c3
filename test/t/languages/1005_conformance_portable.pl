# Every client adapts to the portable edition, which has no tickets and no priorities.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DlockConformance;

conformance([ 'basics', 'loss' ], extension => 'dlock_portable');
