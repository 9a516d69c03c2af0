//! The examples of README.md and of the pages of docs/ work, and they describe everything that there is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rate_limit_core::algorithm::Regain;
use rate_limit_core::conf::limit::parameters;
use rate_limit_core::conf::store::LINES;
use rate_limit_core::conf::{
    Arguments, Contexts, DIRECTIVES, Directive, Policy, PolicyLevel, Row, Sets,
};
use rate_limit_core::limit::Algorithm;

use harness::{Conf, Nginx, PATIENCE, Redis, Response, wait_until};

use crate::seen::{StartConnected as _, in_a_window};

/// Where nothing listens.
const CLOSED: &str = "127.0.0.1:1";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

/// README.md, CHANGELOG.md and every page of docs/, by their paths.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned(), "CHANGELOG.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let path = format!("{folder}/{}", entry.file_name().display());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The code blocks of a page that are marked as nginx's.
fn blocks_of(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in read(page).lines() {
        match &mut open {
            None if line == "```nginx" => open = Some(String::new()),
            None => (),
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    assert!(open.is_none(), "{page} has a block that does not end");
    blocks
}

/// The blocks of all pages.
fn blocks() -> Vec<String> {
    pages().iter().flat_map(|page| blocks_of(page)).collect()
}

/// The block of a page that holds `mark`.
pub fn block(page: &str, mark: &str) -> String {
    let mut found = blocks_of(page).into_iter().filter(|block| block.contains(mark));
    let block = found.next().unwrap_or_else(|| panic!("{page} has no block with {mark}"));
    assert_eq!(found.next(), None, "{page} has two blocks with {mark}");
    block
}

/// Directives of `http` that a block may show by themselves.
const OF_HTTP: [&str; 9] = [
    "server",
    "map",
    "geo",
    "upstream",
    "log_format",
    "set_real_ip_from",
    "rate_limit_redis_store",
    "rate_limit_redis_top",
    "limit_req_zone",
];

/// Puts a block where it belongs, with the servers of the test in place of those that it names, and with so
/// much time to connect to them as a busy machine may need.
pub fn conf(block: &str, redis: &Redis) -> Conf {
    const GENEROUS: &str = "connect_timeout 30s;";
    let mut text = block.replace("connect_timeout 250ms;", GENEROUS);
    if !text.contains(GENEROUS) {
        text = text.replace("server redis://", &format!("{GENEROUS} server redis://"));
    }
    // A URL without a store has no time of its own.
    let named = text.split("rate_limit_redis_pass ").skip(1);
    let named = named.filter_map(|rest| rest.split(';').next());
    let urls: BTreeSet<_> = named.filter(|to| to.contains("://")).map(str::to_owned).collect();
    let mut stores = String::new();
    for (n, url) in urls.iter().enumerate() {
        stores += &format!("rate_limit_redis_store url{n} {{ server {url}; {GENEROUS} }}\n");
        let pass = |to: &str| format!("rate_limit_redis_pass {to};");
        text = text.replace(&pass(url), &pass(&format!("url{n}")));
    }
    let generous = match names_store(&text) {
        true => Conf::new().http("rate_limit_redis_timeout 5s;"),
        false => Conf::new().redis(redis),
    };
    placed(&text, redis, generous).http(&of_test(&stores, redis))
}

/// A block where it belongs, with its own times or those by default.
fn conf_as_shown(block: &str, redis: &Redis) -> Conf {
    let conf = match names_store(block) {
        true => Conf::new(),
        false => Conf::new().http(&format!("rate_limit_redis_pass {};", redis.url())),
    };
    placed(block, redis, conf)
}

/// Whether a block names the store at the level of `http`.
fn names_store(block: &str) -> bool {
    block.contains("\nhttp {\n") || block.starts_with("rate_limit_redis_pass")
}

/// A text with the servers of the test in place of those that it names.
fn of_test(text: &str, redis: &Redis) -> String {
    text.replace("redis+unix:///run/redis/redis.sock", &redis.unix_url())
        .replace("127.0.0.1:6379", &format!("127.0.0.1:{}", redis.port()))
        .replace("localhost:6379", &format!("localhost:{}", redis.port()))
        .replace("127.0.0.1:9000", CLOSED)
        .replace(default_port(text), "listen 127.0.0.1:{port} default_server;")
        .replace("listen 8080;", "listen 127.0.0.1:{port};")
}

/// The line of the server of a text that is the one by default.
fn default_port(text: &str) -> &'static str {
    const NAMED: &str = "listen 8080 default_server;";
    if text.contains(NAMED) { NAMED } else { "listen 8080;" }
}

/// The files that blocks name.
fn with_files(conf: Conf) -> Conf {
    conf.file("users", "abc:{PLAIN}abc\n")
        .file("redis.token", "p@ss\n")
        .file("redis.secret", "a secret of 27 bytes, or so")
}

/// Puts a block where it belongs in a configuration.
fn placed(block: &str, redis: &Redis, conf: Conf) -> Conf {
    let text = of_test(block, redis);
    assert!(!text.contains("listen 8"), "a port that is not the test's:\n{text}");
    // The server of the harness steps back behind the block's own.
    let conf =
        with_files(conf).server("server_name harness;").http("server_names_hash_bucket_size 64;");
    let first: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with([' ', '}', '#']))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    if let Some((before, http)) = text.split_once("\nhttp {\n") {
        let line = "load_module modules/ngx_http_rate_limit_redis_module.so;";
        assert_eq!(
            before.split_whitespace().collect::<Vec<_>>().join(" "),
            [line, "events {}"].join(" ")
        );
        conf.http(http.trim_end().strip_suffix('}').expect("the end of http"))
    } else if first.iter().any(|word| OF_HTTP.contains(word)) {
        conf.http(&text)
    } else if first.contains(&"location") {
        conf.server(&text)
    } else {
        conf.server(&format!("location / {{\n{text}\n}}"))
    }
}

pub fn redis() -> Redis {
    Redis::start_with(&["user limiter on >p@ss ~rl:* +@all"])
}

/// The locations of a block with the text of each, up to the next one.
fn locations(block: &str) -> Vec<(String, String)> {
    let parts = block.split("location ").skip(1);
    let location = |part: &str| {
        let (head, body) = part.split_once('{').expect("a block");
        let path = head.trim().trim_start_matches("= ").to_owned();
        (path, body.to_owned())
    };
    parts.map(location).filter(|(path, _)| path.starts_with('/')).collect()
}

#[test]
fn every_block_is_valid() {
    let redis = redis();
    let blocks = blocks();
    assert!(blocks.len() >= 30, "only {} blocks", blocks.len());
    for block in blocks {
        conf_as_shown(&block, &redis).config_ok();
        // Once more with its own URLs: they name nothing that a check would need.
        let own = block
            .replace("listen 8080;", "listen 127.0.0.1:{port} default_server;")
            .replace("http {\n", "")
            .replace("events {}\n", "");
        if own.contains("rate_limit_redis_pass") && !own.contains("load_module") {
            with_files(Conf::new()).server("server_name harness;").http(&own).config_ok();
        }
    }
}

/// A limit of a text: what it holds at most, if that is a number, and what a request costs.
#[derive(Clone, Copy)]
struct Line {
    quota: Option<u64>,
    cost: u64,
}

impl Line {
    fn new(line: &str) -> Self {
        let number = |name: &str| {
            let value = line.split_once(name)?.1;
            value.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        let burst = || Some(number("burst=").unwrap_or(0) + 1);
        let quota = if line.contains("algorithm=gcra") || line.contains("algorithm=leaky_bucket") {
            burst()
        } else {
            number("capacity=").or_else(|| number("rate="))
        };
        Self { quota, cost: number("cost=").unwrap_or(1) }
    }

    /// The share that is left after one request, in millionths.
    fn left(&self) -> Option<u64> {
        let quota = self.quota?;
        Some((quota - self.cost) * 1_000_000 / quota)
    }

    /// The snippets of a text, as they are checked and shown. Nothing listens that could authenticate a request, and
    /// a line of a dry run stands beside one that is enforced.
    fn all(text: &str) -> Vec<Self> {
        let lines = text.split("rate_limit_redis $").skip(1);
        let lines = lines.map(|rest| rest.split(';').next().expect("a line"));
        let is_checked =
            |line: &&str| !(text.contains("auth_request /") && line.contains("after="));
        let is_shown = |line: &&str| is_checked(line) && !line.contains(" dry_run");
        lines.filter(is_shown).map(Self::new).collect()
    }
}

/// A request of a client with a key and a password. Where a method matters, it is POST.
fn request(nginx: &Nginx, block: &str, path: &str) -> Response {
    let method = if block.contains("map $request_method") { "POST" } else { "GET" };
    let account = ("Authorization", "Basic YWJjOmFiYw==");
    let mut http = nginx.http();
    http.send(method, path, &[("X-API-Key", "abc"), account, ("Content-Length", "0")]);
    http.read_response()
}

/// The first request to each limited location of each page finds the quota that its text names.
#[test]
fn every_limit_limits() {
    let redis = redis();
    let mut limited = 0;
    for block in blocks() {
        if !block.contains("rate_limit_redis $") {
            continue;
        }
        let nginx = conf(&block, &redis).start();
        // The limits of the server are inherited by locations without one.
        let of_server = Line::all(block.split("location ").next().expect("a beginning"));
        for (path, text) in locations(&block) {
            let own = Line::all(&text);
            let lines = if own.is_empty() { &of_server } else { &own };
            let limit = |response: &Response| {
                response.header("X-RateLimit-Limit").map(|value| value.parse::<u64>().unwrap())
            };
            if lines.is_empty() || text.contains("rate_limit_redis off") {
                assert_eq!(limit(&request(&nginx, &block, &path)), None, "{path} of\n{block}");
                continue;
            }
            limited += 1;
            // On a busy machine the first requests are not decided: there is no connection yet.
            wait_until(PATIENCE, || limit(&request(&nginx, &block, &path)).is_some(), "a decision");
            redis.command::<()>(&["FLUSHALL"]);
            redis.command::<()>(&["CONFIG", "RESETSTAT"]);
            let response = request(&nginx, &block, &path);
            let what = format!("{path} of\n{block}\n{response:?}");
            let statuses: &[u16] = match text.contains("auth_request /") {
                true => &[500],
                false => &[200, 204, 404, 502],
            };
            assert!(statuses.contains(&response.status), "{what}");
            let tightest = lines.iter().min_by_key(|line| line.left()).expect("a limit");
            let limit = limit(&response).expect("a quota");
            assert_eq!(limit, tightest.quota.unwrap_or(limit), "{what}");
            assert_eq!(response.remaining(), Some(limit - tightest.cost), "{what}");
            assert_eq!(was_charged(&redis), lines.iter().any(|line| line.cost > 0), "{what}");
        }
    }
    assert!(limited >= 30, "only {limited} locations");
}

/// Whether any database holds a key, or has held one since the last `CONFIG RESETSTAT`: that of a fast rate is gone soon.
fn was_charged(redis: &Redis) -> bool {
    let keyspace = redis.command::<String>(&["INFO", "keyspace"]);
    let stats = redis.command::<String>(&["INFO", "stats"]);
    keyspace.contains(":keys=") || !stats.contains("\nexpired_keys:0\r")
}

/// The first block, which is the first thing that people try.
#[test]
fn the_first_example_rejects_as_shown() {
    // So that nothing is given back meanwhile.
    let redis = Redis::start_with_stopped_clock();
    let block = blocks_of("README.md").swap_remove(0);
    assert!(block.contains("location /rating") && block.contains("rate=100r/m"), "{block}");
    let nginx = conf(&block, &redis).start_connected(&redis);
    let mut http = nginx.http();
    let responses: Vec<_> = (0..105).map(|_| http.get("/rating")).collect();
    let passed = responses.iter().filter(|response| response.status == 502).count();
    assert_eq!(passed, 100);
    let rejected = responses.iter().find(|r| r.status == 429).expect("a rejection");
    // Nothing listens that could answer 200.
    assert_shown("HTTP/1.1 200 OK\n", &responses[0]);
    assert_shown("HTTP/1.1 429 Too Many Requests\n", rejected);
}

/// The README shows the fields of a response below its status.
#[track_caller]
fn assert_shown(status: &str, response: &Response) {
    let readme = read("README.md");
    let (_, shown) = readme.split_once(status).expect("a status");
    let fields = shown.lines().map_while(|line| line.split_once(": "));
    let fields: Vec<_> = fields.collect();
    assert!(fields.len() >= 3, "{fields:?}");
    for (name, value) in fields {
        assert_eq!(response.header(name), Some(value), "{name}: {response:?}");
    }
}

#[test]
fn the_page_for_rejections_is_shown() {
    let redis = redis();
    let block = block("docs/directives.md", "@slow_down");
    let block = block.replace("rate=100r/m", "rate=1r/d");
    let nginx = conf(&block, &redis).start_connected(&redis);
    assert_eq!(nginx.get("/api").status, 502);
    let response = nginx.get("/api");
    assert_eq!(response.status, 429);
    let seconds = response.header("Retry-After").expect("Retry-After");
    let body = format!("{{\"error\":\"slow down\",\"retry_after\":{seconds}}}");
    assert_eq!(response.text(), body);
    assert_eq!(response.header("Content-Type"), Some("application/json"));
    assert!(response.header("X-RateLimit-Limit").is_some(), "the header fields are kept");
}

#[test]
fn tiers_have_their_own_rates() {
    // So that nothing is given back meanwhile.
    let redis = Redis::start_with_stopped_clock();
    let block = block("docs/directives.md", "$tier_rate");
    let nginx = conf(&block, &redis).start_connected(&redis);
    let limit = |path: &str, key: &str| {
        let mut http = nginx.http();
        http.send("GET", path, &[("X-API-Key", key)]);
        let response = http.read_response();
        let limit = response.header("X-RateLimit-Limit").map(|value| value.parse::<u64>().unwrap());
        (response.status, limit, response.remaining())
    };
    assert_eq!(limit("/api", "gold"), (502, Some(1000), Some(999)));
    assert_eq!(limit("/api", "other"), (502, Some(100), Some(99)));
    assert_eq!(limit("/quota", "other"), (204, Some(100), Some(99)));
    assert_eq!(limit("/quota", "other"), (204, Some(100), Some(99)), "it spends nothing");
    assert_eq!(limit("/api", ""), (502, Some(100), Some(99)), "no key: the address is limited");
    assert_eq!(limit("/api", "127.0.0.1"), (502, Some(100), Some(99)), "no key is an address");
}

/// The account that the documents propose for Redis may do what every algorithm needs.
#[test]
fn the_access_control_is_enough() {
    let page = read("docs/operations.md");
    let (_, rule) = page.split_once("ACL SETUSER limiter on >password ").expect("an account");
    let rule = rule.split("\n\n").next().expect("its end");
    let rule: Vec<_> = rule.split_whitespace().collect();
    let redis = Redis::start();
    let mut words = vec!["ACL", "SETUSER", "limiter", "on", ">password"];
    words.extend(&rule);
    redis.command::<()>(&words);
    let others = ["token_bucket refill=interval", "sliding_log block=1d"];
    let algorithms = Algorithm::ALL.map(Algorithm::name).into_iter().chain(others);
    let algorithms: Vec<_> = algorithms.collect();
    let url = format!("redis://limiter:password@127.0.0.1:{}/2", redis.port());
    let mut conf = Conf::new().decisions().store(url);
    for (n, algorithm) in algorithms.iter().enumerate() {
        conf = conf
            .server(&format!("location /{n} {{ try_files /index.html =404;"))
            .server(&format!("rate_limit_redis a name=n{n} rate=1r/d algorithm={algorithm}; }}"));
    }
    let nginx = conf.start_connected(&redis);
    // A day ends at midnight.
    in_a_window(&redis, 24 * 3_600, 30);
    for (n, algorithm) in algorithms.iter().enumerate() {
        for status in [200, 429] {
            let response = nginx.get(&format!("/{n}"));
            assert_eq!(response.status, status, "{algorithm}: {response:?}");
            assert!(response.decision().ends_with(" redis"), "{algorithm}: {response:?}");
        }
    }
    let denied = redis.command::<Vec<redis::Value>>(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "{denied:?}");
}

/// Names in quotes that come right after `marker`.
fn quoted<'a>(text: &'a str, marker: &str) -> Vec<&'a str> {
    text.split(marker).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The section of a page under a heading of the second level.
fn section(page: &str, heading: &str) -> String {
    let text = read(page);
    let found = text.split_once(&format!("\n## {heading}\n"));
    let (_, section) = found.unwrap_or_else(|| panic!("{page} has no section on {heading}"));
    section.split("\n## ").next().expect("a section").to_owned()
}

/// The text of a section of the reference beside a label, up to a semicolon.
fn reference<'a>(section: &'a str, label: &str) -> &'a str {
    let (_, rest) = section.split_once(&format!("    {label}:")).expect("a label");
    let next = ["\n    Default:", "\n    Context:", "\n\n"];
    let end = next.iter().filter_map(|next| rest.find(next)).min().expect("an end");
    rest[..end].split(';').next().expect("a line").trim()
}

/// How many arguments a syntax has: what is in brackets may be left out, and of what is between bars there is one.
fn arguments(syntax: &str) -> Arguments {
    let alternatives = syntax.replace(" | ", "|");
    let words: Vec<_> = alternatives.split_whitespace().skip(1).collect();
    let is_optional = |word: &str| word.starts_with('[');
    match words.as_slice() {
        [] => Arguments::None,
        [_, "{", "\u{2026}", "}"] => Arguments::OneAndBlock,
        [word] if is_optional(word) => Arguments::AtMostOne,
        [_] => Arguments::One,
        [word, other] if !is_optional(word) && is_optional(other) => Arguments::OneOrTwo,
        _ => Arguments::OneOrMore,
    }
}

/// Checks that a directive as it is written sets what there is without it.
#[track_caller]
fn is_default(row: &Row, line: &str) {
    let name = row.name.to_str().expect("a name");
    let directive = Directive::new(line.split_whitespace().map(str::as_bytes));
    let mut level = PolicyLevel::default();
    match row.sets {
        Sets::Limit | Sets::Store | Sets::Page(_) | Sets::Admin => {
            assert_eq!(line, "\u{2014}", "{name}")
        }
        Sets::Pass { default } => assert_eq!(line, format!("{name} {default}")),
        Sets::Memory { read, default } | Sets::Top { read, default } => {
            assert_eq!(read(&directive), Ok(default), "{line}");
        }
        Sets::Policy(set) => {
            assert_eq!(directive.name(), Ok(name));
            assert_eq!(set(&mut level, &directive), Ok(None), "{line}");
            assert_eq!(level.policy(), Policy::default(), "{line}");
        }
    }
}

/// The reference has the syntax, the default and the context that the table has.
#[test]
fn every_directive_is_described() {
    let page = "docs/directives.md";
    let text = read(page);
    for row in DIRECTIVES {
        let name = row.name.to_str().expect("a name");
        let section = section(page, name);
        let syntax = reference(&section, "Syntax");
        assert_eq!(syntax.split(' ').next(), Some(name), "the syntax of {name}");
        assert_eq!(arguments(syntax), row.arguments, "{syntax}");
        is_default(row, reference(&section, "Default"));
        let contexts = match row.contexts {
            Contexts::Everywhere => "http, server, location",
            Contexts::Http => "http",
            Contexts::Location => "location",
        };
        assert_eq!(reference(&section, "Context"), contexts, "{name}");
        assert!(text.contains(&format!("\n- [{name}](#{name})\n")), "{name} is not in the list");
    }
    let described = text.lines().filter(|line| line.starts_with("## ")).count();
    assert_eq!(described, DIRECTIVES.len(), "there is no such directive");
}

/// The items of the list of directives.
fn items_of_manual(page: &str) -> Vec<&str> {
    let (_, list) = page.split_once("\n.Sh DIRECTIVES\n").expect("directives");
    list.split("\n.El\n").next().expect("a list").split("\n.It Ic ").collect()
}

/// The page has every directive, with its default and its context, and every variable.
#[test]
fn the_manual_page_names_everything() {
    let page = read("docs/ngx_http_rate_limit_redis_module.5");
    let items = items_of_manual(&page);
    for row in DIRECTIVES {
        let name = row.name.to_str().expect("a name");
        let item = items.iter().find(|item| item.split([' ', '\n']).next() == Some(name));
        let item = item.unwrap_or_else(|| panic!("the directive {name}"));
        let context = item.split_once("\nContext: ").map(|(_, context)| context);
        let expected = match row.contexts {
            Contexts::Everywhere => None,
            Contexts::Http => Some("http."),
            Contexts::Location => Some("location."),
        };
        assert_eq!(context, expected, "{name}");
        let section = section("docs/directives.md", name);
        let default = reference(&section, "Default").split_whitespace().skip(1);
        for word in default {
            let value = word.rsplit('=').next().expect("a value");
            let mut words = item.split(|c: char| c.is_whitespace() || ",;()".contains(c));
            let is_named = words.any(|word| word == value) && item.contains("default");
            assert!(is_named, "{name} is {value} by default:\n{item}");
        }
    }
    assert_eq!(items.len() - 1, DIRECTIVES.len(), "there is no such directive");

    let words: Vec<_> = page.split_whitespace().collect();
    let source = read("src/variables.rs");
    let mut names = quoted(&source, "    (\"");
    names.extend(quoted(&source, "const CLIENT: &str = \""));
    assert!(names.contains(&"rate_limit_redis_client"), "{names:?}");
    for name in &names {
        assert!(words.contains(&format!("${name}").as_str()), "the variable ${name}");
    }
}

/// The names of what a directive can have within it, as they are written up to their values, and their defaults.
type Within = [(String, Option<&'static str>)];

/// The row of the table that `word` of a page is about.
fn within<'a>(table: &'a Within, word: &str) -> Option<&'a (String, Option<&'static str>)> {
    table.iter().find(|(name, _)| word == name || name.ends_with('=') && word.starts_with(name))
}

/// Checks that the reference describes a table, all of it and no more, with its defaults.
#[track_caller]
fn is_in_reference(directive: &str, table: &Within) {
    let section = section("docs/directives.md", directive);
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let (_, rows) = section.split_once(" | default | ").expect("a table");
    let mut described = BTreeSet::new();
    for row in rows.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let mut cells = row.split(" | ").map(quoted);
        let (names, defaults) = (cells.next().expect("names"), cells.next().expect("defaults"));
        let word = |name: &String| name.split([' ', ';']).next().expect("a word").to_owned();
        let known: Vec<_> = names
            .iter()
            .map(|name| within(table, &word(name)).unwrap_or_else(|| panic!("no {name}")))
            .collect();
        let expected: Vec<_> = known.iter().filter_map(|(_, default)| *default).collect();
        assert_eq!(defaults, expected, "{names:?}");
        described.extend(known.iter().map(|(name, _)| name));
    }
    let missing: Vec<_> = table.iter().filter(|(name, _)| !described.contains(name)).collect();
    assert!(missing.is_empty(), "no row on {missing:?}");
}

/// Checks that the manual page names all of a table, with its defaults: `.Cm name`, or `.Cm name Pq default`.
#[track_caller]
fn is_in_manual(directive: &str, table: &Within) {
    let page = read("docs/ngx_http_rate_limit_redis_module.5");
    let items = items_of_manual(&page);
    let item = items.iter().find(|item| item.split([' ', '\n']).next() == Some(directive));
    let named = item.expect("an item").lines().filter_map(|line| {
        let line = line.strip_prefix(".Cm ")?.trim_end_matches([' ', ',', '.']);
        let (name, default) = line.split_once(" Pq ").map_or((line, None), |(n, d)| (n, Some(d)));
        let (name, _) = within(table, name)?;
        // Prose, such as "the n of the rate".
        Some((name.clone(), default.filter(|text| !text.starts_with("No "))))
    });
    let named: BTreeSet<_> = named.collect();
    assert_eq!(named, table.iter().map(|(name, default)| (name.clone(), *default)).collect());
}

#[test]
fn every_line_of_a_store_is_described() {
    let lines: Vec<_> = LINES.iter().map(|row| (row.name.to_owned(), row.default)).collect();
    is_in_reference("rate_limit_redis_store", &lines);
    is_in_manual("rate_limit_redis_store", &lines);
}

#[test]
fn every_variable_is_described() {
    let page = read("docs/variables.md");
    let source = read("src/variables.rs");
    let mut names = quoted(&source, "    (\"");
    names.extend(quoted(&source, "const CLIENT: &str = \""));
    assert!(names.len() >= 9 && names.contains(&"rate_limit_redis_client"), "{names:?}");
    // Rows, until a line that is none: what stands apart is not shown as a row.
    let head = "| variable | value |\n|---|---|\n";
    let (_, table) = page.split_once(head).expect("a table");
    let rows: Vec<_> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.strip_prefix("| `$")?.split('`').next())
        .collect();
    for name in &names {
        assert!(rows.contains(name), "the table has no row on ${name}, only {rows:?}");
    }
    assert_eq!(rows.len(), names.len(), "{rows:?}");
}

/// Every metric of the page, with its type.
#[test]
fn every_metric_is_described() {
    let nginx = Conf::new().server("location = /metrics { rate_limit_redis_metrics; }").start();
    let prefix = "# TYPE nginx_rate_limit_redis_";
    let page = nginx.get("/metrics");
    let shown = page.text().lines().filter_map(|line| line.strip_prefix(prefix)?.split_once(' '));
    let shown: BTreeSet<_> = shown.collect();
    assert!(shown.contains(&("requests_total", "counter")), "{shown:?}");
    let text = read("docs/metrics.md");
    let (_, table) = text.split_once("| name | type | value |\n|---|---|---|\n").expect("a table");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let described = rows.filter_map(|row| {
        let (name, rest) = row.strip_prefix("| `")?.split_once("` | ")?;
        Some((name.split('{').next()?, rest.split(' ').next()?))
    });
    assert_eq!(described.collect::<BTreeSet<_>>(), shown);
}

/// Every parameter and value that the parser knows.
#[test]
fn every_parameter_is_described() {
    let parameters: Vec<_> = parameters().collect();
    is_in_reference("rate_limit_redis", &parameters);
    // The manual page has the rate in the syntax.
    let others: Vec<_> = parameters.into_iter().filter(|(name, _)| name != "rate=").collect();
    is_in_manual("rate_limit_redis", &others);
    let which = read("docs/algorithms.md");
    let drawing = read("docs/algorithms.svg");
    let names: BTreeSet<_> = Algorithm::ALL.into_iter().map(Algorithm::name).collect();
    for name in names {
        assert!(which.contains(&format!("| `{name}`")), "no row on {name}");
        assert!(drawing.contains(&format!(">{name}")), "{name} is not drawn");
    }
}

/// Lists of algorithms have all of them that they should, and no others: a file, and between which words the list is.
#[test]
fn lists_of_algorithms_are_whole() {
    type IsListed = fn(&Algorithm) -> bool;
    const REFERENCE: &str = "docs/directives.md";
    const MANUAL: &str = "docs/ngx_http_rate_limit_redis_module.5";
    let all = |_: &Algorithm| true;
    let is_window = |algorithm: &Algorithm| algorithm.regain() == Regain::AtOnce;
    let lists: [(_, _, _, IsListed); _] = [
        (REFERENCE, "\n| `algorithm=` |", "\n", all),
        (REFERENCE, "\n| algorithm | what a client keeps |\n", "\n\n", all),
        (REFERENCE, "\n- Leases are for ", ".", |algorithm| algorithm.has_leases()),
        (MANUAL, "\nThe algorithms:\n", "\nA\n", all),
        ("docs/privacy.md", "\n| Redis |", "\n", is_window),
        ("tests/fuzz/dictionary", "\n\"interval\"\n", "\n\"r/s\"", all),
    ];
    for (file, begin, end, is_listed) in lists {
        let text = read(file);
        let (_, list) = text.split_once(begin).unwrap_or_else(|| panic!("{begin} of {file}"));
        let list = list.split(end).next().expect("a list");
        let words: BTreeSet<_> = list.split(|c: char| c != '_' && !c.is_alphanumeric()).collect();
        let expected: BTreeSet<_> =
            Algorithm::ALL.into_iter().filter(is_listed).map(Algorithm::name).collect();
        let found: BTreeSet<_> = Algorithm::ALL.into_iter().map(Algorithm::name).collect();
        let found: BTreeSet<_> = found.intersection(&words).copied().collect();
        assert_eq!(found, expected, "{begin} of {file}");
    }
}

#[test]
fn the_front_door_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 250, "{lines} lines: move some to docs/");
}

/// The name of a heading in links, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(page: &str) -> Vec<String> {
    let text = read(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// Links to other files and to headings lead somewhere.
#[test]
fn every_link_leads_somewhere() {
    let mut links = 0;
    for page in pages() {
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in read(&page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { format!("{folder}/{path}") };
            let target = target.trim_start_matches('/');
            assert!(root().join(target).exists(), "{page} links to {link}");
            let found = heading.is_empty() || anchors(target).iter().any(|name| name == heading);
            assert!(found, "{page} links to {link}: no such heading");
        }
    }
    assert!(links >= 30, "only {links} links");
}
