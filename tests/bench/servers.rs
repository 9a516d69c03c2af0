//! The servers of a run, bound to their cores. They end with it, however it ends.

use harness::stop::{Stop, check};
use harness::{Conf, Http, Nginx, PATIENCE, Redis, holds_within};

use crate::machine::{self, Pinning};

/// The connections of a worker: one for each client and, in some variants, one to Redis for each.
const CONNECTIONS: u64 = 24_000;

/// Connections stay open: what is measured is requests.
const HTTP: &str = "
keepalive_requests 1000000000;
keepalive_timeout 1h;
access_log off;
error_log /dev/null error;
";

/// NGINX's own limiter, in its shared memory. "As often as you like" has no name there: the largest rate and burst do.
const LIMIT_REQ: &str = "
limit_req_status 429;
limit_req_log_level info;
limit_req_zone $arg_k zone=free:64m rate=1000000r/s;
limit_req_zone $arg_k zone=flood:8m rate=1r/m;
limit_req_zone $arg_wait zone=wait:1m rate=1r/m;
";

const LIMIT_REQ_SERVER: &str = "
# Never rejects.
location /free { limit_req zone=free burst=1000000 nodelay; empty_gif; }
location /client { limit_req zone=free burst=1000000 nodelay; empty_gif; }
# Rejects nearly everything.
location /flood { limit_req zone=flood; empty_gif; }
# Rejections with a line in the log for each; the log is thrown away.
location /logged { limit_req zone=flood; limit_req_log_level error; empty_gif; }
# Lets nearly everything wait.
location /wait { limit_req zone=wait burst=100000; empty_gif; }
";

/// The way of those who have no module: Lua on NGINX's event loop, connections to Redis from a pool, and the EVALSHA that
/// the module sends.
const LUA: &str = r#"
lua_package_path "$prefix/?.lua;;";
init_by_lua_block {
    local limit = require "limit"
    free = limit { port = {redis_port}, {lua_free} }
    flood = limit { port = {redis_port}, {lua_flood} }
}
"#;

const LUA_SERVER: &str = "
location /free { access_by_lua_block { free() } empty_gif; }
location /client { access_by_lua_block { free() } empty_gif; }
location /flood { access_by_lua_block { flood() } empty_gif; }
";

/// The defaults that an administrator gets, header fields included. But an error shall be seen, not pass for a quick
/// decision: it rejects where all should pass, and the other way round.
const MODULE: &str = "
rate_limit_redis_log_level info;
rate_limit_redis_on_error closed;
rate_limit_redis_timeout 60s;
";

const MODULE_SERVER: &str = "
# Never rejects: 100 million at once. One comes back in half a minute, after the key is used again: so each
# decision has a state to read, to change and to write, and no key expires while something is measured.
location /free { rate_limit_redis $arg_k name=free rate=120r/h capacity=100000000; empty_gif; }
# A client may do 40 requests a second, all of them at once.
location /client { rate_limit_redis $arg_k name=client rate=40r/s; empty_gif; }
location /gcra { rate_limit_redis $arg_k name=gcra algorithm=gcra rate=120r/h burst=99999999; empty_gif; }
# Rejects nearly everything.
location /flood {
    rate_limit_redis $arg_k name=flood rate=1r/h;
    rate_limit_redis_on_error open;
    empty_gif;
}
# Rejections with a line in the log for each; the log is thrown away.
location /logged {
    rate_limit_redis $arg_k name=flood rate=1r/h;
    rate_limit_redis_on_error open;
    rate_limit_redis_log_level error;
    empty_gif;
}
";

/// Starts servers on the cores that they have.
pub struct Servers {
    pub pinning: Pinning,
}

impl Servers {
    /// How many connections from clients a worker and the load can have, with some files for the rest.
    pub fn most_connections() -> u64 {
        machine::open_files().saturating_sub(1000)
    }

    /// A Redis that keeps nothing.
    pub fn redis(&self) -> Redis {
        Redis::start_wrapped(&machine::on(&self.pinning.redis), &["maxclients 20000"])
    }

    /// An nginx with one worker, whose limits are still to be added.
    fn nginx(&self) -> Conf {
        let files = machine::open_files();
        Conf::new()
            .workers(1)
            .errors_only()
            .wrapper(machine::on(&self.pinning.nginx))
            .main(&format!("worker_rlimit_nofile {files};"))
            .connections(files.min(CONNECTIONS) as usize)
            .listen("backlog=16384")
            .http(HTTP)
    }

    /// No limiter: what NGINX itself costs. A built-in picture is its cheapest answer after the access phase, so that a
    /// limiter's share is as large as it can be.
    pub fn none(&self) -> Conf {
        self.nginx().plain().server("location / { empty_gif; }")
    }

    /// NGINX's own limiter.
    pub fn limit_req(&self) -> Conf {
        self.nginx().plain().http(LIMIT_REQ).server(LIMIT_REQ_SERVER)
    }

    /// A limiter in Lua, which sends what these words of `limit.lua` say.
    pub fn lua(&self, redis: &Redis, free: &str, flood: &str) -> Conf {
        self.nginx()
            .plain()
            .load("ndk_http_module")
            .load("ngx_http_lua_module")
            .file("limit.lua", include_str!("limit.lua"))
            .file("redis_client.lua", include_str!("redis_client.lua"))
            .set("redis_port", redis.port())
            .set("lua_free", free)
            .set("lua_flood", flood)
            .http(LUA)
            .server(LUA_SERVER)
    }

    /// The module, connected as these directives say.
    pub fn module(&self, store: &str) -> Conf {
        self.nginx().http(store).http(MODULE).server(MODULE_SERVER)
    }

    /// The module, connected to a Redis.
    pub fn module_on(&self, redis: &Redis) -> Conf {
        self.module(&format!("rate_limit_redis_pass {};", redis.url()))
    }
}

/// Starts an nginx with the module, and waits until it decides: workers connect on their own, and requests may come before.
pub fn start_deciding(conf: &Conf) -> Result<Nginx, Stop> {
    check()?;
    let nginx = conf.start();
    match holds_within(PATIENCE, || nginx.get("/free?k=first").status == 200) {
        true => Ok(nginx),
        false => Err(Stop::Failure("the module decides nothing".to_owned())),
    }
}

/// Requests each of these keys once, one after the other.
pub fn spend(nginx: &Nginx, path: &str, keys: u64) {
    let mut http: Http = nginx.http();
    (1..=keys).for_each(|key| drop(http.get(&format!("{path}?k={key}"))));
}
