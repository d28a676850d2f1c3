# Every client survives a restart, a crash and a failover of its server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DlockConformance;

conformance('outage', standby => 1);
