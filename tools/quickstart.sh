#!/bin/bash
# Build prefixd, let two workers share its cache for a while, say what that saved.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh FILE
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/packages.sh

need_build_packages
echo "Building (release, in build/release) ..."
setup_in build/release --buildtype=release -Dtests=false
build_in build/release

dir=$(mktemp -d)
daemon=
clean_up() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    rm -rf "$dir"
}
trap clean_up EXIT
trap 'trap - INT; kill -INT $$' INT # ^C: clean up, and end as by ^C

export PREFIXD_SOCKET=$dir/prefixd.sock
setsid build/release/daemon/prefixd --blocks 65536 --block-tokens 16 --block-bytes 4K \
    >"$dir/out" 2>"$dir/log" &
daemon=$!
for ((i = 0; i < 300; i++)); do
    if grep -q '^ready ' "$dir/out" || ! kill -0 "$daemon" 2>/dev/null; then
        break
    fi
    sleep 0.1
done
if ! grep -q '^ready ' "$dir/out"; then
    cat "$dir/log" >&2
    exit 1
fi
echo "A daemon is ready. Two worker processes now serve the built-in chat workload ..."
build/release/tools/prefixctl replay --workers 2 --json >"$dir/report"

field() {
    sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$dir/report"
}
hit=$(field blocks_hit) requested=$(field blocks_requested)
echo
echo "They served $(field requests) prompts, $((requested * 16)) tokens in all (full blocks of 16)."
echo "Of these, $((hit * 16)) tokens were found in the shared cache and not recomputed: a hit"
printf 'ratio of %.4f. Without prefixd, each of them would have cost GPU time again.\n' \
    "$(field hit_ratio)"
echo "The $(field verified_blocks) cached pages that they used were compared byte for byte:" \
    "$(field corrupt_blocks) wrong, $(field leaked_blocks) leaked."
echo

kill "$daemon"
wait "$daemon"
daemon=
echo "quickstart: ok"
