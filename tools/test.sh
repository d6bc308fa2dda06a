#!/bin/bash
# test.sh [SUITE...]: build with the address and undefined-behaviour sanitizers and run every test, or
# those of some suites: unit litmus model models scenario death client tools hybrid swap cuda matrix
# security fuzz chaos. After all of them other builds (tools/matrix.sh --short), and coverage: did each
# test run that tests/COVERAGE.md names?
#
# Prints a line a suite when it is through (seconds: of its tests, added up), all that a test said that
# failed, and last the count. TEST_TIMEOUT_MULTIPLIER (3) stretches the tests' time limits. Ends with
# 0: all is well, 1: something failed, 2: wrong usage.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh FILE
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/packages.sh

case "${1:-}" in
-*)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    [ "$1" = --help ] || [ "$1" = -h ] || exit 2
    exit 0
    ;;
esac

build=$PWD/build/test
need_build_packages check spin systemd-analyze=systemd
echo "Building (sanitizers, in build/test) ..."
setup_in "$build" --buildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false
declare -A tests=() left=() ok=() bad=() skipped=() ms=()
while read -r suite; do
    tests[$suite]=$((${tests[$suite]:-0} + 1))
done < <(meson test -C "$build" --no-rebuild --list 2>&1 | sed -n 's/^[^: ]*:\([^: ]*\) \/ .*/\1/p')
for suite in "$@"; do
    [ -n "${tests[$suite]:-}" ] ||
        { echo "test.sh: there is no suite $suite, but: ${!tests[*]}" >&2 && exit 2; }
done
build_in "$build"

said=$(mktemp)
trap 'rm -f "$said"' EXIT
passed=0 failed=0

# Where somebody looks: what goes on, until the next line.
progress() {
    [ ! -t 1 ] || printf '\r\033[K%s' "$*"
}

# NAME PASSED FAILED SKIPPED SECONDS
line() {
    progress
    printf '%-10s %8s %8s %8s %8s\n' "$@"
}

# NAME COMMAND...: something besides meson's tests, which passes, fails or is skipped (77) as a whole.
also() {
    local name=$1 start=$SECONDS ends=0 row
    shift
    progress "$name ..."
    "$@" >"$said" 2>&1 || ends=$?
    case $ends in
    0) row=(1 0 0) ;;
    77) row=(0 0 1) ;;
    *) row=(0 1 0) ;;
    esac
    passed=$((passed + row[0])) failed=$((failed + row[1]))
    line "$name" "${row[@]}" $((SECONDS - start))
    [ "$ends" = 0 ] || cat "$said"
}

# SUITE NAME RESULT TIME...: a test is over.
over() {
    local suite=$1
    case $3 in
    OK) ok[$suite]=$((ok[$suite] + 1)) ;;
    SKIP) skipped[$suite]=$((skipped[$suite] + 1)) ;;
    *) bad[$suite]=$((bad[$suite] + 1)) failed=$((failed + 1)) ;;
    esac
    [ "$3" = OK ] || { progress && echo "$suite / ${*:2}"; }
    ms[$suite]=$((ms[$suite] + 10#${4//[.s]/} * 10))
    left[$suite]=$((left[$suite] - 1))
    [ "${left[$suite]}" != 0 ] ||
        line "$suite" "${ok[$suite]}" "${bad[$suite]}" "${skipped[$suite]}" $((ms[$suite] / 1000))
}

# What the tests that failed have said, without what Check says of those that passed.
failures() {
    awk '/^=+ [0-9]+\/[0-9]+ =+$/ { text = ""; failed = 0 }
         /^result:/ { failed = $0 !~ / exit status (0|77)$/ }
         !/^[^ ]+:[0-9]+:P:/ { text = text $0 "\n" }
         /^=+$/ && failed { printf "%s", text; failed = 0 }' "$build/meson-logs/testlog.txt"
}

# Runs the suites, one test more at once than there are processors: many wait for time-outs or disks.
run() {
    local which=() all=0 suite text
    for suite in "$@"; do
        which+=(--suite "$suite")
        left[$suite]=${tests[$suite]} ok[$suite]=0 bad[$suite]=0 skipped[$suite]=0 ms[$suite]=0
        all=$((all + tests[$suite]))
    done
    line suite passed failed skipped seconds
    while read -r text; do
        echo "$text" >>"$said"
        [[ $text =~ ^[0-9]+/[0-9]+\ [^:\ ]*:([^:\ ]+)\ /\ (.*) ]] || continue
        # shellcheck disable=SC2086
        over "${BASH_REMATCH[1]}" ${BASH_REMATCH[2]}
        progress "${text%%/*} of $all tests, $failed failed, $SECONDS s"
    done < <(exec meson test -C "$build" --no-rebuild --num-processes $(($(nproc) + 1)) \
        -t "${TEST_TIMEOUT_MULTIPLIER:-3}" "${which[@]}" 2>&1)
    progress
    if ! wait $! && [ "$failed" = 0 ]; then # it is meson that failed
        failed=1
        cat "$said"
    fi
    for suite in "$@"; do # it ended well, and has not said of all that they did
        [ "$failed" != 0 ] || [ "${left[$suite]}" = 0 ] || {
            echo "$suite: ${left[$suite]} of ${tests[$suite]} tests have said nothing"
            failed=1
        }
    done
    sed -n '/^SKIPPED /s//skipped: /p' "$build/meson-logs/testlog.txt" | sort -u
    [ "$failed" = 0 ] || failures
    for suite in "$@"; do
        passed=$((passed + ok[$suite]))
    done
}

if [ $# != 0 ]; then
    run "$@"
else
    run "${!tests[@]}"
    for build_line in clang tsan release; do
        also "$build_line" tools/matrix.sh --short "$build_line"
    done
    also coverage tests/coverage.sh tests "$build/meson-logs/testlog.txt"
fi
echo "$((SECONDS / 60)) min $((SECONDS % 60)) s"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
