# docs/monitoring: the queries in the real exporter, the alert rules in promtool, and the
# queries of the dashboard in a Prometheus that scrapes the exporter.  The exporter runs as a role of its own, which is no superuser, with the extension in a schema of its
# own, as docs/monitoring/queries.yaml and docs/operations.md say.

use strict;
use warnings FATAL => 'all';

use File::Spec;
use FindBin;
use lib "$FindBin::RealBin/../../lib";

use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockDocs;
use DlockTest;

my $docs = "$FindBin::RealBin/../../../docs";

command_ok([ 'promtool', 'check', 'rules', "$docs/monitoring/alerts.yaml" ], 'the rules are valid');
{
	my ($out, $err) = ('', '');

	ok(IPC::Run::run([ 'env', '-C', "$docs/monitoring", 'promtool', 'test', 'rules', 'alerts_test.yaml' ], '>', \$out, '2>', \$err),
		'each rule fires when it should, and none on a quiet server')
	  or diag($out . $err);
}

my $rules = slurp_file("$docs/monitoring/alerts.yaml");
my $tests = slurp_file("$docs/monitoring/alerts_test.yaml");
is(join(' ', grep { $tests !~ /^  - name: $_$/m } $rules =~ /- alert: (\w+)/g), '', 'every rule has a test');

# each alert leads to its section
my $oncall = slurp_file("$docs/oncall.md");
my %sections = anchors($oncall);
my %runbooks = map { /^(\w+).*?runbook_url: "https:\S+\/docs\/oncall\.md#(\S+)"$/ms ? ($1 => $2) : () } split /- alert: /, $rules;
is(join(' ', grep { !$sections{ $runbooks{$_} // 'none' } } $rules =~ /- alert: (\w+)/g), '', 'every rule has a runbook');
is(join(' ', grep { $oncall !~ /`$_`/ } $rules =~ /- alert: (\w+)/g), '', 'and docs/oncall.md names it');

# a package has them
is( join(' ', slurp_file("$docs/../debian/dlock.install") =~ /^docs\/monitoring\/(\S+) usr\/share\/dlock\/monitoring$/mg),
	join(' ', sort grep { $_ ne 'alerts_test.yaml' } map { s/.*\///r } glob "$docs/monitoring/*"), 'package dlock has the files');

my $node = new_node('prometheus', bare => 1);
$node->safe_psql('postgres',
	'CREATE SCHEMA locks; CREATE EXTENSION dlock SCHEMA locks;'
	  . 'CREATE ROLE exporter LOGIN IN ROLE pg_monitor; GRANT USAGE ON SCHEMA locks TO exporter;'
	  . 'ALTER ROLE exporter SET search_path = pg_catalog, locks');

my $port = PostgreSQL::Test::Cluster::get_free_port();
my ($said, $exporter, $prometheus) = ('');
{
	local $ENV{DATA_SOURCE_NAME} = 'host=' . $node->host . ' port=' . $node->port . ' user=exporter dbname=postgres sslmode=disable';

	$exporter = IPC::Run::start(
		[
			'prometheus-postgres-exporter', "--web.listen-address=127.0.0.1:$port",
			"--extend.query-path=$docs/monitoring/queries.yaml", '--disable-default-metrics', '--disable-settings-metrics'
		],
		'>', \$said, '2>&1');
}

# also if the test dies
END
{
	my $status = $?;

	$_->kill_kill foreach grep { defined } $prometheus, $exporter;
	$? = $status;
}

sub scrape
{
	my ($answer, %series);

	wait_until(
		'the exporter answers',
		sub {
			$exporter->pump_nb;
			$answer = HTTP::Tiny->new(timeout => 10)->get("http://127.0.0.1:$port/metrics");
			return $answer->{success} && $answer->{content} =~ /^dlock_/m;
		});
	foreach my $line (split /\n/, $answer->{content})
	{
		my ($name, $labels, $value) = $line =~ /^(\w+)(\{[^}]*\})? (\S+)$/ or next;

		$labels //= '';
		$labels =~ s/,?server="[^"]*"//;
		$series{"$name$labels"} = $value;
	}
	like($answer->{content}, qr/^pg_exporter_last_scrape_error 0$/m, 'no query failed');
	return \%series;
}

my $series = scrape();
is($series->{'dlock_grants_total{datname="postgres"}'}, 0, 'nothing has happened');
is($series->{'dlock_health_status{check="failover",datname="postgres"}'}, 2, 'without fsync: a problem');
is($series->{'dlock_health_status{check="server",datname="postgres"}'}, 0, 'the server is well');
is($series->{'dlock_health_status{check="reaper",datname="postgres"}'}, 1, 'no reaper: a warning');
like($rules, qr/dlock_health_status\{check="reaper"\} > 0\n/, 'which is enough for the rule about it');
is($series->{'dlock_transactions_oldest_seconds{datname="postgres"}'}, 0, 'no open transaction');

is($series->{'dlock_held_ending{datname="postgres"}'}, 0, 'no max_hold');

# what happens shows
my $holder = session($node);
ask($holder, "SET search_path = locks; SELECT dlock_acquire('k', '1h')");
ask($holder, "BEGIN; SELECT dlock_acquire('open', '1h')");
$node->safe_psql('postgres', "SET search_path = locks, public; SELECT dlock_acquire('k') FROM generate_series(1, 7); SELECT dlock_acquire('k', wait => '30ms')");
$node->psql('postgres', "SET search_path = locks; SELECT dlock_fence('k', 999)");
$node->safe_psql('postgres', "SET search_path = locks, public; SELECT dlock_policy('hold', NULL, max_hold => '1h');"
	  . " SELECT dlock_acquire('hold 1', '1h'), dlock_refresh('hold 2', dlock_acquire('hold 2', '1h'))");
my $waiter = session($node);
ask($waiter, 'SET search_path = locks');
my $answer = background_answer($waiter, "SELECT dlock_acquire('k', wait => NULL);");
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM locks.dlock_waiters');
$series = scrape();
is($series->{'dlock_grants_total{datname="postgres"}'}, 3, 'grants');
is($series->{'dlock_held_ending{datname="postgres"}'}, 1, 'one that was renewed as long as it may be');
is($series->{'dlock_busy_total{datname="postgres"}'}, 7, 'busy');
is($series->{'dlock_timeouts_total{datname="postgres"}'}, 1, 'a timeout');
is($series->{'dlock_fence_rejected_total{datname="postgres"}'}, 1, 'a rejected writer');
is($series->{'dlock_waiting{datname="postgres"}'}, 1, 'a waiter');
is($series->{'dlock_wait_seconds_count{datname="postgres"}'}, 1, 'the histogram: its count');
cmp_ok($series->{'dlock_wait_seconds_sum{datname="postgres"}'}, '>=', 0.03, 'its sum');
is($series->{'dlock_wait_seconds_bucket{datname="postgres",le="0.02"}'}, 0, 'its buckets are cumulative: below');
is($series->{'dlock_wait_seconds_bucket{datname="postgres",le="1800"}'}, 1, 'above');
is($series->{'dlock_wait_seconds_bucket{datname="postgres",le="+Inf"}'}, 1, 'and all');
is($series->{'dlock_contended_busy_total{datname="postgres",key="k"}'}, 7, 'the contended key');
is($series->{'dlock_waiters_tickets{datname="postgres"}'}, 0, 'no tickets');
is($series->{'dlock_waiters_max_tickets{datname="postgres"}'}, 10000, 'of so many');
is($series->{'dlock_contended_lost_total{datname="postgres",key="k"}'}, 0, 'and no loss');
cmp_ok($series->{'dlock_waiters_longest_seconds{datname="postgres"}'}, '>', 0, 'the longest wait');
cmp_ok($series->{'dlock_transactions_oldest_seconds{datname="postgres"}'}, '>', 0, 'an open transaction');

# the rules use series that are there
my %names = map { s/\{.*//r => 1 } keys %$series;
my %used = map { $_ => 1 } map { /\b(dlock_\w+)/g } $rules =~ /^\s+expr: (.*)/mg;
is(join(' ', grep { !$names{$_} } sort keys %used), '', 'every series of the rules is there');

# The dashboard: every query of every panel has an answer, if things happen.
my $scraped = PostgreSQL::Test::Cluster::get_free_port();
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/prometheus.yml",
	"global: {scrape_interval: 1s}\nrule_files: ['" . File::Spec->rel2abs($docs) . "/monitoring/alerts.yaml']\n"
	  . "scrape_configs: [{job_name: dlock, static_configs: [{targets: ['127.0.0.1:$port']}]}]\n");
$prometheus = IPC::Run::start(
	[
		'prometheus', "--config.file=$folder/prometheus.yml", "--storage.tsdb.path=$folder/data",
		"--web.listen-address=127.0.0.1:$scraped"
	],
	'>', \my $logged, '2>&1');

sub values_of
{
	my ($query) = @_;
	my $answer = HTTP::Tiny->new(timeout => 10)->post_form("http://127.0.0.1:$scraped/api/v1/query", { query => $query });

	$_->pump_nb foreach $prometheus, $exporter;
	die "$query: $answer->{content}" if $answer->{status} == 400;
	return () unless $answer->{success};
	return grep { $_ ne 'NaN' } map { $_->{value}->[1] } @{ decode_json($answer->{content})->{data}->{result} };
}

my $dashboard = decode_json(slurp_file("$docs/monitoring/dashboard.json"));
foreach my $panel (@{ $dashboard->{panels} })
{
	foreach my $query (map { $_->{expr} } @{ $panel->{targets} })
	{
		$query =~ s/\$database/postgres/g;
		$query =~ s/\$__rate_interval/1m/g;
		wait_until(
			"$panel->{title}: $query",
			sub {
				$node->safe_psql('postgres',
					"SET search_path = locks; SELECT dlock_force_release('lost', 'test', dlock_acquire('lost', '1h')), dlock_acquire('k', wait => '1ms')");
				my @values = values_of($query);

				return @values > 0;
			});
		pass("$panel->{title}: $query");
	}
}
cmp_ok(scalar @{ $dashboard->{panels} }, '>=', 7, 'there is a dashboard');
like($_->{datasource}->{uid}, qr/^\$\{source\}$/, "$_->{title}: its data source can be chosen") foreach @{ $dashboard->{panels} };

ask($holder, 'ROLLBACK; SELECT dlock_release(key, version) FROM dlock_get(\'k\')');
like($answer->(), qr/^\d+$/, 'the waiter gets it');
end_session($holder, $waiter);
$node->stop;
done_testing();
