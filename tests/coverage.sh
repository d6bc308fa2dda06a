#!/bin/sh
# coverage.sh TESTS: every test that COVERAGE.md names is there, and every scenario of ours is named in it.
set -u
cd "$1" || exit 1
bad=0
there=$(grep -rhoE 'START_TEST\([a-z0-9_]+\)' --include='*.c' . | sed 's/START_TEST(//; s/)//' | sort -u)
named=$(grep '^|' COVERAGE.md | grep -oE '`[a-z][a-z0-9_]+`' | tr -d '`' | grep '_' | sort -u)
for name in $named; do
    case $name in
    # operations, not tests
    is_active | peek_matched_tokens | release_matched | n_blocks) continue ;;
    insert_with_snapshot | insert_intermediate_snapshot | insert_tail_snapshot) continue ;;
    insert_tail_sibling_snapshot | evict_snapshot_lru | evict_snapshot_to_tier) continue ;;
    promote_snapshot | forget_snapshot_tier_key | snapshot_count) continue ;;
    esac
    if ! echo "$there" | grep -qx "$name"; then
        echo "COVERAGE.md names $name, which is no test"
        bad=1
    fi
done
for name in $(echo "$there" | grep -E '^(b[0-9]|e[0-9]|op_|rule_|litmus_)'); do
    if ! echo "$named" | grep -qx "$name"; then
        echo "$name is not in COVERAGE.md"
        bad=1
    fi
done
exit $bad
