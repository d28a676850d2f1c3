# Every client renews many locks by one statement, and many requests wait without a connection.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DlockConformance;

conformance('crowd', bouncer => 1);
