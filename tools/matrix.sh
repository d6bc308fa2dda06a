#!/bin/bash
# matrix.sh [--short] [LINE...]: build the tree in other ways than tools/test.sh does, each in
# build/matrix-LINE, and run tests there. Without a LINE all of them, which takes about half an hour
# on two cores. Prints a line each. Ends with 0: all is well, 1: something failed, 2: it could not begin.
#
#   --short   what finds most in little time, of the lines that have such a form (a few minutes);
#             in build/matrix-LINE-short. tools/test.sh runs it
#   --list    the lines, and why each is there
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh FILE
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/packages.sh

all='clang tsan release ndebug no-cuda valgrind' all_short='clang tsan release'

# What a line is: its reason, what it needs from Debian beside test.sh's, the compiler, how it is set
# up, what is built first, and its tests: whole suites, or by name.
describe() {
    compiler=gcc setup=(--buildtype=debugoptimized) packages='' first='' suites='' names='' wrapper=''
    case $1 in
    clang)
        reason='the other compiler: its warnings are errors, and its sanitizers see other things'
        packages='clang=clang libclang-rt-14-dev'
        compiler=clang
        setup+=('-Db_sanitize=address,undefined' -Db_lundef=false)
        suites='unit client scenario death swap hybrid tools matrix'
        [ -z "$short" ] && return
        setup=(--buildtype=debug) first=all suites=''
        names='layout tokens ring seen halves twin states disk one_mapping'
        ;;
    tsan)
        reason='races: daemon and library as threads over one mapping, and whatever has threads anyway'
        packages='clang=clang libclang-rt-14-dev'
        compiler=clang # gcc's knows of no fences, and says so
        setup+=(-Db_sanitize=thread -Db_lundef=false)
        suites='unit swap matrix scenario'
        [ -z "$short" ] && return
        suites='' names='one_mapping ring swap_basic disk'
        ;;
    release)
        reason='what is installed: no assert() is compiled, and the linker optimizes across files'
        setup=(--buildtype=release -Db_lto=true)
        suites='client scenario death hybrid tools' # of processes: see ndebug
        [ -z "$short" ] && return
        suites='' names='b01_b12 states disk crowd'
        ;;
    ndebug)
        reason='the same for parts by themselves, whose calls are wrapped: a linker that optimizes does not'
        setup=(--buildtype=release)
        suites='unit model swap matrix'
        ;;
    no-cuda)
        reason='a machine without nvcc: no kernels in the binary, the copy engine moves all pages'
        setup+=(-Dcuda=disabled)
        suites='cuda'
        ;;
    valgrind)
        reason='bytes that are used before they are written, which the sanitizers here do not see'
        packages='valgrind=valgrind'
        wrapper='env CK_TIMEOUT_MULTIPLIER=10 valgrind -q --vgdb=no --error-exitcode=99 --trace-children=yes'
        # No disk: its threads take turns, and one that waits in io_uring keeps its turn.
        names='layout tokens identity seen spaces fetch open cancel pool states tails rules snapshots_spill'
        ;;
    *) return 1 ;;
    esac
}

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0"
}

count() {
    sed -n "s/^$1: *\([0-9]*\).*/\1/p" "$log" | tail -n 1 | grep . || echo 0
}

# The result of a line, or its reason.
say() {
    printf '%-9s %s\n' "$1" "$2"
}

# Meson passes over what it does not know.
all_there() {
    local list name status=0
    ninja --quiet -C "$build" build.ninja || return
    list=$(meson test -C "$build" --no-rebuild --list) || return
    for name in $suites; do
        grep -q ":$name / " <<<"$list" || { echo "there is no suite $name" && status=1; }
    done
    for name in $names; do
        grep -q " / $name\$" <<<"$list" || { echo "there is no test $name" && status=1; }
    done
    return $status
}

build_and_test() {
    local filter=()
    [ -f "$build/build.ninja" ] || CC=$compiler meson setup "$build" "${setup[@]}" || return
    [ -z "$first" ] || ninja --quiet -C "$build" "$first" || return
    all_there || return
    for suite in $suites; do filter+=(--suite "$suite"); done
    # shellcheck disable=SC2086
    meson test -C "$build" --print-errorlogs -t "${TEST_TIMEOUT_MULTIPLIER:-3}" \
        ${wrapper:+--wrapper="$wrapper"} "${filter[@]}" $names
}

run_line() {
    local began=$SECONDS status=0 passed failed
    build=build/matrix-$1${short:+-short} log=build/matrix-$1${short:+-short}.log
    mkdir -p build
    build_and_test >"$log" 2>&1 || status=1
    passed=$(count Ok) failed=$(($(count Fail) + $(count Timeout)))
    if [ "$status" = 0 ] && [ "$passed" != 0 ]; then
        say "$1" "ok  $passed tests, $((SECONDS - began)) s"
        return
    fi
    say "$1" "FAILED  $failed of $((passed + failed)) tests, $((SECONDS - began)) s; the end of $log:"
    tail -n 60 "$log"
    return 1
}

short=''
case "${1:-}" in
-h | --help) usage && exit ;;
--list)
    [ $# = 1 ] || { usage >&2 && exit 2; }
    say gcc 'tools/test.sh: with the address and undefined-behaviour sanitizers, all tests'
    for line in $all; do describe "$line" && say "$line" "$reason"; done
    exit
    ;;
--short) short=1 && shift ;;
-*) usage >&2 && exit 2 ;;
esac
lines=("$@")
# shellcheck disable=SC2206
[ $# != 0 ] || lines=(${short:+$all_short})
# shellcheck disable=SC2206
[ ${#lines[@]} != 0 ] || lines=($all)
for line in "${lines[@]}"; do
    describe "$line" || { echo "matrix.sh: there is no line $line, see --list" >&2 && exit 2; }
    # shellcheck disable=SC2086
    (need_build_packages check $packages) || exit 2
done
status=0
for line in "${lines[@]}"; do
    (describe "$line" && run_line "$line") || status=1
done
exit $status
