# shellcheck shell=bash
# What the build needs from Debian: installed with apt-get where it is missing. Sourced by the
# scripts beside it. Silent when all is there.

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
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        $missing >/dev/null
}

# COMMAND=PACKAGE, or a package alone.
need_build_packages() {
    need_packages meson=meson ninja=ninja-build gcc=gcc pkg-config=pkg-config libc6-dev \
        libnuma-dev libxxhash-dev libjansson-dev libinih-dev libmd-dev "$@"
}
