#!/bin/bash
# fuzz.sh SECONDS [TARGET...]: run libFuzzer targets of tests/fuzz for so long each (all of them
# without a name), beginning with what earlier runs have found (build/fuzz/corpus). Prints a line a
# target, the lines of the daemon's core that its corpus covers, and every input that failed.
# Ends with 0: none did, 1: one did, or the build, 2: wrong usage.
#
# With AFL++ instead: CC=afl-clang-fast meson setup build/afl -Db_lundef=false, then
# afl-fuzz -i SEEDS -o OUT build/afl/tests/fuzz/fuzz_TARGET; seeds: fuzz_TARGET --write SEEDS.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh FILE
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/packages.sh

case "${1:-}" in
-h | --help)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
'' | 0* | *[!0-9]*) # 0 would be without end
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
seconds=$1
shift
build=$PWD/build/fuzz

all=()
for file in tests/fuzz/fuzz_*.c; do
    name=${file##*/fuzz_}
    all+=("${name%.c}")
done
targets=("$@")
[ $# != 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
    [ -f "tests/fuzz/fuzz_$target.c" ] ||
        { echo "fuzz.sh: there is no target $target, but: ${all[*]}" >&2 && exit 2; }
done
need_build_packages check clang=clang llvm-cov=llvm libclang-rt-14-dev
echo "Building (clang, in build/fuzz) ..."
CC=clang setup_in "$build" --buildtype=debugoptimized -Dfuzzers=true \
    -Db_sanitize=address,undefined -Db_lundef=false
ninja --quiet -C "$build" "${targets[@]/#/tests/fuzz/fuzz_}" "${targets[@]/#/tests/fuzz/libfuzzer_}" |
    { grep -v '^ninja: no work to do' || true; }

export LLVM_PROFILE_FILE=/dev/null # but where lines are counted: else it is in the current directory
export UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
mkdir -p "$build/failed" "$build/profiles"
rm -f "$build"/profiles/*
touch "$build/began"
status=0
objects=()

# Lines of dispatch, index, lease and snapshot code: covered, all, percent.
core_lines() {
    llvm-profdata merge -sparse -o "$build/all.profdata" "$@"
    llvm-cov report "${objects[@]}" -instr-profile="$build/all.profdata" 2>/dev/null |
        awk '$1 ~ /daemon\/(dispatch|index|lease|snapshot)[a-z_]*\.c$/ { n += $8; missed += $9 }
             END { if (n) printf "%d of %d lines, %.1f %%\n", n - missed, n, 100 * (n - missed) / n }'
}

for target in "${targets[@]}"; do
    program=$build/tests/fuzz/libfuzzer_$target
    corpus=$build/corpus/$target
    mkdir -p "$corpus"
    "$build/tests/fuzz/fuzz_$target" --write "$corpus"
    kept=tests/fuzz/corpus/$target
    [ -d "$kept" ] || kept=
    # shellcheck disable=SC2086
    "$program" -max_len=4096 -max_total_time="$seconds" -timeout=60 \
        -print_final_stats=1 -artifact_prefix="$build/failed/$target-" "$corpus" $kept \
        >"$build/$target.log" 2>&1 || status=1
    grep -m 1 -E 'Failed:|Assertion|runtime error:|ERROR: [a-zA-Z]*Sanitizer|ERROR: libFuzzer' "$build/$target.log" || true
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")
    echo "$target: ${runs:-?} executions, $(find "$corpus" -type f | wc -l) inputs kept, log $build/$target.log"
    # shellcheck disable=SC2086
    LLVM_PROFILE_FILE=$build/profiles/$target "$program" -runs=0 "$corpus" $kept >"$build/$target.replay" 2>&1 ||
        status=1
    [ ${#objects[@]} = 0 ] && objects=("$program") || objects+=(-object "$program")
    [ -f "$build/profiles/$target" ] && echo "    core: $(core_lines "$build/profiles/$target")"
done
[ ${#targets[@]} = 1 ] || echo "together: $(core_lines "$build"/profiles/*)"
failed=$(find "$build/failed" -type f -newer "$build/began")
echo "$(echo -n "$failed" | grep -c '') inputs failed"
[ -z "$failed" ] || echo "$failed"
[ "$status" = 0 ] && [ -z "$failed" ]
