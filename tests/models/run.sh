#!/bin/sh
# run.sh MODEL.pml [MUTATION]: check a model with spin, exhaustively.
#
# Without a mutation: no error, no state left out for want of memory or depth, and every statement of the
# model reached (but those on a line that says "never"), so that nothing holds because nothing happens;
# and each function that it names under THE CODE, as NAME_NAME or NAME(), is in the file that stands before it.
# With one: an assertion fails or a process waits for ever. MODEL names its mutations, a line each:
#     MUTATION NAME    what is taken away
set -u

model=$1 mutation=${2:-}
for tool in spin cc; do
    command -v "$tool" >/dev/null || {
        echo "$model: there is no $tool here: install the Debian package $([ $tool = cc ] && echo gcc || echo spin)" >&2
        exit 1
    }
done
[ -f "$model" ] || { echo "$model: there is no such model" >&2; exit 1; }
if [ -n "$mutation" ] && ! grep -q "MUTATION $mutation " "$model"; then
    echo "$model: it has no mutation $mutation" >&2
    exit 1
fi

source=$(cd "$(dirname "$model")" && pwd)/$(basename "$model")
tree=$(dirname "$source")/../..
room=$(mktemp -d) || exit 1
trap 'rm -rf "$room"' EXIT
cd "$room" || exit 1

if [ -z "$mutation" ]; then
    sed -n '/THE CODE/,/^ \*$/p' "$source" |
        grep -oE '\b([a-z]+/)?[a-z_]+\.[ch]\b|\b[a-z]+(_[a-z0-9]+)+\b|\b[a-z]+\(\)' >names
    [ -s names ] || { echo "$model: it does not say under THE CODE what it is a model of" >&2 && exit 1; }
    file=''
    while read -r name; do
        case $name in
        *.[ch])
            case $name in
            */*) file=$name ;;
            *) file=${file%/*}/$name ;;
            esac
            [ -f "$tree/$file" ] || { echo "$model: the code has no file $file" >&2 && exit 1; }
            # what comments say does not count
            sed -zE 's:/\*[^*]*\*+([^/*][^*]*\*+)*/::g' "$tree/$file" >code
            continue
            ;;
        esac
        [ -n "$file" ] || { echo "$model: in which file is $name?" >&2 && exit 1; }
        name=${name%()}
        grep -qE "(^|[^A-Za-z0-9_])$name\(" code && continue
        echo "$model: $file has no $name: name what there is instead, and see that the model still fits" >&2
        exit 1
    done <names
fi

# Breadth first: what is found is the shortest way to it, and no depth is too much. Not optimized much, or
# half of the time would be the compiler's. 900 MB is all there is.
if ! spin -a ${mutation:+-D$mutation} "$source" >spin.log 2>&1 ||
    ! cc -O1 -w -DSAFETY -DNOFAIR -DBFS -DCOLLAPSE -DMEMLIM=900 -o pan pan.c >cc.log 2>&1; then
    cat spin.log cc.log 2>/dev/null
    echo "$model: it cannot be built" >&2
    exit 1
fi
nice ./pan -w22 >pan.log 2>&1
what=$(grep -m1 -E "^pan:1: (assertion violated|invalid end state)" pan.log | cut -c1-120)
states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)

if [ -n "$mutation" ]; then
    if grep -q 'errors: 1$' pan.log && [ -n "$what" ]; then
        echo "$mutation: found, after $states states: $what"
        exit 0
    fi
    cat pan.log
    echo "$model: without what $mutation takes away nothing goes wrong: the model is too weak" >&2
    exit 1
fi

if ! grep -q 'errors: 0$' pan.log; then
    cat pan.log
    [ -f ./*.trail ] && spin -t -p -g -w "$source" | tail -n 150
    echo "$model: it does not hold" >&2
    exit 1
fi
if ! grep -q '^Full statespace search for:' pan.log ||
    grep -qE 'max search depth too small|Search not completed|memory (limit|bound)|hash-compact|Bit statespace' pan.log; then
    cat pan.log
    echo "$model: not all of it was searched" >&2
    exit 1
fi
# "	x.pml:12, state 3, "(expression)"": a statement that was never done. Processes need not end.
unreached=$(sed -n '/"-end-"/d; s/^\t[^:]*\.pml:\([0-9]*\), state.*/\1/p' pan.log | sort -un | while read -r line; do
    sed -n "${line}p" "$source" | grep -q never || sed -n "${line}{s/^ */$line: /;p}" "$source"
done)
if [ -n "$unreached" ]; then
    echo "$unreached"
    echo "$model: these lines are never reached, so it says less than it seems to" >&2
    exit 1
fi
echo "holds: $states states, depth $(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' pan.log), $(
    sed -n 's/^ *\([0-9.]*\).*total actual memory usage/\1/p' pan.log) MB"
