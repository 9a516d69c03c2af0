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
    openssl openssl
    ip iproute2
    shellcheck shellcheck
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
    local as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || die "please run as root: apt-get install --no-install-recommends $*"
        as_root=(sudo)
    fi
    say "installing $*"
    "${as_root[@]}" bash -euc "$install_as_root" install "$@" >&2
}

# Installing nginx or redis-server from Debian starts it as a service, and upgrading one restarts it. A policy-rc.d that
# says 101 forbids both while apt runs; one that an administrator has put there stays, and decides. (needrestart, where
# it is installed, asks nobody: it is told to only list.) A service that was not there before does not start with the
# machine either.
# shellcheck disable=SC2016 # the expansions belong to the shell that runs this
install_as_root='
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap "rm -f $policy" EXIT
        printf "#!/bin/sh\nexit 101\n" >$policy
        chmod 755 $policy
    fi
    new_services=()
    for service in nginx redis-server; do
        [[ -e /lib/systemd/system/$service.service ]] || new_services+=("$service")
    done
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l
    apt-get update
    apt-get install -y --no-install-recommends "$@"
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

# A copy of the installed NGINX's sources, configured as the distribution configured it: the module must have the same
# signature and the same structures. Exports where it is for nginx-sys.
prepare_nginx() {
    local version tree identity
    identity=$(nginx -V 2>&1)
    version=$(sed -n '1s/.*nginx\///p' <<<"$identity" | cut -d' ' -f1)
    tree=$root/build/nginx-$version
    mkdir -p "$root/build"
    (
        # Two scripts at once shall not configure one tree.
        flock 9
        # Written last, so that an interrupted attempt is done again.
        if [[ $(cat "$tree/.configured" 2>/dev/null) != "$identity" ]]; then
            say "configuring NGINX $version in ${tree#"$root/"}"
            rm -rf "$tree"
            cp -rL /usr/share/nginx/src "$tree"
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
