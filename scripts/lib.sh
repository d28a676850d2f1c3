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

# "--pg 17", as the first option of every script, chooses a PostgreSQL of the
# distribution.
if [ "${1:-}" = --pg ]; then
	[[ ${2:-} =~ ^[1-9][0-9]$ ]] || die "--pg takes a major version of PostgreSQL, such as 17"
	export DLOCK_PG=$2
	unset PG_CONFIG
	shift 2
fi

# The major versions that dlock supports, in ascending order.
supported_majors() {
	grep -x '[0-9]*' "$root/debian/pgversions"
}

# Those of them that are installed with a server and its development files.
installed_majors() {
	local major

	for major in $(supported_majors); do
		if [ -x "/usr/lib/postgresql/$major/bin/postgres" ] &&
			[ -e "/usr/lib/postgresql/$major/lib/pgxs/src/makefiles/pgxs.mk" ]; then
			echo "$major"
		fi
	done
}

# The major version of the PostgreSQL of the distribution that we use: the one of
# --pg, else the newest that is installed with its development files, else the
# one that the package "postgresql" depends on.  Nothing if apt knows no such
# package.
distribution_major() {
	local major=${DLOCK_PG:-}

	[ -n "$major" ] || major=$(installed_majors | tail -n 1)
	[ -n "$major" ] ||
		major=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/^ *Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1)
	[ -z "$major" ] || supported_majors | grep -qx "$major" ||
		die "dlock needs PostgreSQL $(supported_majors | head -n 1) to $(supported_majors | tail -n 1), not $major; choose one with --pg or PG_CONFIG"
	echo "$major"
}

# The pg_config of the PostgreSQL that we use.  PG_CONFIG names one that need not
# be the distribution's.
find_pg_config() {
	local major

	if [ -n "${PG_CONFIG:-}" ]; then
		echo "$PG_CONFIG"
	else
		major=$(distribution_major) || exit
		[ -n "$major" ] || die "no PostgreSQL is installed with its development files; set PG_CONFIG"
		echo "/usr/lib/postgresql/$major/bin/pg_config"
	fi
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

	# make cannot work in a folder with a space in its name, and the path of a
	# socket must be short
	[[ ${TMPDIR:-} =~ ^/[A-Za-z0-9/._+-]{1,50}$ ]] || TMPDIR=/tmp

	# the physical path, as in /proc
	work=$(mktemp -d "$TMPDIR/dlock.XXXXXX")
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
	# PostgreSQL's TAP library deletes LC_ALL
	export TMPDIR=$work/tmp HOME=$work/home LC_ALL=C.UTF-8 LANG=C.UTF-8
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
	tar -C "$root" -cf - --exclude-vcs --exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=./client/cli/dlock --exclude=./test/torture/check --exclude=./test/torture/client --exclude=./test/torture/routed --exclude=./test/torture/links --exclude=libdlock.a --exclude='libdlock.so*' \
		--exclude=./results --exclude=./output_iso --exclude=./tmp_check \
		--exclude=./tmp_check_iso --exclude=./log --exclude=./build --exclude='./dlock-*.zip' . |
		tar -C "$1" -xf - --no-same-owner
	give "$1"
}

# PostgreSQL finds its files relative to its programs, so a copy of the programs
# with links to the rest is a separate installation.
copy_postgres() {
	local from prefix dir file

	from=$(find_pg_config) || exit
	"$from" --version >/dev/null || die "there is no pg_config at $from"
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
	local program=regress/pg_regress input=$1 config=("--temp-config=$1/test/regress.conf")

	if [ "$2" = isolation ]; then
		program=isolation/pg_isolation_regress
		input=$1/test
		config+=("--temp-config=$1/test/isolation.conf")
	fi
	as_user "$pgxs/src/test/$program" --temp-instance="$work/$2" "${config[@]}" --bindir="$bindir" \
		--inputdir="$input" --outputdir="$3" --no-locale --encoding=UTF8 "${@:4}"
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

# Clean Debians, which mmdebstrap makes for scripts/package and scripts/versions.
# All is in namespaces, so that nothing stays mounted or running.
namespaces=(unshare --mount --pid --fork --kill-child --propagation private --mount-proc)

# Why there can be none on this machine; nothing if there can.
why_no_debian() {
	if [ "$(id -u)" != 0 ]; then
		echo "needs root"
	elif ! grep -q '^ID=debian' /etc/os-release; then
		echo "needs a machine with Debian"
	elif ! unshare --mount --pid --fork --mount-proc true 2>/dev/null; then
		echo "needs namespaces, which this machine does not allow"
	fi
}

# in_debian <folder> <command...>: runs the command for that clean Debian, with
# /proc and /dev in it.  When it ends, so does everything that it started.  The folder
# is a mount point, without which there could be no namespaces in it.
in_debian() {
	# shellcheck disable=SC2016	# for the shell inside
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive \
		"DLOCK_WORK=$work" "${namespaces[@]}" bash -c '
			mount --rbind "$0" "$0" && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec "$@"' "$@" </dev/null &
	wait "$!"
}
