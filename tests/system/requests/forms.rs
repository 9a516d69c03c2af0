//! The forms of header fields that show a client its quota.

use std::time::{SystemTime, UNIX_EPOCH};

use harness::{Conf, Redis, Response, run};
use rate_limit_core::limit::Algorithm;

use crate::seen::{FIELDS, StartConnected as _, quota, retry_after};

/// The fields of the form `ratelimit`.
const RATELIMIT: [&str; 3] = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];

/// The fields of the form `ietf`.
const IETF: [&str; 2] = ["RateLimit-Policy", "RateLimit"];

/// An item of a list: a string and its parameters.
type Item = (String, Vec<(String, i64)>);

/// Reads a list of strings with integer parameters, and nothing else, by the grammar of RFC 9651.
/// `None` if it is anything else.
fn parse_list(text: &str) -> Option<Vec<Item>> {
    let mut items = Vec::new();
    let mut rest = text;
    loop {
        let (string, after) = parse_string(rest)?;
        let (parameters, after) = parse_parameters(after)?;
        items.push((string, parameters));
        if after.is_empty() {
            return Some(items);
        }
        rest = after.trim_start_matches([' ', '\t']).strip_prefix(',')?;
        rest = rest.trim_start_matches([' ', '\t']);
    }
}

fn parse_string(text: &str) -> Option<(String, &str)> {
    let mut string = String::new();
    let mut chars = text.strip_prefix('"')?.chars();
    loop {
        match chars.next()? {
            '"' => return Some((string, chars.as_str())),
            '\\' => string.push(chars.next().filter(|escaped| "\"\\".contains(*escaped))?),
            plain @ ' '..='~' => string.push(plain),
            _ => return None,
        }
    }
}

fn parse_parameters(mut text: &str) -> Option<(Vec<(String, i64)>, &str)> {
    let mut parameters: Vec<(String, i64)> = Vec::new();
    while let Some(rest) = text.strip_prefix(';') {
        let rest = rest.trim_start_matches(' ');
        let first = rest.chars().next()?;
        if !(first.is_ascii_lowercase() || first == '*') {
            return None;
        }
        let in_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c);
        let (key, value) = rest.split_at(rest.find(|c| !in_key(c))?);
        let value = value.strip_prefix('=')?;
        let sign = usize::from(value.starts_with('-'));
        let digits = value[sign..].chars().take_while(char::is_ascii_digit).count();
        let (number, after) = value.split_at(sign + digits);
        // A decimal would go on with a point.
        if !(1..=15).contains(&digits) || after.starts_with('.') {
            return None;
        }
        // The last one counts of a parameter that is there twice; ours must not be.
        if parameters.iter().any(|(known, _)| known == key) {
            return None;
        }
        parameters.push((key.to_owned(), number.parse().ok()?));
        text = after;
    }
    Some((parameters, text))
}

#[test]
fn the_parser_is_strict() {
    let item = |name: &str, parameters: &[(&str, i64)]| {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), *value));
        (name.to_owned(), parameters.collect::<Vec<_>>())
    };
    assert_eq!(
        parse_list("\"a\\\"b\";q=1; w=-2 ,\t\"c\"").unwrap(),
        [item("a\"b", &[("q", 1), ("w", -2)]), item("c", &[])]
    );
    for wrong in [
        "",
        "a;q=1",
        "\"a\" ;q=1",
        "\"a\";q =1",
        "\"a\";q= 1",
        "\"a\";q",
        "\"a\";Q=1",
        "\"a\";q=1.5",
        "\"a\";q=1e3",
        "\"a\";q=+1",
        "\"a\";q=",
        "\"a\";q=1234567890123456",
        "\"a\";q=1;q=1",
        "\"a\",",
        "\"a\" \"b\"",
        "\"a\"; \"b\"",
        "\"a",
        "\"a\\b\"",
        "\"\u{e4}\"",
        " \"a\"",
        "\"a\" ",
    ] {
        assert_eq!(parse_list(wrong), None, "{wrong:?}");
    }
}

/// A limit as the form `ietf` has to show it: its name, `q` and `w`; and its rate, a number in so
/// many ms.
type Limit<'a> = (&'a str, i64, i64, (i128, i128));

/// `r` and `t` of each limit. Panics unless the fields of the form `ietf` show just these limits,
/// in this order, and keep the rules of the draft.
#[track_caller]
fn ietf(response: &Response, limits: &[Limit<'_>]) -> Vec<(i64, i64)> {
    let [policies, states] = IETF.map(|name| {
        let [value] = response.headers(name)[..] else {
            panic!("{name} is not there once:\n{response:?}");
        };
        parse_list(value).unwrap_or_else(|| panic!("{name}: {value}"))
    });
    let parameter = |key: &str, value| (key.to_owned(), value);
    let expected = limits
        .iter()
        .map(|(name, q, w, _)| ((*name).to_owned(), vec![parameter("q", *q), parameter("w", *w)]));
    assert_eq!(policies, expected.collect::<Vec<_>>(), "{response:?}");

    let wait = response.header("Retry-After").map(|seconds| seconds.parse::<i64>().unwrap());
    assert_eq!(states.len(), limits.len(), "{response:?}");
    let check = |((name, parameters), limit): (&Item, &Limit<'_>)| {
        let &(expected, _, _, (number, ms)) = limit;
        assert_eq!(name, expected, "{response:?}");
        let [(r_key, r), (t_key, t)] = &parameters[..] else { panic!("{name}: {parameters:?}") };
        assert_eq!((r_key.as_str(), t_key.as_str()), ("r", "t"));
        assert!(*r >= 0 && *t >= 0, "{name}: r={r} t={t}");
        let promised = i128::from(*r) * ms;
        let meant = i128::from(*t) * 1_000 * number;
        assert!(promised <= meant, "{name}: {r} in {t} s is more than {number} in {ms} ms");
        assert!(wait.is_none_or(|wait| wait >= *t), "{name}: t={t} is after {wait:?}");
        (*r, *t)
    };
    states.iter().zip(limits).map(check).collect()
}

/// How often each of the eight fields is there.
fn counts(response: &Response) -> [usize; 8] {
    let mut names = FIELDS.iter().chain(&RATELIMIT).chain(&IETF);
    std::array::from_fn(|_| names.next().map_or(0, |name| response.headers(name).len()))
}

/// The answer to a request that `curl` sends by HTTP/2 at once.
pub fn curl_h2(arguments: &[&str]) -> Response {
    let mut all = vec!["-sS", "-i", "--max-time", "10", "--http2-prior-knowledge"];
    all.extend(arguments);
    let output = run("curl", &all);
    let (head, body) = output.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/2 ")?.get(..3)?.parse().ok());
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").expect("a field");
        (name.to_owned(), value.trim().to_owned())
    };
    Response {
        status: status.unwrap_or_else(|| panic!("{output}")),
        headers: lines.map(field).collect(),
        body: body.into(),
    }
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs()
}

/// A number in a field that is there once.
#[track_caller]
fn number(response: &Response, name: &str) -> u64 {
    let value = response.header(name).unwrap_or_else(|| panic!("no {name} in {response:?}"));
    value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
}

/// A server with a location `/0`, `/1` and so on for each of these values of
/// `rate_limit_redis_headers`, each with a limit of two of its own.
fn with_forms(redis: &Redis, forms: &[&str]) -> Conf {
    let location = |(n, forms): (usize, &&str)| {
        format!(
            "location /{n} {{ rate_limit_redis_headers {forms};
             rate_limit_redis $remote_addr name=n{n} rate=1r/10s capacity=2; }}"
        )
    };
    let locations: String = forms.iter().enumerate().map(location).collect();
    Conf::new().redis(redis).server(&locations)
}

#[test]
fn each_form_shows_its_fields_beside_the_others() {
    // How often X-RateLimit-*, RateLimit-*, RateLimit-Policy and RateLimit are there.
    let table = [
        ("x-ratelimit", [1, 1, 1, 0, 0, 0, 0, 0]),
        ("x-ratelimit-epoch", [1, 1, 1, 0, 0, 0, 0, 0]),
        ("ratelimit", [0, 0, 0, 1, 1, 1, 0, 0]),
        ("ietf", [0, 0, 0, 0, 0, 0, 1, 1]),
        ("ietf x-ratelimit", [1, 1, 1, 0, 0, 0, 1, 1]),
        ("x-ratelimit-epoch ratelimit", [1, 1, 1, 1, 1, 1, 0, 0]),
        ("x-ratelimit ratelimit ietf", [1; 8]),
        ("ietf ratelimit x-ratelimit-epoch", [1; 8]),
        ("off", [0; 8]),
    ];
    let redis = Redis::start_with_stopped_clock();
    let nginx = with_forms(&redis, &table.map(|(forms, _)| forms)).start_connected(&redis);
    for (n, (forms, expected)) in table.into_iter().enumerate() {
        // Two that pass, and one that does not.
        for (status, remaining, reset) in [(404, 1, 10), (404, 0, 20), (429, 0, 20)] {
            let before = unix_time();
            let response = nginx.get(&format!("/{n}"));
            let after = unix_time();
            assert_eq!((response.status, counts(&response)), (status, expected), "{forms}");

            if forms.contains("x-ratelimit-epoch") {
                let [limit, left, moment] = quota(&response);
                assert_eq!([limit, left], [2, remaining], "{forms}");
                let moments = before + reset - 1..=after + reset + 1;
                assert!(moments.contains(&moment), "{forms}: {moment} is not in {moments:?}");
            } else if forms.contains("x-ratelimit") {
                assert_eq!(quota(&response), [2, remaining, reset], "{forms}");
            }
            if expected[3] == 1 {
                let shown = RATELIMIT.map(|name| number(&response, name));
                assert_eq!(shown, [2, remaining, reset], "{forms}");
            }
            if forms.contains("ietf") {
                let limit = (&*format!("n{n}"), 1, 10, (1, 10_000));
                let shown = ietf(&response, &[limit])[0];
                assert_eq!(shown.0, remaining as i64, "{forms}");
            }
            match status {
                429 => assert_eq!(retry_after(&response), 10, "{forms}"),
                _ => assert!(response.header("Retry-After").is_none(), "{forms}"),
            }
        }
    }
}

/// The second request is delayed for 2 s, and its quota is whole again 4 s after its decision.
#[test]
fn the_reset_counts_from_the_response() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis_headers x-ratelimit-epoch ratelimit ietf;")
        .server("rate_limit_redis a rate=1r/2s algorithm=leaky_bucket burst=3;")
        .server("add_header X-Reset $rate_limit_redis_reset always;")
        .start_connected(&redis);
    nginx.get("/");
    let before = unix_time();
    let response = nginx.get("/");
    let after = unix_time();
    let moment = number(&response, "X-RateLimit-Reset");
    assert!((before + 4..=after + 3).contains(&moment), "{before}, {response:?}, {after}");
    // On a slow machine it comes later.
    let least = moment.saturating_sub(after + 1);
    for name in ["RateLimit-Reset", "X-Reset"] {
        assert!((least..=2).contains(&number(&response, name)), "{response:?}, {after}");
    }
}

#[test]
fn ietf_has_this_very_text() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis_headers ietf;")
        .server("rate_limit_redis a name=per_ip rate=1r/10s capacity=10 cost=$arg_cost;")
        .server("rate_limit_redis a name=day.x-1 rate=1000r/1d algorithm=gcra;")
        .start_connected(&redis);
    let response = nginx.get("/?cost=4");
    let shown = IETF.map(|name| response.header(name).unwrap_or_default());
    assert_eq!(
        shown,
        [
            "\"per_ip\";q=1;w=10, \"day.x-1\";q=1000;w=86400",
            "\"per_ip\";r=6;t=60, \"day.x-1\";r=0;t=87"
        ]
    );
}

/// Limits of every algorithm, with `$arg_cost` as the cost, and how they are to be shown. Periods
/// are scaled to whole seconds.
const LIMITS: [(&str, Limit<'static>); Algorithm::ALL.len() + 1] = [
    ("rate=100r/m algorithm=token_bucket", ("bucket", 100, 60, (100, 60_000))),
    ("rate=9r/2h refill=interval capacity=50", ("interval", 9, 7200, (9, 7_200_000))),
    ("rate=7r/250ms burst=20 algorithm=gcra", ("gcra", 28, 1, (7, 250))),
    ("rate=1r/s burst=30 algorithm=leaky_bucket nodelay", ("leaky", 1, 1, (1, 1_000))),
    ("rate=5r/300ms algorithm=sliding_window", ("window", 16, 1, (5, 300))),
    ("rate=300r/1500ms algorithm=sliding_log", ("log", 400, 2, (300, 1_500))),
    ("rate=1000r/1d algorithm=fixed_window", ("fixed", 1000, 86_400, (1_000, 86_400_000))),
    ("rate=40r/1w algorithm=sliding_window", ("week", 40, 604_800, (40, 604_800_000))),
];

fn all_limits(redis: &Redis) -> Conf {
    let line = |(parameters, (name, ..)): (&str, Limit<'_>)| {
        format!("rate_limit_redis a name={name} {parameters} cost=$cost;\n")
    };
    Conf::new()
        .redis(redis)
        .http("map $arg_cost $cost { default $arg_cost; '' 1; }")
        .server(&LIMITS.map(|(parameters, limit)| line((parameters, limit))).concat())
        .server("rate_limit_redis_headers ietf;")
}

#[test]
fn every_limit_is_listed_whatever_the_answer() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = all_limits(&redis).start_connected(&redis);
    let limits = LIMITS.map(|(_, limit)| limit);
    let mut http = nginx.http();
    let mut seen = [0; 2];
    for n in 0..60 {
        // Some requests cost 0, and only query the state.
        let cost = if n % 5 == 0 { 0 } else { 1 + n % 3 };
        let response = http.get(&format!("/?cost={cost}"));
        ietf(&response, &limits);
        let rejected = response.status == 429;
        seen[usize::from(rejected)] += 1;
        assert!(rejected || response.status == 200, "{response:?}");
        assert_eq!(response.headers("Retry-After").len(), usize::from(rejected), "{response:?}");
        assert!(!rejected || retry_after(&response) >= 1);
    }
    assert!(seen.iter().all(|count| *count > 5), "passed and rejected: {seen:?}");

    // Above what the smallest can ever hold.
    let response = http.get("/?cost=6");
    assert_eq!((response.status, response.header("Retry-After")), (429, None));
    ietf(&response, &limits);
}

#[test]
fn nothing_is_promised_beyond_retry_after() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis_headers ietf;")
        .server("rate_limit_redis a name=short rate=1r/10s;")
        .server("rate_limit_redis a name=long rate=8640r/1d algorithm=fixed_window;")
        .start_connected(&redis);
    let limits = [("short", 1, 10, (1, 10_000)), ("long", 8640, 86_400, (8_640, 86_400_000))];
    assert_eq!(nginx.get("/").status, 200);
    let response = nginx.get("/");
    assert_eq!((response.status, retry_after(&response)), (429, 10));
    // The long one has 8639 left, of which no more than one is promised in those 10 s.
    let [(0, short), (left, long)] = ietf(&response, &limits)[..] else { panic!("{response:?}") };
    assert!(short == 10 && long <= 10 && left <= 1, "{response:?}");
}

#[test]
fn what_is_left_can_be_spent() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis_headers ietf;")
        .server("location / { rate_limit_redis a rate=5r/1h algorithm=sliding_log; }")
        .start_connected(&redis);
    let limit = [("default", 5, 3_600, (5, 3_600_000))];
    let shown = [(); 5].map(|()| ietf(&nginx.get("/"), &limit)[0].0);
    assert_eq!(shown, [4, 3, 2, 1, 0]);
    let (r, t) = ietf(&nginx.get("/"), &limit)[0];
    assert!(r == 0 && (3_590..=3_600).contains(&t), "r={r} t={t}");
}

/// An upstream that sends all of the fields, some of them twice, and one of its own.
const UPSTREAM: &str = "server { listen 127.0.0.1:{port2};
    add_header RateLimit '\"up\";r=77;t=77'; add_header RateLimit '\"up2\";r=77;t=77';
    add_header ratelimit-policy '\"up\";q=77;w=77'; add_header RATELIMIT-POLICY '\"up2\";q=7;w=7';
    add_header RateLimit-Limit 77; add_header ratelimit-limit 78;
    add_header RateLimit-Remaining 77; add_header RateLimit-Reset 77;
    add_header X-RateLimit-Limit 77; add_header x-ratelimit-limit 78;
    add_header X-RateLimit-Remaining 77; add_header X-RateLimit-Reset 77;
    add_header X-RateLimit-Used 77;
    return 200 page; }";

#[test]
fn those_from_upstream_are_replaced() {
    let redis = Redis::start_with_stopped_clock();
    let table = [
        ("x-ratelimit", [1, 1, 1, 2, 1, 1, 2, 2]),
        ("ratelimit", [2, 1, 1, 1, 1, 1, 2, 2]),
        ("ietf", [2, 1, 1, 2, 1, 1, 1, 1]),
        ("x-ratelimit ratelimit ietf", [1; 8]),
        ("off", [2, 1, 1, 2, 1, 1, 2, 2]),
    ];
    let nginx = with_forms(&redis, &table.map(|(forms, _)| forms)).http2().http(UPSTREAM);
    // `proxy_pass` is not inherited, `error_page` is: each location falls through to the upstream.
    let nginx = nginx
        .server("error_page 404 = @up; location @up { proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    for (n, (forms, expected)) in table.into_iter().enumerate() {
        let path = format!("/{n}");
        let answers = [nginx.get(&path), curl_h2(&[&nginx.h2_url(&path)])];
        for (response, remaining) in answers.iter().zip([1, 0]) {
            assert_eq!((response.status, response.text()), (200, "page"), "{forms}");
            assert_eq!(counts(response), expected, "{forms}");
            assert_eq!(response.header("X-RateLimit-Used"), Some("77"), "{forms}");
            let ours = |names: [&str; 3], count| {
                let shown = names.map(|name| response.headers(name).first().copied());
                match count {
                    1 => assert_eq!(shown[..2], [Some("2"), Some(["0", "1"][remaining])]),
                    _ => assert_eq!(shown, [Some("77"); 3], "{forms}: not ours"),
                }
            };
            ours(FIELDS, expected[0]);
            ours(RATELIMIT, expected[3]);
            if expected[6] == 1 {
                ietf(response, &[(&format!("n{n}"), 1, 10, (1, 10_000))]);
            } else {
                assert_eq!(response.headers("RateLimit")[1], "\"up2\";r=77;t=77");
            }
        }
    }
}

#[test]
fn they_are_added_to_an_answer_from_upstream() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http(UPSTREAM)
        .server("location / { rate_limit_redis a rate=1r/10s capacity=2;")
        .server("rate_limit_redis_headers ietf ratelimit x-ratelimit;")
        .server("proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let response = nginx.get("/");
    assert_eq!((response.text(), counts(&response)), ("page", [1; 8]));
    assert_eq!(quota(&response), [2, 1, 10]);
    assert_eq!(ietf(&response, &[("default", 1, 10, (1, 10_000))]), [(1, 10)]);
}

const ALL: &str = "rate_limit_redis_headers x-ratelimit ratelimit ietf;";

#[test]
fn every_version_of_http_shows_them() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .http2()
        .redis(&redis)
        .server(ALL)
        .server("location / { rate_limit_redis $server_protocol rate=1r/10s; }")
        .start_connected(&redis);
    let http_1_0 = |_| {
        let mut http = nginx.http();
        http.send_raw(b"GET / HTTP/1.0\r\n\r\n");
        let response = http.read_response();
        assert!(http.is_closed());
        response
    };
    let answers = [
        [(); 2].map(http_1_0),
        [(); 2].map(|()| nginx.get("/")),
        [(); 2].map(|()| curl_h2(&[&nginx.h2_url("/")])),
    ];
    for [passed, rejected] in answers {
        assert_eq!([passed.status, rejected.status], [200, 429]);
        for response in [passed, rejected] {
            assert_eq!(counts(&response), [1; 8], "{response:?}");
            assert_eq!(quota(&response), [1, 0, 10]);
            assert_eq!(ietf(&response, &[("default", 1, 10, (1, 10_000))]), [(0, 10)]);
        }
    }
}

#[test]
fn every_kind_of_answer_shows_them() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server(ALL)
        .server("rate_limit_redis $uri rate=1r/10s;")
        .server("location /paged { error_page 404 429 =200 /page.txt; }")
        .server("location /named { error_page 404 429 = @named; }")
        .server("location @named { return 418 named; }")
        .file("html/page.txt", "page\n")
        .file("html/same.txt", "same\n")
        .start_connected(&redis);
    let mut http = nginx.http();
    let date = http.get("/same.txt").header("Last-Modified").expect("a date").to_owned();
    redis.command::<i64>(&["DEL", "rl:default:/same.txt"]);
    http.send("GET", "/same.txt", &[("If-Modified-Since", &date)]);
    let mut answers = vec![(http.read_response(), 304)];
    answers.push((http.get("/none"), 404));
    answers.push((http.get("/none"), 429));
    for _ in 0..2 {
        answers.push((http.get("/paged"), 200));
        answers.push((http.get("/named"), 418));
    }
    for (response, status) in answers {
        assert_eq!((response.status, counts(&response)), (status, [1; 8]), "{response:?}");
        assert_eq!(quota(&response)[..2], [1, 0], "{response:?}");
        let (r, t) = ietf(&response, &[("default", 1, 10, (1, 10_000))])[0];
        assert!(r == 0 && (9..=10).contains(&t), "{response:?}");
    }
}

#[test]
fn the_location_that_decided_has_its_say() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location = /a { rate_limit_redis a name=a rate=9r/d;")
        .server("  rate_limit_redis_headers ietf; try_files /none /b; }")
        .server("location = /b { rate_limit_redis a name=b rate=9r/d;")
        .server("  rate_limit_redis_headers ratelimit; error_page 404 /c; }")
        .server("location = /c { rate_limit_redis_headers off; }")
        .server("location = /free { rate_limit_redis_headers x-ratelimit; try_files /none /b; }")
        .server("location = /empty { rate_limit_redis $arg_none name=e rate=9r/d;")
        .server("  rate_limit_redis_headers x-ratelimit; try_files /none /b; }")
        .start_connected(&redis);
    let ietf_only = [0, 0, 0, 0, 0, 0, 1, 1];
    let ratelimit_only = [0, 0, 0, 1, 1, 1, 0, 0];
    assert_eq!(counts(&nginx.get("/a")), ietf_only);
    assert_eq!(counts(&nginx.get("/b")), ratelimit_only, "whatever /c says");
    assert_eq!(counts(&nginx.get("/free")), ratelimit_only, "/free decided nothing");
    assert_eq!(counts(&nginx.get("/empty")), ratelimit_only, "/empty limited nothing");
    assert_eq!(crate::seen::keys(&redis), ["rl:a:a", "rl:b:a"]);
}

#[test]
fn forms_are_inherited_and_overruled() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http("rate_limit_redis_headers ietf;")
        .http("server { listen 127.0.0.1:{port2}; rate_limit_redis_headers ratelimit;")
        .http("  root {prefix}/html; location / { rate_limit_redis a rate=9r/d; }")
        .http("  location /off { rate_limit_redis a rate=9r/d; rate_limit_redis_headers off; }")
        .http("  location /off/x { rate_limit_redis a rate=9r/d;")
        .http("    rate_limit_redis_headers x-ratelimit; } }")
        .server("rate_limit_redis a rate=9r/d;")
        .server("location /x { rate_limit_redis_headers x-ratelimit; location /x/y { } }")
        .server("location /pass/ { rate_limit_redis off; proxy_pass http://127.0.0.1:{port2}/; }")
        .start_connected(&redis);
    let table = [
        ("/", [0, 0, 0, 0, 0, 0, 1, 1]),
        ("/x", [1, 1, 1, 0, 0, 0, 0, 0]),
        ("/x/y", [1, 1, 1, 0, 0, 0, 0, 0]),
        ("/pass/", [0, 0, 0, 1, 1, 1, 0, 0]),
        ("/pass/off", [0; 8]),
        ("/pass/off/x", [1, 1, 1, 0, 0, 0, 0, 0]),
    ];
    for (path, expected) in table {
        assert_eq!(counts(&nginx.get(path)), expected, "{path}");
    }
}

#[test]
fn nothing_is_shown_where_nothing_was_decided() {
    let nginx = Conf::new()
        .http("rate_limit_redis_pass redis://127.0.0.1:1;")
        .server(ALL)
        .server("location / { rate_limit_redis a rate=9r/d; }")
        .server("location /shut { rate_limit_redis a rate=9r/d;")
        .server("rate_limit_redis_on_error closed; }")
        .server("location /empty { rate_limit_redis $arg_key rate=9r/d; }")
        .start();
    for (path, status, wait) in [("/", 200, None), ("/shut", 503, Some("1")), ("/empty", 404, None)]
    {
        let response = nginx.get(path);
        assert_eq!((response.status, counts(&response)), (status, [0; 8]), "{path}");
        assert_eq!(response.header("Retry-After"), wait, "{path}");
    }
}
