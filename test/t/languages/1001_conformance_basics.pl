# Every client does what docs/protocol.md says, while nothing fails.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DlockConformance;

conformance('basics');
