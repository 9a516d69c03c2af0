# shellcheck shell=bash disable=SC2034 # what it defines is used by those who source it
# What the scripts beside this file share. Sourced by them, not run.
set -euo pipefail
# A command substitution stops at an error as well.
shopt -s inherit_errexit

# show_help: the comment at the head of the script.
show_help() { sed -n '2,/^[^#]/{/^# shellcheck/d;s/^#\( \|$\)//p}' "$0"; }

# Before anything is installed, whatever the other arguments are.
for argument; do
    [[ $argument != --help ]] || { show_help; exit; }
done

# Taken before the cd below, so that a relative one means what the caller meant.
[[ -z ${CARGO_TARGET_DIR:-} ]] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")

root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}
# absolute PATH: a relative one means what the caller meant, before this file changed the directory.
absolute() { (cd "$OLDPWD" && realpath -m "${1:-.}"); }

# Debian's nginx is in /usr/sbin, which is not in an ordinary user's PATH; rustup's cargo is only there after a new login.
PATH=$PATH:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin

say() { printf '==> %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# no_arguments ARGUMENT...: for a script that takes none.
no_arguments() { (($# == 0)) || die "unknown argument $1; see scripts/$(basename "$0") --help"; }

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
compile_tools=(
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
# For the nginx of the distribution.
build_tools=(
    nginx nginx
    /usr/share/nginx/src/configure nginx-dev
    "${compile_tools[@]}"
)
run_tools=(
    redis-server redis-server
    redis-cli redis-tools
    hey hey
    curl curl
)
browser_tools=(
    /usr/lib/chromium/chromium-headless-shell chromium-headless-shell
    chromedriver chromium-driver
)
test_tools=(
    ab apache2-utils
    wrk wrk
    nghttp nghttp2-client
    h2load nghttp2-client
    gtlsclient ngtcp2-client
    "${browser_tools[@]}"
    openssl openssl
    patch patch
    ip iproute2
    script bsdutils
    prometheus prometheus
    promtool prometheus
    # The standard library for a client in another language; python3-minimal has no urllib.
    '/usr/lib/python3.*/urllib/request.py' python3
    '/usr/lib/*/faketime/libfaketime.so.1' libfaketime
    /usr/lib/nginx/modules/ngx_http_lua_module.so libnginx-mod-http-lua
    shellcheck shellcheck
)
deb_tools=(
    dpkg-buildpackage dpkg-dev
    dh debhelper
)
# For the nginx of Debian: the helper that packages modules comes with nginx-dev.
package_tools=(
    "${deb_tools[@]}"
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
    rpmbuild rpm
)
bench_tools=(
    wrk wrk
    redis-benchmark redis-tools
    valgrind valgrind
    taskset util-linux
    openssl openssl
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

# The oldest Rust that compiles the module.
rust_version() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml; }

# Debian 12's own cargo is too old, so that a package cannot help here.
need_rust() {
    local wanted have
    wanted=$(rust_version)
    command -v cargo >/dev/null || die "cargo not found: install Rust $wanted or later, see https://rustup.rs"
    have=$(rustc --version | cut -d' ' -f2)
    [[ $(printf '%s\n' "$wanted" "$have" | sort -V | head -n1) == "$wanted" ]] ||
        die "Rust $have is too old: $wanted or later is needed, see https://rustup.rs"
}

need_cargo_deny() {
    # Not a package of Debian 12. A development build does, and takes a minute where a release build takes several.
    command -v cargo-deny >/dev/null ||
        CARGO_PROFILE_DEV_DEBUG=false cargo install cargo-deny --locked --version '~0.20' --profile dev
}

# unoptimized PACKAGE: the option by which cargo compiles it sooner, and it runs slower.
unoptimized() { printf -- '--config=profile.dev.package.%s.opt-level=0' "$1"; }

# shellcheck source=scripts/nginx.sh
. scripts/nginx.sh
# shellcheck source=scripts/lent.sh
. scripts/lent.sh
