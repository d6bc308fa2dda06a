#!/bin/bash
# unit.sh PREFIXD PREFIXCTL UNDER_FILTER FOLDER: the unit in FOLDER is one that systemd takes, with and
# without the drop-in for GPUs; its exposure is what it was; and the daemon does all its work under the
# system calls that it lets through.
set -euo pipefail
prefixd=$(realpath "$1") prefixctl=$(realpath "$2") under_filter=$(realpath "$3") source=$4
exposure_most=10 # tenths: systemd-analyze security
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is missing: install systemd"; exit 1; }

dir=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null; rm -rf "$dir"' EXIT
fail() {
    echo "$*"
    exit 1
}

# ---- what systemd says ----

unit=$dir/units/prefixd.service
mkdir -p "$dir/units"
sed "s|@bindir@/prefixd|$prefixd|" "$source/prefixd.service.in" >"$unit"
export SYSTEMD_UNIT_PATH=$dir/units:
verify() {
    said=$(systemd-analyze verify --man=no --recursive-errors=no "$unit" 2>&1) || fail "verify: $said"
    [ -z "$said" ] || fail "verify: $said"
}
verify
systemd-analyze security --offline=yes --no-pager --threshold=$exposure_most "$unit" >"$dir/exposure" ||
    fail "exposed more than $exposure_most tenths: $(cat "$dir/exposure")"
grep 'Overall exposure' "$dir/exposure"
mkdir "$unit.d"
cp "$source/cuda.conf" "$unit.d/"
verify

# ---- which system calls it lets through ----

expand() { # a name, or a set of names and sets
    case $1 in
    @*) systemd-analyze syscall-filter "$1" | grep -v '#' | tail -n +2 | while read -r name; do
        [ -z "$name" ] || expand "$name"
    done ;;
    *) echo "$1" ;;
    esac
}

: >"$dir/allowed"
while read -r words; do
    : >"$dir/these"
    for word in ${words#\~}; do
        expand "$word" >>"$dir/these"
    done
    sort -u "$dir/these" -o "$dir/these"
    if [ "${words#\~}" = "$words" ]; then
        sort -u "$dir/these" "$dir/allowed" -o "$dir/allowed"
    else
        comm -23 "$dir/allowed" "$dir/these" >"$dir/left"
        mv "$dir/left" "$dir/allowed"
    fi
done < <(sed -n 's/^SystemCallFilter=//p' "$unit")
echo '#include <sys/syscall.h>' | ${CC:-cc} -E -dM - |
    sed -n 's/^#define __NR_\([a-z0-9_]*\) \([0-9]*\)$/\1 \2/p' | sort >"$dir/numbers"
mapfile -t numbers < <(join "$dir/allowed" "$dir/numbers" | cut -d' ' -f2)
[ "${#numbers[@]}" -gt 200 ] || fail "only ${#numbers[@]} system calls are let through"
for name in ptrace setuid mount bpf userfaultfd process_vm_writev pidfd_getfd; do
    ! grep -qx "$name" "$dir/allowed" || fail "$name is let through"
done

# ---- and whether that suffices ----

export PREFIXD_SOCKET=$dir/socket ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
start() { # as the unit does; then wait until it answers
    "$@" "$prefixd" --blocks 500 --block-bytes 4K --swap "$dir:64M" --snapshots 16 --snapshot-bytes 4K \
        --snapshot-swap 1M 2>>"$dir/log" &
    daemon=$!
    for _ in {1..400}; do
        if "$prefixctl" status >/dev/null 2>&1; then return; fi
        kill -0 $daemon 2>/dev/null || break
        sleep 0.05
    done
    fail "it does not start: $(cat "$dir/log")"
}
stop() {
    kill -TERM "$daemon"
    wait "$daemon" || fail "it ended with $?: $(tail -n 20 "$dir/log")"
    daemon=
}
value() {
    "$prefixctl" status | sed -n "s/^$1 *//p"
}

start
uring=$(value disk_uring)
stop
start "$under_filter" "${numbers[@]}" --
"$prefixctl" replay --limit 60 --workers 2 >"$dir/replay" || fail "replay: $(cat "$dir/replay" "$dir/log")"
"$prefixctl" audit
[ "$(value disk_uring)" = "$uring" ] || fail "io_uring: $uring without the filter, not with it"
[ "$(value disk_written_blocks)" -gt 0 ] || fail "nothing was written to disk"
[ "$(value disk_read_blocks)" -gt 0 ] || fail "nothing was read from disk"
"$prefixctl" flush --all
stop
start "$under_filter" "${numbers[@]}" -- # over the files that are there
stop
