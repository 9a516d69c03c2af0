//! One nginx for each way to limit, all up at once so that they can take turns, and one Redis.

use harness::stop::Stop;
use harness::{Nginx, Redis};

use crate::servers::{Servers, spend, start_deciding};
use crate::trial;

/// The word of a command that stands for the client's key.
const KEY: &str = "__key__";

/// The variants, requested at one path, and the commands that the module sends.
pub struct Fleet {
    nginx: Vec<(&'static str, Nginx)>,
    pub redis: Redis,
    commands: Vec<(&'static str, Command)>,
}

/// The words that the module sends to Redis for a request, with [`KEY`] in the place of the client's key. Redis knows the script under
/// the SHA in it, as the module has loaded it.
pub struct Command(pub Vec<String>);

impl Fleet {
    /// Starts all, with more configuration for the module.
    pub fn start(servers: &Servers, directives: &str) -> Result<Self, Stop> {
        let redis = servers.redis();
        let with_module = servers.module_on(&redis).http(directives);
        let module = start_deciding(&with_module)?;
        let paths = ["free", "gcra", "flood"];
        let commands = paths.map(|path| (path, Command::of(&redis, &module, path))).into();
        let mut fleet = Self { nginx: Vec::new(), redis, commands };

        let lease = with_module.http("rate_limit_redis_lease on;");
        // Header fields of the size of those that the module adds to a rejection, but constant.
        let fields =
            trial::REJECTION.map(|(name, value)| format!("add_header {name} {value} always;"));
        let fields = servers.limit_req().http(&fields.join("\n"));
        let free = fleet.command("free").for_lua(100_000_000, 30_000_000);
        let flood = fleet.command("flood").for_lua(1, 3_600_000_000);
        let lua = servers.lua(&fleet.redis, &free, &flood);
        fleet.nginx = vec![
            ("none", servers.none().start()),
            ("limit_req", servers.limit_req().start()),
            ("lua", lua.start()),
            ("module", module),
            ("lease", start_deciding(&lease)?),
            ("fields", fields.start()),
        ];
        for (variant, nginx) in &fleet.nginx {
            // The caller's directives may have switched the fields off.
            let is_module = ["module", "lease"].contains(variant);
            let sends_fields = *variant == "lua" || is_module && directives.is_empty();
            trial::check(variant, nginx, *variant != "none", sends_fields)?;
        }
        Ok(fleet)
    }

    /// The nginx of a variant.
    pub fn nginx(&self, variant: &str) -> &Nginx {
        find(&self.nginx, variant)
    }

    /// The command for a request for this path.
    pub fn command(&self, path: &str) -> &Command {
        find(&self.commands, path)
    }

    /// Requests each key once from every nginx, so that they know it.
    pub fn spend(&self, path: &str, keys: u64) {
        self.nginx.iter().for_each(|(_, nginx)| spend(nginx, path, keys));
    }
}

fn find<'a, T>(values: &'a [(&str, T)], name: &str) -> &'a T {
    let (_, value) = values.iter().find(|(known, _)| *known == name).expect("a known name");
    value
}

impl Command {
    /// The command for a request. The slow log shows it whole, as no word of it is long.
    fn of(redis: &Redis, nginx: &Nginx, path: &str) -> Self {
        redis.command::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        nginx.get(&format!("/{path}?k={KEY}"));
        type Entry = (u64, u64, u64, Vec<Vec<u8>>, String, String);
        let entries: Vec<Entry> = redis.command(&["SLOWLOG", "GET", "-1"]);
        redis.command::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "10000"]);
        let mut commands = entries.into_iter().map(|(_, _, _, words, ..)| words);
        // The newest is the first.
        let words = commands.find(|words| words[0] == b"EVALSHA").expect("a command of the module");
        Self(words.into_iter().map(|word| String::from_utf8(word).expect("text")).collect())
    }

    /// The command for another key.
    pub fn for_key(&self, key: &str) -> Vec<String> {
        self.0.iter().map(|word| word.replace(KEY, key)).collect()
    }

    /// The settings of `limit.lua`: the words of the command, around the client's key, and what a token bucket is, with
    /// its interval in µs.
    fn for_lua(&self, capacity: u64, interval: u64) -> String {
        let [_, sha, _, key, arguments @ ..] = &self.0[..] else {
            panic!("not an EVALSHA with a key: {:?}", self.0);
        };
        let prefix = key.strip_suffix(KEY).expect("a client's key at the end");
        let arguments: Vec<_> = arguments.iter().map(|word| format!("\"{word}\"")).collect();
        let arguments = arguments.join(", ");
        format!(
            "sha = \"{sha}\", prefix = \"{prefix}\", arguments = {{ {arguments} }}, \
             capacity = {capacity}, interval = {interval}"
        )
    }
}
