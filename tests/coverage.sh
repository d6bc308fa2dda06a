#!/bin/bash
# coverage.sh TESTS [TESTLOG]: what COVERAGE.md, in the directory TESTS, says is there.
#
#   - each scenario has its row: those of ../shared/scenarios beside the tree; where that is not, of a list here
#   - each `name` in its tables is that of one test, or of a file; no row is empty
#   - each START_TEST is added to a case of its file; one that is named after a scenario, an operation
#     or a rule is in a table
#   - with the testlog.txt of a whole `meson test`: each of them ran there, and passed
#
# Ends with 0: all is well, 1: it is not, 77: nothing is wrong but what was skipped.
set -uo pipefail
cd "$1" || exit 1
log=${2:-}
scenarios=../../shared/scenarios
room=$(mktemp -d) || exit 1
trap 'rm -rf "$room"' EXIT

all_scenarios() {
    if [ -d "$scenarios" ]; then
        sed -nE 's/^### (B[0-9]+)$/\1/p; s/^([0-9]+)\. .*/E\1/p' "$scenarios"/*.md
    else
        printf 'B%02d\n' 1 3 4 5 7 9 11 12 14 15 16 18 19 21 22 23 24 26 27 29 30 31 33 35 36 37 38 41 43 45 46 48
        seq 1 139 | awk '$1 % 3 != 2 { print "E" $1 }'
    fi
}
all_scenarios | sort >"$room/scenarios"
[ -s "$room/scenarios" ] || { echo "$scenarios: no scenario is found in its files" && exit 1; }
# A row may be that of several.
sed -nE 's/^\| *([BE][0-9][BE0-9, ]*)\|.*/\1/p' COVERAGE.md | grep -oE '[BE][0-9]+' | sort >"$room/rows"

# NAME FILE: of each test; then of each word that is given to tcase_add_test and its like.
grep -roE 'START_TEST\([A-Za-z0-9_]+\)' --include='*.c' . |
    sed -E 's/^(.*):START_TEST\((.*)\)$/\2 \1/' | sort >"$room/tests"
cut -d' ' -f2 "$room/tests" | sort -u | while read -r file; do
    tr '\n' ' ' <"$file" | grep -oE 'tcase_add_[a-z_]*test[a-z_]*\([^;]*' | grep -oE '[A-Za-z0-9_]+' |
        sed "s|\$| $file|"
done | sort -u >"$room/added"

# ROW WORD, for each `word` of a table. The first cell says what the row is about: of it files only.
# A third word is that of the program without which the row may be left out.
awk '/^\|/ {
        sub(/ *\| *$/, "")
        n = split(substr($0, 2), cell, / *\| */)
        row = cell[1]
        gsub(/[ `]/, "", row)
        without = match($0, /where there is an [a-z]+/) ? substr($0, RSTART + 18, RLENGTH - 18) : ""
        if (cell[n] ~ /^ *$/)
            print row, "-"
        for (i = 1; i <= n; i++)
            for (; match(cell[i], /`[^`]+`/); cell[i] = substr(cell[i], RSTART + RLENGTH)) {
                word = substr(cell[i], RSTART + 1, RLENGTH - 2)
                if (i > 1 || word ~ /\//)
                    print row, word, without
            }
    }' COVERAGE.md >"$room/words" || exit 1

# NAME HOW, of what ran: of a test, and of each file of a command without path and ending.
[ -z "$log" ] || awk '
    /^result:/ { how = $0 ~ / exit status 0$/ ? "passed" : $0 ~ / 77$/ ? "was skipped" : "failed" }
    /^command:/ {
        for (i = 2; i <= NF; i++)
            if ($i ~ /\// && $i !~ /=/) {
                sub(/.*\//, "", $i)
                sub(/\.[a-z]*$/, "", $i)
                print $i, how
            }
    }
    /^[^ ]+:[0-9]+:[PFE]:/ {
        split($0, part, ":")
        print part[5], part[3] == "P" ? "passed" : "failed"
    }
    /^SKIPPED / {
        sub(/:.*/, "", $2)
        print $2, "was skipped"
    }' "$log" | sort -u >"$room/ran" || exit 1

{
    comm -23 "$room/scenarios" "$room/rows" | sed 's/.*/COVERAGE.md: the scenario & has no row/'
    comm -23 "$room/tests" "$room/added" |
        sed -E 's/^(.*) (.*)$/\2: no case has the test \1/'
    awk -v whole="$log" -v tests="$room/tests" -v ran="$room/ran" '
        function ends(name) { # as its program or script is called: what of it runs by itself
            return name ~ /^[a-z]+\/.*\.(pml|sh|cu)$/ && name !~ /^tools\// || name ~ /(fuzz|chaos)\/.*\.c$/
        }
        BEGIN {
            while ((getline line <tests) > 0) {
                split(line, part, " ")
                file[part[1]] = file[part[1]] " " part[2]
                n[part[1]]++
            }
            while (whole && (getline line <ran) > 0)
                if (match(line, / .*/) && how[substr(line, 1, RSTART - 1)] !~ /failed|skipped/)
                    how[substr(line, 1, RSTART - 1)] = substr(line, RSTART + 1)
        }
        {
            row = "COVERAGE.md, row " $1 ": "
            word = $2
            known[word] = 1
            if (word == "-")
                print row "it names no test, and does not say why"
            else if (word ~ /[\/.]/) {
                if (system("test -f " word " || test -f ../" word))
                    print row "there is no file " word
            } else if (n[word] != 1)
                print row (n[word] ? "several tests are called " word ":" file[word] : "there is no test " word)
            name = word
            sub(/\/main\.c$/, "", name)
            sub(/.*\//, "", name)
            sub(/\.[a-z]*$/, "", name)
            if (whole && (word ~ /^[a-z0-9_]+$/ || ends(word)) && how[name] != "passed" && !($3 && !how[$3] && !how[name]))
                print row word " " (how[name] ? how[name] : "was not run")
        }
        END {
            for (name in file)
                if (name ~ /^([be][0-9]|op_|rule_|litmus_)/ && !(name in known))
                    print substr(file[name], 2) ": the test " name " is not in COVERAGE.md"
        }' "$room/words"
} | sort -u >"$room/bad" || exit 1
cat "$room/bad"
[ -s "$room/bad" ] || exit 0
grep -qv ' was skipped$' "$room/bad" && exit 1
exit 77
