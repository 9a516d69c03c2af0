# shellcheck shell=bash disable=SC2034,SC2154,SC2317 # run uses what is set here, and sets own_port, own_redis and module
# The servers of the demo: one Redis or a cluster, and three nginx that share it. Sourced by run.
set -euo pipefail

# A directory for all of them, and their processes: a server of Redis that does not run has an empty one.
run='' janitor='' log='' fleet=() redis=() ports=() redis_ports=() redis_hints=() frozen=()

# The line of nginx.conf that says where Redis is.
store=''

# A session of its own keeps the signals of the terminal from a server: clean_up ends them in order. Should this script be
# killed with SIGKILL, a server gets a signal by which it ends: Redis one that also ends it while it is frozen.
start() { exec setsid setpriv --pdeathsig TERM "$@"; }
start_as_nobody() { exec setsid setpriv --pdeathsig KILL "${as_nobody[@]}" "$@"; }
as_nobody=()

lives() { [[ $1 ]] && kill -0 "$1" 2>/dev/null; }
answers() { (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Not below TMPDIR: the path of a unix socket is short, and nginx's workers must get here.
make_directory() {
    # Workers read what is in it.
    umask 022
    run=$(mktemp -d /tmp/rate-limit-redis.XXXXXX)
    # shellcheck disable=SC2016 # the expansions belong to the shell that runs this
    # Removes the directory where clean_up cannot, and tries until the servers that write to it have ended.
    setsid bash -c 'tail --pid="$1" -s 0.1 -f /dev/null; until rm -rf "$2"; do sleep 0.1; done' \
        janitor $$ "$run" &>/dev/null &
    janitor=$!
    disown "$janitor"
    mkdir "$run/redis"
    # When root starts nginx its workers run as another user. They may traverse the directory, but not list it. Nor does
    # Redis run as root: whoever may use it could have it write any file.
    if ((EUID == 0)); then
        chmod 711 "$run"
        chown nobody "$run/redis"
        as_nobody=(--reuid=nobody --regid=nogroup --clear-groups)
    fi
}

clean_up() {
    trap '' INT TERM HUP # a second Ctrl-C does not end this half-way
    local pid
    # nginx first, or it would complain of a Redis that is gone.
    for pid in $log "${fleet[@]}"; do
        # Again and again: a signal is lost on a child that has not begun its program yet.
        while kill "$pid" 2>/dev/null; do sleep 0.02; done
    done
    for pid in "${redis[@]}"; do end_at_once "$pid"; done
    [[ -z $run ]] || rm -rf "$run"
    [[ -z $janitor ]] || kill -KILL -- "-$janitor" 2>/dev/null || true
}

# end_at_once PID: also what is frozen.
end_at_once() {
    [[ -z $1 ]] || while kill -KILL "$1" 2>/dev/null; do sleep 0.02; done
}

# Has bash not tell of the end of the server that was just started; it may have ended already.
forget() { disown "$!" 2>/dev/null || true; }

# start_redis NUMBER: a server that keeps nothing, but for who else is in its cluster.
start_redis() {
    local port=${redis_ports[$1]} arguments=(--dir "$run/redis" --save '' --appendonly no --daemonize no)
    if [[ $port ]]; then
        arguments+=(--bind 127.0.0.1 --port "$port" --cluster-enabled yes --cluster-config-file "nodes-$port.conf"
            --cluster-node-timeout 1000)
    else
        arguments+=(--port 0 --unixsocket "$run/redis/redis.sock" --unixsocketperm 777)
    fi
    start_as_nobody redis-server "${arguments[@]}" >>"$run/redis-$1.log" 2>&1 &
    redis[$1]=$! frozen[$1]=''
    forget
}

redis_failed() {
    cat "$run"/redis*.log >&2
    die 'redis-server did not start'
}

start_single() {
    say "starting redis-server in $run"
    local cli=(redis-cli -s "$run/redis/redis.sock")
    redis_ports=('')
    start_redis 0
    until_true 10 "${cli[@]}" ping &>/dev/null || redis_failed
    store="rate_limit_redis_pass redis+unix://$run/redis/redis.sock;"
    redis_hints=("${cli[*]} --scan" "${cli[*]} monitor")
}

# Six servers, on the first free ports from 7000 on; the ports of the cluster's own bus are 10,000 above.
start_cluster() {
    local port=7000 i nodes=() servers=''
    while ((${#redis_ports[@]} < 6)); do
        answers "$port" || answers "$((port + 10000))" || redis_ports+=("$port")
        port=$((port + 1))
    done
    say "starting a Redis Cluster at 127.0.0.1, ports ${redis_ports[*]}"
    for i in "${!redis_ports[@]}"; do
        start_redis "$i"
        nodes+=("127.0.0.1:${redis_ports[i]}")
        servers+=" server redis://127.0.0.1:${redis_ports[i]};"
    done
    for port in "${redis_ports[@]}"; do
        until_true 10 redis-cli -p "$port" ping &>/dev/null || redis_failed
    done
    redis-cli --cluster create "${nodes[@]}" --cluster-replicas 1 --cluster-yes >"$run/redis-create.log" || redis_failed
    cluster_settled() {
        local port
        for port in "${redis_ports[@]}"; do
            redis-cli -p "$port" cluster info | grep -q '^cluster_state:ok' || return 1
        done
    }
    until_true 20 cluster_settled || redis_failed
    store="rate_limit_redis_store demo {$servers cluster on; } rate_limit_redis_pass demo;"
    # The last one is a replica, which stays when a master is ended.
    redis_hints=("redis-cli --cluster call ${nodes[-1]} keys '*'" "redis-cli -c -p ${redis_ports[-1]} cluster nodes")
}

# Keys of this run alone: the budgets are whole, and no other key is touched. Limits give each of them a TTL.
use_own_redis() {
    store="rate_limit_redis_store demo { server $own_redis; prefix rl:demo.${run##*.}:; } rate_limit_redis_pass demo;"
}

# name_of NUMBER: what a server of Redis is called.
name_of() { printf 'Redis%s' "${redis_ports[$1]:+ at port ${redis_ports[$1]}}"; }

# Of a cluster each press of a key is for one more server, the masters first.
kill_redis() {
    local i
    for i in "${!redis[@]}"; do
        lives "${redis[i]}" || continue
        end_at_once "${redis[i]}"
        redis[i]=''
        say "$(name_of "$i") is killed"
        return
    done
}

freeze_redis() {
    local i
    for i in "${!redis[@]}"; do
        if lives "${redis[i]}" && [[ ! ${frozen[i]} ]]; then
            kill -STOP "${redis[i]}"
            frozen[i]=yes
            say "$(name_of "$i") is frozen"
            return
        fi
    done
}

start_redis_again() {
    local i
    for i in "${!redis[@]}"; do
        if ! lives "${redis[i]}"; then
            start_redis "$i"
            say "$(name_of "$i") starts"
        elif [[ ${frozen[i]} ]]; then
            kill -CONT "${redis[i]}"
            frozen[i]=''
            say "$(name_of "$i") goes on"
        fi
    done
}

# start_fleet: three nginx. That nothing answers at a port is a guess: where somebody else takes one meanwhile, all start
# again with others.
start_fleet() {
    local i
    for _ in {1..5}; do
        choose_ports
        for i in "${!ports[@]}"; do
            make_site "$i"
            start_nginx "$i"
        done
        until_true 10 fleet_settled || break
        ! fleet_serves || return 0
        grep -q 'Address already in use' "$run"/nginx-*/stderr.log || break
        for i in "${fleet[@]}"; do end_at_once "-$i"; done
        rm -rf "$run"/nginx-*
    done
    cat "$run"/nginx-*/stderr.log >&2
    die 'nginx did not start'
}

# The port that was given and the next free ones, or the first free ones from 8080 on.
choose_ports() {
    local first=${own_port:-8080} port
    [[ -z $own_port ]] || ! answers "$own_port" || die "port $own_port of 127.0.0.1 is taken"
    ports=()
    for port in $(seq "$first" $((first + 100))) $(seq 8080 8180); do
        if [[ " ${ports[*]} " == *" $port "* ]] || ((port > 65535)) || answers "$port"; then continue; fi
        ports+=("$port")
        ((${#ports[@]} < 3)) || return 0
    done
    die "no three ports from $first on are free"
}

# make_site NUMBER: the directory of an nginx. The first one has the page, and not a link to it: nginx's workers need not be
# able to read the directory of this checkout.
make_site() {
    local site=$run/nginx-$1 origins="${ports[*]/#/http://127.0.0.1:}"
    mkdir "$site" "$site/modules"
    ln -s "$module" "$site/modules/ngx_http_rate_limit_redis_module.so"
    (($1 > 0)) || install -D -m 644 -t "$site/page" nginx-conf/demo/*
    # The store's URL may hold a password.
    (umask 077 && sed -e "s|rate_limit_redis_pass redis://127.0.0.1:6379;|${store//[&|]/\\&}|" \
        -e "s|http://127.0.0.1:8080|$origins|" \
        -e "s|127.0.0.1:9080|unix:$site/application.sock|" \
        -e "s|listen 8080|listen 127.0.0.1:${ports[$1]}|" nginx-conf/demo.conf >"$site/nginx.conf")
}

# start_nginx NUMBER
start_nginx() {
    local site=$run/nginx-$1
    rm -f "$site/nginx.pid" "$site/application.sock" # one that was killed leaves them
    start nginx -p "$site/" -c nginx.conf -e stderr -g 'daemon off;' 2>"$site/stderr.log" &
    fleet[$1]=$!
    forget
}

# The pid file is written when nginx has its ports.
fleet_settled() {
    local i
    for i in "${!fleet[@]}"; do [[ -s $run/nginx-$i/nginx.pid ]] || ! lives "${fleet[i]}" || return 1; done
}
fleet_serves() {
    local i
    for i in "${!fleet[@]}"; do [[ -s $run/nginx-$i/nginx.pid ]] || return 1; done
}

# An nginx that has ended starts again. A Redis that has ended by itself is reported, and the user starts it.
look_after_servers() {
    local i
    for i in "${!fleet[@]}"; do
        lives "${fleet[i]}" && continue
        say "nginx at port ${ports[i]} has ended, and starts again"
        # Workers whose master was killed still have the port.
        kill -KILL -- "-${fleet[i]}" 2>/dev/null || true
        start_nginx "$i"
    done
    for i in "${!redis[@]}"; do
        [[ -z ${redis[i]} ]] || lives "${redis[i]}" || {
            say "$(name_of "$i") has ended"
            redis[i]=''
        }
    done
}

has_keys() { [[ -z $own_redis && -t 0 ]]; }

# is_read: whether the terminal is this script's at the moment. Were it another job's, reading would stop this one.
is_read() {
    local group foreground
    has_keys || return
    read -r _ _ _ _ group _ _ foreground _ <"/proc/$$/stat"
    ((foreground <= 0 || foreground == group))
}

# Nothing ever comes from here.
exec {silence}<> <(:)

# await_key: sets key to what is pressed within a second, or to nothing.
await_key() {
    local from=$silence
    key=''
    ! is_read || from=0
    read -rsn1 -t 1 -u "$from" key || true
}
