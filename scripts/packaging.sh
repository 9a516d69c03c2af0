# shellcheck shell=bash disable=SC2154 # lib.sh defines root
# What packages and the archive of the sources are made of. Sourced by the scripts that make them, after lib.sh.
set -euo pipefail

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
maintainer=$(sed -n 's/^Maintainer: //p' debian/control)
# What is made of the same sources is the same whenever it is made. An archive of them has no repository.
SOURCE_DATE_EPOCH=$(stat -c %Y CHANGELOG.md)
[[ ! -e .git ]] || SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# The list of components, the notices of the crates, and the crates: an archive of the sources brings them along.
sbom=rate_limit_redis.cdx.json notices=crates.txt vendored=vendor

# No Debian has cargo-cyclonedx, which makes the list of components.
need_sbom_tool() {
    [[ ! -e $sbom ]] && ! command -v cargo-cyclonedx >/dev/null || return 0
    say 'installing cargo-cyclonedx'
    CARGO_PROFILE_DEV_DEBUG=false cargo install cargo-cyclonedx --locked --version '~0.5.9' --profile dev >&2
}

# write_sbom FILE: the components of the module, in the form of CycloneDX.
write_sbom() {
    local copy
    [[ ! -e $sbom ]] || { cp "$sbom" "$1"; return; }
    # The tool writes beside the sources that it reads, and names their directory.
    copy=$(mktemp -d)
    copy_sources "$copy"
    cargo cyclonedx --quiet --manifest-path "$copy/Cargo.toml" --format json --spec-version 1.5 \
        --override-filename components >&2
    sed "s|$copy|/rate_limit_redis|g" "$copy/components.json" >"$1"
    rm -rf "$copy"
}

# write_notices FILE: the crates that the module contains, with the notices that their licenses demand.
write_notices() {
    local manifest name license file contained
    [[ ! -e $notices ]] || { cp "$notices" "$1"; return; }
    # Those of this workspace show a path after the version, and are left out.
    contained=$(cargo tree --locked --edges normal,no-proc-macro --prefix none --format '{p}' |
        sed -n 's/^\([^ ]*\) v\([^ ]*\)\( (\*)\)\?$/\1 \2/p')
    cargo metadata --locked --format-version 1 |
        jq -r '.packages[] | "\(.name) \(.version)\t\(.license)\t\(.manifest_path)"' |
        while IFS=$'\t' read -r name license manifest; do
            grep -qxF "$name" <<<"$contained" || continue
            printf '%s (%s)\n\n' "$name" "$license"
            for file in "${manifest%/*}"/{LICEN[CS]E,COPYING,NOTICE}*; do
                [[ ! -f $file ]] || { cat "$file"; echo; }
            done
        done >"$1"
}

# copy_sources DIRECTORY: the files of the repository, as they are here. An archive has no others, but for those of builds.
copy_sources() {
    if [[ -e .git ]]; then
        git ls-files -z
    else
        find . \( -path ./target -o -path ./build -o -path "./$vendored" \) -prune -o -type f -print0
    fi | tar -c --null --files-from - | tar -x -C "$1"
}

# make_archive DIRECTORY: the archive of the sources, with what it takes to build them without a network, in there.
# Prints its path.
make_archive() {
    local name=rate_limit_redis-$version work tree
    say "archiving $name"
    work=$(mktemp -d)
    tree=$work/$name
    mkdir -p "$tree/.cargo"
    copy_sources "$tree"
    if [[ -d $vendored ]]; then
        cp -r "$vendored" "$tree/$vendored"
    else
        cargo vendor --quiet --locked --versioned-dirs "$tree/$vendored" >/dev/null
    fi
    printf '[source.crates-io]\nreplace-with = "vendored"\n\n[source.vendored]\ndirectory = "%s"\n' "$vendored" \
        >"$tree/.cargo/config.toml"
    write_sbom "$tree/$sbom"
    write_notices "$tree/$notices"
    # Nothing in it depends on when, where or by whom it is made.
    tar -c --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode=u+rw,go=rX -C "$work" "$name" | gzip -n >"$1/$name.tar.gz"
    rm -rf "$work"
    echo "$1/$name.tar.gz"
}

# stage_package DIRECTORY MODULE: the files that a package is made of.
stage_package() {
    rm -rf "$1"
    mkdir -p "$1"
    cp -r debian nginx-conf monitoring docs docker README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md "$1"
    install -D -m 755 -t "$1/scripts" scripts/limits
    install -m 644 "$2" "$1/ngx_http_rate_limit_redis_module.so"
    write_sbom "$1/$sbom"
    write_notices "$1/$notices"
}

# make_deb DIRECTORY VERSION CODENAME NGINX: the package that is staged there, beside the directory.
make_deb() {
    cat >"$1/debian/changelog" <<END
rate-limit-redis ($2) $3; urgency=medium

  * For nginx, $4. See changelog.gz for what
    is new.

 -- $maintainer  $(date -Rud "@$SOURCE_DATE_EPOCH")
END
    (cd "$1" && DEB_BUILD_OPTIONS='noautodbgsym nocheck' dpkg-buildpackage --build=binary --no-sign >&2)
}
