#!/bin/bash
# Build with the address and undefined-behaviour sanitizers and run every test: a line each, then
# the short form of other builds, a line each (tools/matrix.sh), then the count. Fails if one fails.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh FILE
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/packages.sh

need_build_packages check spin
echo "Building (sanitizers, in build/test) ..."
[ -f build/test/build.ninja ] ||
    meson setup build/test --buildtype=debugoptimized -Db_sanitize=address,undefined \
        -Db_lundef=false >/dev/null
build_in build/test

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
meson test -C build/test --no-rebuild --print-errorlogs -t "${TEST_TIMEOUT_MULTIPLIER:-3}" |
    tee "$log" || status=$?

count() {
    sed -n "s/^$1: *\([0-9]*\).*/\1/p" "$log" | tail -n 1 | grep . || echo 0
}
passed=$(($(count Ok) + $(count 'Expected Fail')))
failed=$(($(count Fail) + $(count 'Unexpected Pass') + $(count Timeout)))
[ "$status" = 0 ] || [ "$failed" != 0 ] || failed=1
if [ "$(count Skipped)" != 0 ]; then
    echo "skipped:"
    grep -E '[[:space:]]SKIP([[:space:]]|$)' "$log" || true
fi
echo "Other builds (tools/matrix.sh --list) ..."
for line in clang tsan release; do
    if tools/matrix.sh --short "$line"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
