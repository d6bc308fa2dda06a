# shellcheck shell=bash
# For the scripts beside it. What the build needs from Debian: installed with apt-get where it is
# missing, silent when all is there. And the build, silent as long as it goes well.

need_packages() {
    missing=
    for need in "$@"; do
        command=${need%%=*} package=${need#*=}
        if [ "$command" = "$need" ]; then
            [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>&1)" = installed ] ||
                missing="$missing $package"
        else
            command -v "$command" >/dev/null || missing="$missing $package"
        fi
    done
    [ -z "$missing" ] && return
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    echo "Installing what is missing, with apt-get:$missing"
    # shellcheck disable=SC2086
    if { [ -z "$as_root" ] || command -v sudo >/dev/null; } && $as_root apt-get update -qq &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
            --no-install-recommends $missing >/dev/null; then
        return
    fi
    echo "They could not be installed. Let root run this, then run this script again:" >&2
    echo "    apt-get update && apt-get install --no-install-recommends$missing" >&2
    exit 1
}

# COMMAND=PACKAGE, or a package alone. fio is not among them: neither the build nor a test needs it,
# only the rows swap.read and swap.write of `prefixctl bench`, which say so where it is missing.
need_build_packages() {
    need_packages meson=meson ninja=ninja-build gcc=gcc pkg-config=pkg-config libc6-dev \
        libnuma-dev libxxhash-dev libjansson-dev libinih-dev libmd-dev liburing-dev "$@"
}

# DIRECTORY OPTION...: set a build up, or, where it is, take in what has changed in meson.build.
setup_in() {
    local said
    if [ -f "$1/build.ninja" ]; then
        said=$(ninja --quiet -C "$1" build.ninja 2>&1)
    else
        said=$(meson setup "$@" 2>&1)
    fi || { echo "$said" >&2 && return 1; }
}

# Not even "ninja: no work to do.", which --quiet leaves.
build_in() {
    ninja --quiet -C "$1" | { grep -v '^ninja: no work to do' || true; }
}
