# ALTER EXTENSION dlock UPDATE, from every version whose script is there, while locks are
# held and waited for, with a standby.
#
# An older version is also simulated, so that this is tested before there is one: version
# 0.9 lacks a function and has another storage parameter, and the script that updates it
# makes up for both.  Its scripts are written to the folder of extensions, so that needs
# a temporary installation, as scripts/test has it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $leap = 2**32;
my ($sharedir) = run_command([ 'pg_config', '--sharedir' ]);
my $scripts = "$sharedir/extension";
my ($version) = slurp_file("$scripts/dlock.control") =~ /^default_version\s*=\s*'(.*)'/m
  or die 'no version in dlock.control';

sub write_file
{
	my ($path, $text) = @_;

	open my $fh, '>', $path or die "could not create $path: $!";
	print $fh $text;
	close $fh or die "could not write $path: $!";
	return;
}

sub simulate
{
	my ($old) = @_;
	my $script = slurp_file("$scripts/dlock--$version.sql");
	my ($guard) = $script =~ /^(\\echo .*\n)/m or die 'the script has no guard';

	$script =~ s/^(CREATE FUNCTION dlock_release_session\(.*?^COMMENT ON FUNCTION dlock_release_session.*?;\n)//ms
	  or die 'the script does not create dlock_release_session';
	my $function = $1;
	$script =~ s/fillfactor = (\d+)/fillfactor = 70/ or die 'the script sets no fillfactor';
	write_file("$scripts/dlock--$old.sql", $script);
	write_file("$scripts/dlock--$old--$version.sql",
		"${guard}ALTER TABLE dlock.locks SET (fillfactor = $1);\n$function");
	return;
}

my @simulated = -w $scripts ? ('0.9') : ();
my @older = grep { $_ ne $version } map { /dlock--([^-]+)\.sql$/ ? $1 : () } glob "$scripts/dlock--*.sql";

@older = grep { $_ ne '0.9' } @older;
plan skip_all => "there is no older version, and $scripts cannot be written to" if !@older && !@simulated;
simulate($_) foreach @simulated;
push @older, @simulated;

END
{
	unlink map { ("$scripts/dlock--$_.sql", "$scripts/dlock--$_--$version.sql") } @simulated;
}

# All that belongs to the extension, in words.
my $catalog = q{
SELECT pg_describe_object(classid, objid, 0), obj_description(objid, (SELECT relname FROM pg_class WHERE oid = classid)),
	CASE classid
		WHEN 'pg_proc'::regclass THEN (SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc WHERE oid = objid)
		WHEN 'pg_class'::regclass THEN (
			SELECT concat_ws(' ', relkind, relacl, array(SELECT unnest(reloptions) ORDER BY 1),
				CASE WHEN relkind = 'v' THEN pg_get_viewdef(oid) END,
				array(SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attstorage, attcollation::regcollation,
						(SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum),
						col_description(attrelid, attnum))
					FROM pg_attribute WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
				array(SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = pg_class.oid ORDER BY 1),
				array(SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = pg_class.oid ORDER BY 1),
				array(SELECT concat(pg_get_triggerdef(oid), tgenabled) FROM pg_trigger WHERE tgrelid = pg_class.oid AND NOT tgisinternal ORDER BY 1))
			FROM pg_class WHERE oid = objid)
		ELSE '' END
  FROM pg_depend
 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock')
UNION ALL
SELECT 'to be dumped', array(SELECT unnest(extconfig)::regclass::text ORDER BY 1)::text, extcondition::text
  FROM pg_extension WHERE extname = 'dlock'
 ORDER BY 1
};
my $installed = q{SELECT extversion FROM pg_extension WHERE extname = 'dlock'};

# The workers run as ever.
my $primary = new_node('primary', streaming => 1, bare => 1, conf => "dlock.reap_interval = 20ms\n");
my $standby = new_standby($primary, 'standby');

$primary->safe_psql('postgres', 'CREATE DATABASE fresh');
add_extension_in($primary, 'fresh');
my $expected = $primary->safe_psql('fresh', $catalog);
like($expected, qr/function dlock_release_session\(\)/, 'there is a catalog to compare with');

my %kept;

sub waiting
{
	my ($database, $count) = @_;

	wait_until("$count wait in $database",
		sub { return $primary->safe_psql($database, 'SELECT count(*) FROM dlock_waiters') eq $count });
	return;
}

sub update_from
{
	my ($old) = @_;
	my $database = 'from_' . $old =~ s/\W/_/gr;
	my $dump = $primary->basedir . "/$database.dump";

	$primary->safe_psql('postgres', "CREATE DATABASE $database");
	$primary->safe_psql($database, "CREATE EXTENSION dlock VERSION '$old'");
	isnt($primary->safe_psql($database, $catalog), $expected, "$old: is another version");

	# the older version, with the library of the newer one
	$kept{$database} = $primary->safe_psql($database, "SELECT dlock_acquire('kept', '1h', owner => 'o', value => 'v')");
	$primary->safe_psql($database, 'BEGIN; ALTER EXTENSION dlock UPDATE; ROLLBACK');
	is($primary->safe_psql($database, $installed), $old, "$old: an update that is rolled back leaves it");
	is($primary->safe_psql($database, "SELECT dlock_check('kept', $kept{$database})"), 'held', "$old: and its locks");

	my ($holder, $open, $waiter, $caller, $watcher) = map { session($primary, $database) } 1 .. 5;
	my $key = ask($holder, "SELECT dlock_acquire('key', '1h')");
	my $other = ask($holder, "SELECT dlock_acquire('other', '1h')");
	my $session = ask($holder, "SELECT dlock_acquire('session', '1h', session => true)");
	my $opened = ask($open, "BEGIN; SELECT dlock_acquire('open', '1h')");
	ask($open, "SELECT dlock_fence('kept', $kept{$database})");
	my $waited = background_answer($waiter, "SELECT dlock_acquire('key', '1h', wait => NULL);");
	my $called = background_answer($caller, "CALL dlock_lock('other', '1h');");
	my $watched = background_answer($watcher, "SELECT dlock_watch('key', $key);");
	waiting($database, 3);

	$primary->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $primary->connstr($database) ], "$old: pg_dump");

	# A script that alters the table may wait until the open transaction ends.
	my $updater = session($primary, $database);
	my $update = background_answer($updater, 'ALTER EXTENSION dlock UPDATE;');
	ask($open, 'COMMIT');
	is($open->{stderr}, '', "$old: an open transaction commits");
	$update->();
	is($updater->{stderr}, '', "$old: the update");
	is($primary->safe_psql($database, $installed), $version, "$old: is version $version now");
	is($primary->safe_psql($database, $catalog), $expected, "$old: is what a new installation is");

	# what was there before
	is(ask($open, "SELECT dlock_check('open', $opened)"), 'held', "$old: the grant of the open transaction");
	is(ask($holder, "SELECT dlock_check('session', $session), dlock_acquire('key')"), 'held|', "$old: a session lock, a held key");
	my $next = $primary->safe_psql($database, "SELECT dlock_acquire('new', '1h')");
	cmp_ok($next, '>', $opened, "$old: versions continue");
	cmp_ok($next, '<', $opened + 100, "$old: without a leap");
	isnt(ask($holder, "SELECT dlock_refresh('key', $key)"), '', "$old: a refresh");
	waiting($database, 3);

	# those who waited
	is(ask($holder, "SELECT dlock_release('key', $key), dlock_release('other', $other)"),
		'released|released', "$old: a release");
	cmp_ok($waited->(), '>', $next, "$old: who waited gets the lock");
	cmp_ok($called->(), '>', $next, "$old: also in a procedure");
	like($watched->(), qr/^\d*$/, "$old: who watched hears of it");
	is($watcher->{stderr}, '', "$old: without an error");

	# what is new
	is(ask($holder, 'SELECT dlock_release_session()'), 1, "$old: a session from before uses a new function");

	end_session($holder, $open, $waiter, $caller, $watcher, $updater);

	# the dump of the older version
	$primary->safe_psql('postgres', "CREATE DATABASE ${database}_restored");
	$primary->command_ok([ 'pg_restore', '-e', '-d', $primary->connstr("${database}_restored"), $dump ],
		"$old: pg_restore");
	is($primary->safe_psql("${database}_restored", $installed), $version, "$old: restored as $version");
	is($primary->safe_psql("${database}_restored", $catalog), $expected, "$old: restored as a new installation");
	is($primary->safe_psql("${database}_restored", "SELECT version || owner || value FROM dlock_locks WHERE key = 'kept'"),
		"$kept{$database}ov", "$old: restored with its locks");
	cmp_ok($primary->safe_psql("${database}_restored", "SELECT dlock_acquire('new')"),
		'>', $next + $leap / 2, "$old: restored, versions leap");
	return;
}

update_from($_) foreach @older;

my ($status, $out, $err) = $primary->psql('fresh', 'ALTER EXTENSION dlock UPDATE');
is($status, 0, 'an update of the newest version');
like($err, qr/already installed/, 'does nothing');

#
# The standby follows, and can take over.
#

$primary->wait_for_catchup($standby);
is($standby->safe_psql($_, $installed), $version, "standby: $_ is version $version") foreach sort keys %kept;
$primary->stop;
promote($standby);
foreach my $database (sort keys %kept)
{
	is($standby->safe_psql($database, $catalog), $expected, "promoted: $database is what a new installation is");
	is($standby->safe_psql($database, "SELECT dlock_check('kept', $kept{$database}), dlock_acquire('kept')"),
		'held|', "promoted: $database has its locks");
	cmp_ok($standby->safe_psql($database, "SELECT dlock_acquire('promoted')"), '>', $kept{$database}, "promoted: $database grants locks");
}
$standby->stop;

done_testing();
