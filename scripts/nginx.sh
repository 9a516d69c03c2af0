# shellcheck shell=bash disable=SC2034,SC2154 # lib.sh, which sources it, defines root; others use full_flags
# NGINX's sources, configured as the binary was that is to load the module: NGINX loads only a module that was built for
# its version and flags. Sourced by lib.sh.
set -euo pipefail

# The sources that nginx-dev has.
distribution_sources=/usr/share/nginx/src

# prepare_nginx NGINX [SOURCES]: a configured copy of sources that fit this binary.
# Exports where it is for nginx-sys.
prepare_nginx() {
    local nginx=$1 sources number own other flags
    sources=$(sources_for "$nginx" "${2:-}")
    number=$(version_of_sources "$sources")
    mapfile -d '' -t flags < <(flags_of "$nginx")
    configure_nginx "$sources" "$number" "$("$nginx" -V 2>&1)" "${flags[@]}"
    own=$(signature_of_sources "$NGINX_SOURCE_DIR")
    other=$(signature_of_binary "$nginx")
    [[ -z $other || $other == "$own" ]] || die "$nginx has the signature $other,
but the sources in $sources, with its flags, have $own:
are they those that it was built from?"
}

# What tests need of an NGINX that is made for them, and no Debian has.
full_flags=(--with-compat --with-debug --with-threads --with-{poll,select}_module
    --with-http_{addition,auth_request,realip,ssl,stub_status,v2,v3}_module)

# make_nginx SOURCES FLAG...: builds an NGINX with these flags, and prints its path.
make_nginx() {
    configure_nginx "$1" "$(version_of_sources "$1")" made "${@:2}"
    make_binary
}

# make_nginx_org SOURCES: builds an NGINX as nginx.org's packages have it, and prints its path. It is made to load the
# module, not to be fast.
make_nginx_org() {
    local flags
    mapfile -t flags <packaging/nginx.org/flags
    configure_nginx "$1" "$(version_of_sources "$1")" made "${flags[@]}"
    make_binary CFLAGS='-pipe -O0'
}

make_binary() {
    make -C "$NGINX_SOURCE_DIR" -f objs/Makefile -j "$(nproc)" "$@" binary >&2
    echo "$NGINX_BUILD_DIR/nginx"
}

# sources_for NGINX [SOURCES]: the sources to build for this binary with: the given ones, or else those of nginx-dev, which
# may still have to be installed, or of the crate nginx-src. Ends where they are not of its version.
sources_for() {
    local nginx=$1 given=${2:-} version number have
    version=$(version_of_nginx "$nginx")
    number=$(sed -n 's/^[^/]*\/\([0-9]*\.[0-9]*\.[0-9]*\).*/\1/p' <<<"$version")
    [[ $number ]] || die "$nginx is no NGINX: its -v shows nothing like nginx/1.28.0"
    [[ $version != Angie/* ]] || die "$nginx is $version: the module cannot be built for Angie, see docs/install.md"
    if [[ $given ]]; then
        [[ -e $given/src/core/nginx.h ]] || die "--source needs NGINX's sources, with src/core/nginx.h, not '$given'"
        have=$(version_of_sources "$given")
        [[ $have != "$number" ]] || { echo "$given"; return; }
    else
        have=$(version_of_distribution)
        [[ $have != "$number" ]] || { echo "$distribution_sources"; return; }
        # The version of the crate ends with that of NGINX.
        ! grep -A1 '^name = "nginx-src"' Cargo.lock | grep -qF "+$number\"" || { sources_of_crate; return; }
    fi
    die "$nginx is $version, and the sources ${given:-of nginx-dev} are ${have:+of nginx/}${have:-not to be had}.
NGINX loads only a module that was built for its version. Unpack nginx-$number.tar.gz of https://nginx.org/download/, and run

    scripts/build --nginx $nginx --source /path/to/nginx-$number"
}

# The version of the sources that nginx-dev has, or would have if it were installed; nothing where there is none.
version_of_distribution() {
    if [[ -e $distribution_sources/src/core/nginx.h ]]; then
        version_of_sources "$distribution_sources"
    else
        apt-cache show --no-all-versions nginx-dev 2>/dev/null | sed -n 's/^Version: \([0-9.]*\).*/\1/p' || true
    fi
}

sources_of_crate() {
    need jq jq
    cargo metadata --locked --format-version 1 --features vendored |
        jq -r '.packages[] | select(.name == "nginx-src") | .manifest_path | sub("Cargo.toml$"; "nginx")'
}

# flags_of NGINX: the flags that it was configured with, each ended by NUL, but for what makes no difference to a module
# of another kind and may not be here: other modules, sources of libraries, the directory that it was built in.
flags_of() {
    local flag flags=()
    eval "flags=($("$1" -V 2>&1 | sed -n 's/^configure arguments: *//p'))"
    for flag in "${flags[@]}"; do
        case $flag in
            --add-module=* | --add-dynamic-module=* | --with-*=dynamic) ;;
            --with-openssl=* | --with-pcre=* | --with-zlib=* | --builddir=*) ;;
            *) printf '%s\0' "$flag" ;;
        esac
    done
}

# configure_nginx SOURCES VERSION IDENTITY FLAG...: a copy of the sources, configured with these flags: the module must have
# the same signature and the same structures. The identity says what it is for. Exports where it is for nginx-sys.
configure_nginx() {
    local sources=$1 version=$2 identity="$*" tree configure=./configure
    shift 3
    # Builds for several binaries of a version stand beside each other.
    tree=$root/build/nginx-$version-$(cksum <<<"$identity" | cut -d' ' -f1)
    mkdir -p "$root/build"
    (
        # Two scripts at once shall not configure one tree.
        flock 9
        # Written last, so that an interrupted attempt is done again.
        if [[ $(cat "$tree/.configured" 2>/dev/null) != "$identity" ]]; then
            say "configuring NGINX $version in ${tree#"$root/"}"
            rm -rf "$tree"
            mkdir "$tree"
            tar -ch --exclude=./.git --exclude=./objs -C "$sources" . | tar -x -C "$tree"
            chmod -R u+w "$tree"
            cd "$tree"
            # A checkout of the repository has it elsewhere than a release.
            [[ -e $configure ]] || configure=auto/configure
            "$configure" "$@" >configure.log 2>&1 || {
                tail -n 20 configure.log >&2
                die "configuring NGINX failed, see $tree/configure.log"
            }
            printf '%s\n' "$identity" >.configured
        fi
    ) 9>"$root/build/.lock"
    export NGINX_SOURCE_DIR=$tree NGINX_BUILD_DIR=$tree/objs
}

# take_target_of_tree: from now on, cargo builds in the target directory of the configured tree.
take_target_of_tree() {
    export CARGO_TARGET_DIR=$target/${NGINX_SOURCE_DIR##*/}
    begin_target "$CARGO_TARGET_DIR"
}

# begin_target DIRECTORY: a target directory that begins as a copy of the usual one: cargo compiles what depends on NGINX, and
# nothing else once more.
begin_target() {
    local part
    (
        # Two scripts at once shall not make one copy.
        flock 9
        [[ -d $target/release && ! -d $1 ]] || exit 0
        # Complete or not at all: cargo would take half a file for a whole one.
        rm -rf "$1.part"
        mkdir -p "$1.part/release"
        # What says that something is compiled comes before that itself, should it be compiled again meanwhile.
        for part in .fingerprint build deps; do
            cp -a "$target/release/$part" "$1.part/release"
        done
        mv "$1.part" "$1"
    ) 9>"$root/build/.lock"
}

# cargo_for_nginx COMMAND ARGUMENT...: cargo, for the NGINX that is prepared. What it compiles is the same whatever
# directory it is compiled in.
cargo_for_nginx() {
    local crate flag flags=()
    crate=$(cargo metadata --locked --format-version 1 |
        jq -r '.packages[] | select(.name == "libc") | .manifest_path | rtrimstr("/Cargo.toml")')
    for flag in ${RUSTFLAGS:-} "--remap-path-prefix=$root=." "--remap-path-prefix=${crate%/*}=./vendor"; do
        flags+=("$flag")
    done
    # bindgen would have its code formatted as the directory says, by a rustfmt that may not be here. In the module is no
    # date, but at another SOURCE_DATE_EPOCH, as packages have it, cargo would compile it again.
    RUSTFMT=false CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}") RUSTC_WRAPPER=$root/scripts/rustc.sh \
        CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$target} env -u SOURCE_DATE_EPOCH cargo "$1" --release --locked "${@:2}"
}

# version_of_nginx NGINX: such as nginx/1.22.1.
version_of_nginx() {
    "$1" -v 2>&1 | sed -n 's/.* version: \([^ ]*\).*/\1/p'
}

version_of_sources() {
    sed -n 's/^#define NGINX_VERSION *"\(.*\)"$/\1/p' "$1/src/core/nginx.h"
}

# signature_of_sources TREE: the signature of a configured NGINX, which a module must have as well.
signature_of_sources() {
    (
        cd "$1"
        mapfile -t directories < <(find src -type d ! -path '*/win32*')
        cc -E -P -Iobjs "${directories[@]/#/-I}" - <<<$'#include <ngx_config.h>
#include <ngx_core.h>
NGX_MODULE_SIGNATURE' | tail -n1 | tr -d '" '
    )
}

# signature_of_binary NGINX: its signature; nothing if it is a script.
signature_of_binary() {
    grep -aoEm1 '[0-9]+,[0-9]+,[0-9]+,[01]{30,}' "$1" || true
}

# loads NGINX MODULE: whether this NGINX loads the module and knows its directives. Nothing is written but in a directory
# that goes with it.
loads() {
    local nginx=$1 module=$2 prefix kind user=''
    prefix=$(mktemp -d)
    mkdir "$prefix/logs"
    # The user that it was built to become may not be here.
    ((EUID != 0)) || user='user root;'
    {
        printf '%s load_module "%s"; pid nginx.pid; error_log stderr; events {} http {\n' "$user" "$module"
        for kind in client_body proxy fastcgi uwsgi scgi; do
            "$nginx" -V 2>&1 | grep -q -- "--without-http_${kind}_module" || echo "${kind}_temp_path $kind;"
        done
        # shellcheck disable=SC2016 # NGINX's own variable
        echo 'access_log off; rate_limit_redis $remote_addr rate=1r/s; }'
    } >"$prefix/nginx.conf"
    "$nginx" -t -q -p "$prefix/" -c nginx.conf >&2 || { rm -rf "$prefix"; return 1; }
    rm -rf "$prefix"
}
