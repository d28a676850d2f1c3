# shellcheck shell=bash
# Common parts of scripts/test and scripts/try: a temporary folder that holds a
# copy of the tree, a copy of PostgreSQL with dlock in it, and everything that
# runs.  Nothing is written to the checkout or the system's PostgreSQL, runs do
# not disturb each other, and the folder can be removed when they end.
#
# Servers do not run as root.  If root starts us, everything runs as user
# postgres; otherwise as the current user.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
work=
keep=no							# keep $work/log?

die() {
	echo "${0##*/}: $*" >&2
	exit 1
}

# In the background, so that a signal need not wait for the command.
as_user() {
	local command=(env --default-signal=INT --default-signal=QUIT "$@")

	[ "$(id -u)" != 0 ] || command=(runuser -u postgres -- "${command[@]}")
	DLOCK_WORK=$work "${command[@]}" <"${input:-/dev/null}" &
	wait "$!"
}

make_work() {
	local name

	umask 022
	trap leave EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM

	# the physical path, as in /proc
	work=$(mktemp -d "${TMPDIR:-/tmp}/dlock.XXXXXX")
	work=$(cd "$work" && pwd -P)
	mkdir "$work/log" "$work/tmp" "$work/home"
	give "$work"

	# the caller's settings must not reach the servers
	for name in $(compgen -e); do
		case $name in
			PG_CONFIG | PG_TEST_*) ;;
			PG* | MAKE* | MFLAGS | PERL5* | PROVE* | HARNESS_* | LC_* | LANGUAGE) unset "$name" ;;
		esac
	done
	export TMPDIR=$work/tmp HOME=$work/home LC_ALL=C.UTF-8
	cd "$work" || exit
	as_user test -w "$work/log" ||
		die "user postgres cannot reach $work; set TMPDIR to a folder that it can"
}

give() {
	[ "$(id -u)" != 0 ] || chown -hR postgres: "$@"
}

# The processes that we started: servers and the like are programs in our
# folder, the others have our mark in their environment.
our_programs() {
	find /proc -mindepth 2 -maxdepth 2 -name exe -lname "$work/*" -printf '%h\n' 2>/dev/null |
		sed 's,.*/,,' || true
}

ours() {
	{
		our_programs
		grep -lzxF "DLOCK_WORK=$work" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3 || true
	} | sort -nu
}

# QUIT ends a server and its children at once, and lets it remove its shared
# memory.
stop_ours() {
	local until=$((SECONDS + 10)) pids

	# shellcheck disable=SC2046	# lists
	kill -s QUIT $(our_programs) 2>/dev/null || true
	while pids=$(ours) && [ -n "$pids" ]; do
		# shellcheck disable=SC2086	# a list
		if [ "$SECONDS" -ge "$until" ]; then
			kill -s KILL $pids 2>/dev/null || true
		else
			kill -s TERM $pids 2>/dev/null || true
		fi
		sleep 0.1
	done
}

leave() {
	local status=$?

	trap - EXIT
	trap '' HUP INT TERM
	if [ -n "$work" ]; then
		cd /
		stop_ours 2>/dev/null
		if [ "$keep" = yes ]; then
			find "$work" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf {} +
		else
			rm -rf "$work"
		fi
	fi
	exit "$status"
}

# A copy of the tree without what was built in it.
copy_tree() {
	mkdir "$1"
	tar -C "$root" -cf - --exclude-vcs --exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=./client/cli/dlock --exclude=./torture/check --exclude=./torture/client --exclude=./torture/routed --exclude=./torture/links --exclude=libdlock.a --exclude='libdlock.so*' \
		--exclude=./results --exclude=./output_iso --exclude=./tmp_check \
		--exclude=./tmp_check_iso --exclude=./log --exclude=./build --exclude='./dlock-*.zip' . |
		tar -C "$1" -xf - --no-same-owner
	give "$1"
}

# PostgreSQL finds its files relative to its programs, so a copy of the programs
# with links to the rest is a separate installation.
copy_postgres() {
	local from=${PG_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}
	local prefix dir file

	[ -x "$from" ] || die "there is no $from"
	prefix=$("$from" --bindir)
	for dir in $("$from" --sharedir --pkglibdir --includedir-server); do
		while [ "${dir#"$prefix"/}" = "$dir" ]; do
			prefix=${prefix%/*}
		done
	done

	pg=$work/${pg_name:-pg}
	dir=$("$from" --bindir)
	bindir=$pg${dir#"$prefix"}
	mkdir -p "$bindir"
	cp -RL "$dir/." "$bindir"
	for dir in $("$from" --pkglibdir --sharedir); do
		mkdir -p "$pg${dir#"$prefix"}"
		cp -Rs "$dir/." "$pg${dir#"$prefix"}"
	done
	for dir in $("$from" --includedir --pkgincludedir --includedir-server --libdir); do
		file=$pg${dir#"$prefix"}
		if [ ! -e "$file" ]; then
			mkdir -p "${file%/*}"
			ln -s "$dir" "$file"
		elif [ ! -L "$file" ] && [ "$dir" = "$("$from" --libdir)" ]; then
			find "$dir" -maxdepth 1 -name 'lib*' -exec ln -st "$file" {} + 2>/dev/null || true
		fi
	done

	# without a dlock that is installed there
	find "$pg" -path '*/include' -prune -o \( -name 'dlock*' -o -path '*/bitcode/dlock/*' \) \
		-type l -exec rm -f {} +
	give "$pg"

	pg_config=$bindir/pg_config
	pgxs=$("$pg_config" --pgxs)
	pgxs=${pgxs%/src/makefiles/pgxs.mk}
	case $("$pg_config" --pkglibdir)$("$pg_config" --sharedir) in
		"$work"/*"$work"/*) ;;
		*) die "cannot make a copy of the PostgreSQL of $from" ;;
	esac
}

# tap <tree> <folder for logs> <tally> <file...>: scripts/tap, in a tree whose
# dlock is installed
tap() {
	as_user env -C "$1" PATH="$bindir:$PATH" \
		PERL5LIB="$pgxs/src/test/perl:$1" \
		PG_REGRESS="$pgxs/src/test/regress/pg_regress" \
		TESTDIR="$work/tap" TESTDATADIR="$work/tap/tmp_check" \
		TESTLOGDIR="$work/tap/tmp_check/log" DLOCK_OLD_BINDIR="${old_bindir:-}" \
		perl scripts/tap "${@:2}"
}

# pg_regress <tree> regress|isolation <folder for output> <option or test...>
pg_regress() {
	local program=regress/pg_regress config=("--temp-config=$1/test/regress.conf")

	if [ "$2" = isolation ]; then
		program=isolation/pg_isolation_regress
		config+=("--temp-config=$1/test/isolation.conf")
	fi
	as_user "$pgxs/src/test/$program" --temp-instance="$work/$2" "${config[@]}" --bindir="$bindir" \
		--inputdir="$1" --outputdir="$3" --no-locale --encoding=UTF8 "${@:4}"
}

# start_server [NAME]: several servers have names
start_server() {
	local name=${1:+-$1}

	mkdir "$work/sock$name"
	give "$work/sock$name"
	as_user "$bindir/initdb" -D "$work/data$name" -U postgres -A trust -N >"$work/log/initdb$name.log" 2>&1 &&
		as_user "$bindir/pg_ctl" -D "$work/data$name" -l "$work/log/server$name.log" -w start \
			-o "-c listen_addresses= -k $work/sock$name -c shared_preload_libraries=dlock -c fsync=off" \
			>"$work/log/start$name.log" 2>&1
}

stop_server() {
	local name=${1:+-$1}

	as_user "$bindir/pg_ctl" -D "$work/data$name" -w -m fast stop >"$work/log/stop$name.log" 2>&1
}

# Two clusters and a router, each on a server of its own, with dlock installed.
start_cluster() {
	local name psql=("$bindir/psql" -X -q -v ON_ERROR_STOP=1 -U postgres -d postgres)

	for name in a b router; do
		start_server "$name" || return
	done
	as_user "${psql[@]}" -h "$work/sock-a" -c 'CREATE EXTENSION dlock' -c "SELECT dlock_serve('{[0,512)}')" &&
		as_user "${psql[@]}" -h "$work/sock-b" -c 'CREATE EXTENSION dlock' -c "SELECT dlock_serve('{[512,1024)}')" &&
		as_user "${psql[@]}" -h "$work/sock-router" -c 'CREATE EXTENSION plproxy' -c 'CREATE EXTENSION dlock_router' \
			-c "INSERT INTO dlock_router.clusters VALUES
				('a', '{[0,512)}', 'host=$work/sock-a dbname=postgres'),
				('b', '{[512,1024)}', 'host=$work/sock-b dbname=postgres')"
}

stop_cluster() {
	local name

	for name in a b router; do
		stop_server "$name" || return
	done
}

# show_cluster_tour <tree>: what a router does, then a shard that moves
show_cluster_tour() {
	local psql=("$bindir/psql" -X -q -h "$work/sock-router" -U postgres -d postgres)
	local dlock=("$1/client/cli/dlock")

	input=$1/scripts/tour_cluster.sql as_user "${psql[@]}" 2>&1 &&
		echo '$ dlock shard list' &&
		as_user "${dlock[@]}" shard list -h "$work/sock-router" -U postgres -d postgres &&
		echo && echo '$ dlock shard move 512-600 b a' &&
		as_user "${dlock[@]}" shard move 512-600 b a -h "$work/sock-router" -U postgres -d postgres 2>&1 &&
		echo && echo '$ dlock shard list' &&
		as_user "${dlock[@]}" shard list -h "$work/sock-router" -U postgres -d postgres
}

# What a new user sees first.
show_tour() {
	input=$1/scripts/tour.sql as_user "$bindir/psql" -X -q -h "$work/sock" -U postgres -d postgres 2>&1
}
