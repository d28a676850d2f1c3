# shellcheck shell=bash
# shellcheck disable=SC2154	# variables of scripts/lib.sh
# Common parts of scripts/torture and scripts/soak, on top of scripts/lib.sh.

# torture_build [thread|address]: with that sanitizer in the clients
torture_build() {
	local log=$work/log/build.log flags=()

	[ -z "${1:-}" ] || flags=(CFLAGS="-O1 -g -fsanitize=$1")

	if ! {
		as_user make -s -C "$work/tree" -j "$(nproc)" PG_CONFIG="$pg_config" with_llvm=no all install &&
			as_user make -s -C "$work/tree/portable" PG_CONFIG="$pg_config" install &&
			as_user make -s -C "$work/tree/client/c" -j "$(nproc)" "${flags[@]}" libdlock.a &&
			as_user make -s -C "$work/tree/test/torture" -j "$(nproc)" "${flags[@]}" client routed &&
			as_user make -s -C "$work/tree/test/torture" -j "$(nproc)" all
	} >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		die "dlock does not build"
	fi
}

# torture_run <name> <options...>: a run, whose history goes to log/<name>
torture_run() {
	local name=$1 status=0

	mkdir "$work/run" "$work/log/$name"
	give "$work/run" "$work/log/$name"
	as_user env PATH="$bindir:$PATH" perl "$work/tree/test/torture/run" --bindir "$bindir" \
		--work "$work/run" --folder "$work/log/$name" "${@:2}" || status=$?
	mv "$work/run/log" "$work/log/$name/servers" 2>/dev/null || true
	rm -rf "$work/run"
	return "$status"
}
