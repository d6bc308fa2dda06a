#!/bin/bash
# coverage_test.sh COVERAGE.SH: it finds what is wrong, and nothing where nothing is.
set -u
script=$1
all=$(mktemp -d) || exit 1
trap 'rm -rf "$all"' EXIT
room=$all/main/tests
status=0

# A tree in which all is well, and the log of its run.
tree() {
    rm -rf "${all:?}"/*
    mkdir -p "$room/models" "$all/shared/scenarios"
    printf '# Reports\n\n### B01\n\nOf B04.\n' >"$all/shared/scenarios/reports.md"
    printf '# Faults\n2. **Two**. Not 4.\n 4.\n3. **Three**.\n' >"$all/shared/scenarios/faults.md"
    cat >"$room/COVERAGE.md" <<'EOF'
Outside of tables `nothing` counts.

| id | what | covered by |
| --- | --- | --- |
| B01 | one | `b01_one`, `two`: `models/x.pml` |
| E2 | two | it cannot be |
| E3 | three, where there is an nvcc | `models/y.sh` |
| `first_cell` | | `two` |
EOF
    cat >"$room/a.c" <<'EOF'
START_TEST(b01_one)
START_TEST(two)
    tcase_add_test(c, b01_one);
    tcase_add_loop_test(c, two,
                        0, 2);
EOF
    cp "$room/a.c" "$room/b.c"
    sed -i 's/b01_one/three/; s/two/four/' "$room/b.c"
    : >"$room/models/x.pml"
    : >"$room/models/y.sh"
    cat >"$room/log" <<'EOF'
result:       exit status 0
command:      A=/x/y MALLOC_PERTURB_=1 /build/test_a
../tests/a.c:1:P:case:b01_one:0: Passed
../tests/a.c:2:P:case:two:0: Passed
../tests/a.c:2:P:case:two:1: Passed
result:       exit status 0
command:      /tests/models/run.sh /tests/models/x.pml
result:       exit status 0
command:      /tests/models/run.sh /tests/models/x.pml MUTATION
EOF
}

# WHAT SENTENCE [LOG]: it says just that; nothing, if it is empty.
says() {
    local said ends=0 expected=1
    said=$("$script" "$room" ${3:+"$room/$3"} 2>&1) || ends=$?
    case $2 in
    '') expected=0 ;;
    *'was skipped') expected=77 ;; # here never beside something worse
    esac
    if [ "$said" != "$2" ] || [ "$ends" != "$expected" ]; then
        printf '%s: it says\n%s\nnot\n%s\n' "$1" "$said" "$2"
        status=1
    fi
    tree
}

# FILE EXPRESSION: a change, with sed; it has to be one.
change() {
    sed -i.was "$2" "$room/$1"
    ! cmp -s "$room/$1" "$room/$1.was" || { echo "$2 changes nothing" && status=1; }
    rm "$room/$1.was"
}

tree
says "all is well" ""
says "all is well, and ran" "" log
change COVERAGE.md 's/`two`/`tow`/'
says "a name that is no test" "COVERAGE.md, row B01: there is no test tow
COVERAGE.md, row first_cell: there is no test tow"
change COVERAGE.md 's/x\.pml/z.pml/'
says "a name that is no file" "COVERAGE.md, row B01: there is no file models/z.pml"
change COVERAGE.md 's/it cannot be//'
says "an empty row" "COVERAGE.md, row E2: it names no test, and does not say why"
change COVERAGE.md '/E2/d'
says "a scenario without a row" "COVERAGE.md: the scenario E2 has no row"
change COVERAGE.md '/E2/d; s/E3/E3, E2/'
says "two scenarios in a row" ""
change ../../shared/scenarios/faults.md 's/^[23]/& /'
change ../../shared/scenarios/reports.md 's/###/##/'
says "scenarios that are written in another way" "../../shared/scenarios: no scenario is found in its files"
change b.c 's/four/two/'
says "two tests of one name" "COVERAGE.md, row B01: several tests are called two: ./a.c ./b.c
COVERAGE.md, row first_cell: several tests are called two: ./a.c ./b.c"
change COVERAGE.md 's/`b01_one`, //'
says "a scenario that is in no table" "./a.c: the test b01_one is not in COVERAGE.md"
change b.c '/add_test/d'
says "a test in no case" "./b.c: no case has the test three"
change b.c 's/c, three/c, three_more/'
says "a test in no case, but one that begins so" "./b.c: no case has the test three"
change log '/two/d'
says "a test that did not run" "COVERAGE.md, row B01: two was not run
COVERAGE.md, row first_cell: two was not run" log
change log '3s/P:case\(.*\)Passed/F:case\1no/'
says "a test that failed" "COVERAGE.md, row B01: b01_one failed" log
change log '5s/P:case\(.*\)Passed/E:case\1no/'
says "a test that failed the second time" "COVERAGE.md, row B01: two failed
COVERAGE.md, row first_cell: two failed" log
echo "SKIPPED two: no reason" >>"$room/log"
says "a test that skipped itself" "COVERAGE.md, row B01: two was skipped
COVERAGE.md, row first_cell: two was skipped" log
change log '/MUTATION/!{s/x.pml/z.pml/}'
change log '8s/0$/77/'
says "a script that was skipped" "COVERAGE.md, row B01: models/x.pml was skipped" log
change log '8s/0$/1/'
says "a script that failed once" "COVERAGE.md, row B01: models/x.pml failed" log
echo "command: /models/y.sh /bin/nvcc" >>"$room/log" # after "exit status 0"
says "a script that runs where there is an nvcc" "" log
echo "command: /models/z.sh /bin/nvcc" >>"$room/log"
says "a script that did not run although there is an nvcc" "COVERAGE.md, row E3: models/y.sh was not run" log

# TREE: which scenarios there are, asked by having no row.
scenarios() {
    "$script" "$1" | sed -n 's/^COVERAGE.md: the scenario \(.*\) has no row$/\1/p'
}

# The list for a tree by itself is that of the files.
real=$(cd "$(dirname "$script")/../.." && pwd)/shared/scenarios
echo 'no rows' >"$room/COVERAGE.md"
rm -r "$all/shared"
alone=$(scenarios "$room")
[ "$(grep -c . <<<"$alone")" = 125 ] || { echo "alone it knows of other scenarios: $alone" && status=1; }
if [ -d "$real" ]; then
    mkdir "$all/shared" && cp -r "$real" "$all/shared/scenarios"
    diff <(echo "$alone") <(scenarios "$room") || { echo "its list is not what is in $real" && status=1; }
fi
exit $status
