# Every client knows in time that a lock is lost, and asks again after a lost answer.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DlockConformance;

conformance('loss');
