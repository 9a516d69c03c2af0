# shellcheck shell=bash disable=SC2154,SC2317 # the scripts that source it set debian and log, and call what it defines
# What the tests of packages share: each runs as root, in a Debian of its own and in namespaces of its own. Sourced by
# them, after lib.sh.
set -euo pipefail

# check WHAT COMMAND...: prints the output of the command only if it fails.
check() {
    local what=$1
    shift
    if "$@" >"$log" 2>&1; then
        say "  $what"
    else
        cat "$log" >&2
        die "failed: $what"
    fi
}
not() { ! "$@"; }
within() { chroot "$debian" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }
# There is no network: what is not in the cache of packages cannot be had.
apt() { within apt-get -y -o Dpkg::Use-Pty=0 --no-install-recommends "$@"; }

# A network without other machines, and a Redis in it.
enter() {
    mount -t proc proc "$debian/proc"
    ip link set lo up
    redis-server --save '' --appendonly no --dir "$debian" >"$debian/redis.log" 2>&1 &
    until_true 10 redis-cli ping >"$log" 2>&1 || { cat "$debian/redis.log" >&2; die 'redis-server did not start'; }
}

# One request a day for each client.
write_limit() {
    cat >"$debian/etc/nginx/conf.d/limit.conf" <<'END'
server {
    listen 127.0.0.1:8080;
    root /usr/share/nginx/html;

    location / {
        rate_limit_redis $remote_addr rate=1r/d;
        rate_limit_redis_timeout 5s;
    }
}
END
}

# answers STATUS: to a request for the limited location, as soon as nginx listens.
answers() {
    until_true 10 answered
    echo "status $status"
    [[ $status == "$1" ]]
}
answered() {
    status=$(curl --silent --noproxy '*' --output /dev/null --write-out '%{http_code}' http://127.0.0.1:8080/index.html)
}

# have_targets PACKAGE: every relative link in an installed document is one to a file, not to a compressed one.
have_targets() {
    local documents=$debian/usr/share/doc/$1 document link links=0 dead=0
    while read -r document; do
        while read -r link; do
            links=$((links + 1))
            [[ -e ${document%/*}/$link ]] || { echo "${document#"$debian"} links to $link"; dead=$((dead + 1)); }
        done < <(grep -o '](\([^)#:]\+\)[#)]' "$document" | sed 's/^](//; s/[#)]$//')
    done < <(find "$documents" -name '*.md')
    echo "$links links, $dead dead"
    ((links > 100 && dead == 0))
}

# Nothing but what apt and dpkg remember of every package.
is_gone() {
    local left
    left=$(cd "$debian" && find etc usr var -path var/cache/apt -prune -o -path var/lib/apt -prune \
        -o -name '*rate?limit?redis*' -print)
    echo "$left"
    [[ -z $left ]]
}
