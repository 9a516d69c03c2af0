//! Text that clients and logs get: structured fields are those of RFC 9651, bodies and metrics are JSON, and nothing
//! from outside reaches a log as it is.

use std::net::Ipv6Addr;

use rate_limit_core::decision::{Decision, Retry, Shown, Source, Status, Verdict, jitter};
use rate_limit_core::key::Prefixes;
use rate_limit_core::limit::{Quota, is_name};
use rate_limit_core::text::body::{BodyForm, rejection};
use rate_limit_core::text::fields::{FieldValue, Fields, Forms, Name, Reset, Values};
use rate_limit_core::text::log::{Escaped, Grouped};
use rate_limit_core::text::metrics::{Histogram, LimitMetrics, NodeMetrics, PageForm, Snapshot};
use serde_json::Value;

use crate::input::Input;
use crate::quota::quota;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    check_log(&mut input);
    check_metrics(&mut input);
    check_client(&mut input);
    let count = input.below(4) + 1;
    let limits: Vec<_> = (0..count).filter_map(|_| limit(&mut input)).collect();
    let limits: Vec<_> =
        limits.iter().map(|(name, quota, verdict)| shown(name, quota, *verdict)).collect();
    let decision = decision(&mut input, limits.first().copied());
    check_fields(&mut input, &limits, &decision);
    check_body(&mut input, &limits, &decision);
}

fn limit(input: &mut Input<'_>) -> Option<(String, Quota, Verdict)> {
    let name = input.text();
    let verdict = verdict(input);
    Some((name, quota(input)?, verdict)).filter(|(name, ..)| is_name(name))
}

fn shown<'a>(name: &'a str, quota: &'a Quota, verdict: Verdict) -> Shown<'a> {
    Shown { name, quota, verdict }
}

/// One that a script may reply.
fn verdict(input: &mut Input<'_>) -> Verdict {
    let reply = [(); 4].map(|()| input.number() as i64);
    let nothing = Verdict { allowed: true, blocked: 0, remaining: 0, reset: 0, retry: Retry::No };
    let Some(verdict) = Verdict::from_reply(reply) else { return nothing };
    let [allowed, remaining, reset, retry] = reply;
    assert_eq!((i64::from(verdict.allowed), verdict.reset as i64), (allowed, reset));
    assert_eq!(verdict.remaining as i64, remaining.max(0));
    let blocked = u32::try_from(remaining.min(0).unsigned_abs());
    assert_eq!(verdict.blocked, blocked.unwrap_or(u32::MAX));
    let after = (allowed == 0 && retry > 0).then_some(retry as u64);
    assert_eq!((verdict.retry.after(), verdict.retry == Retry::Never), (after, retry == -1));
    verdict
}

fn decision<'a>(input: &mut Input<'_>, shown: Option<Shown<'a>>) -> Decision<'a> {
    let statuses = Status::COUNTED;
    let most = input.number();
    let added = jitter(most, input.number() as u32);
    assert!(added <= most);
    Decision {
        status: statuses[input.below(statuses.len())],
        source: Source::Redis,
        shown,
        wait: input.number(),
        delay: input.number(),
        jitter: added,
        is_invalid: input.flag(),
    }
}

fn check_fields(input: &mut Input<'_>, limits: &[Shown<'_>], decision: &Decision<'_>) {
    let x_ratelimit = [None, Some(Reset::Seconds), Some(Reset::Epoch)][input.below(3)];
    let forms = Forms { x_ratelimit, ratelimit: input.flag(), ietf: input.flag() };
    let retry_after = decision.retry_after();
    let mut values = Values::default();
    // The second time something is left of the first one.
    for _ in 0..2 {
        let (shown, all) = (limits.first().copied(), limits.iter().copied());
        let (now, is_rejected) = (input.number(), decision.is_rejected());
        let fields = Fields { forms, shown, all, now, is_rejected, retry_after };
        let check = |name: &Name, value: FieldValue<'_>| {
            let value = std::str::from_utf8(value.text())?;
            assert!(fields.has(name.text.to_ascii_uppercase().as_bytes()));
            match name.lower {
                "ratelimit-policy" => check_list(value, limits, ['q', 'w'], None),
                "ratelimit" => check_list(value, limits, ['r', 't'], retry_after),
                _ => assert_eq!(value.parse::<u64>().expect(value).to_string(), value),
            }
            Ok::<_, std::str::Utf8Error>(())
        };
        fields.write(&mut values, check).expect("texts");
        assert_eq!(is_rejected, fields.has(b"retry-after"));
        assert!(is_rejected || retry_after.is_none());
    }
}

/// A list of strings (RFC 9651, section 3.1), each with two parameters that are integers, for each limit. The second
/// one of `RateLimit` is not later than `Retry-After`.
fn check_list(value: &str, limits: &[Shown<'_>], keys: [char; 2], retry_after: Option<u64>) {
    let items: Vec<_> = value.split(", ").collect();
    assert_eq!(items.len(), limits.len(), "{value}");
    for (item, limit) in items.iter().zip(limits) {
        let rest = item.strip_prefix(&format!("\"{}\";{}=", limit.name, keys[0])).expect(value);
        let (first, second) = rest.split_once(&format!(";{}=", keys[1])).expect(value);
        for number in [first, second] {
            assert!((1..=15).contains(&number.len()), "{value}");
            assert_eq!(number.parse::<u64>().expect(value).to_string(), number);
        }
        let later = retry_after.is_some_and(|most| second.parse::<u64>().unwrap() > most);
        assert!(!later, "{value} with Retry-After: {retry_after:?}");
    }
}

fn check_body(input: &mut Input<'_>, limits: &[Shown<'_>], decision: &Decision<'_>) {
    let status = 400 + input.below(200) as u16;
    let names = || limits.iter().map(|limit| limit.name);
    assert_eq!(rejection(BodyForm::Html, status, decision, names()), None);
    let json = |form| {
        let (_, text) = rejection(form, status, decision, names()).expect("a body");
        serde_json::from_str::<Value>(&text).expect(&text)
    };
    let body = json(BodyForm::Json);
    let name = decision.shown.map(|shown| shown.name);
    assert_eq!(body["limit"].as_str(), name);
    assert_eq!(body["retry_after"].as_u64(), decision.retry_after());
    let problem = json(BodyForm::Problem);
    assert_eq!(problem["status"], status);
    if let Some(violated) = problem["violated-policies"].as_array() {
        assert!(violated.iter().map(|name| name.as_str().unwrap()).eq(names()));
    }
}

/// Printable ASCII, without quotes and with no backslash that begins no escape, and bounded.
fn check_log(input: &mut Input<'_>) {
    let bytes = input.bytes();
    let shown = Escaped(bytes).to_string();
    assert!(shown.len() <= 4 * 128 + 3);
    assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"'), "{shown}");
    for escape in shown.split('\\').skip(1) {
        let hex = escape.strip_prefix('x').and_then(|rest| rest.get(..2)).expect(&shown);
        assert!(u8::from_str_radix(hex, 16).is_ok(), "{shown}");
    }
    let number = input.number();
    assert_eq!(Grouped(number).to_string().replace(',', ""), number.to_string());
}

/// The names of servers come from URLs and from servers.
fn check_metrics(input: &mut Input<'_>) {
    let mut numbers = || input.number();
    let limit = LimitMetrics {
        name: "default".to_owned(),
        requests: std::array::from_fn(|_| numbers()),
        lease_units: std::array::from_fn(|_| numbers()),
        lease_units_granted: numbers(),
        ..LimitMetrics::default()
    };
    let waits = Histogram { buckets: std::array::from_fn(|_| numbers()), sum: numbers() };
    let node =
        NodeMetrics { name: input.text(), decided: input.number(), ..NodeMetrics::default() };
    let mut doubled = node.clone();
    doubled.add(&node);
    let (name, nodes) = (node.name.clone(), vec![node]);
    let snapshot = Snapshot { limits: vec![limit], nodes, waits, ..Snapshot::default() };
    let text = snapshot.json();
    let page: Value = serde_json::from_str(&text).expect(&text);
    assert!(page["nodes"].as_object().unwrap().contains_key(&name), "{text}");
    for line in snapshot.prometheus().lines().filter(|line| !line.starts_with('#')) {
        let (sample, number) = line.rsplit_once(' ').expect(line);
        assert!(
            sample.starts_with("nginx_rate_limit_redis_") && number.parse::<f64>().is_ok(),
            "{line}"
        );
    }
    PageForm::accepted(&PageForm::ALL, &input.text());
}

/// A key is the address itself, or the network that it is in.
fn check_client(input: &mut Input<'_>) {
    let address =
        Ipv6Addr::from_bits(u128::from(input.number()) << 64 | u128::from(input.number()));
    let prefixes = Prefixes { ipv6: input.byte().into(), ipv4: input.byte().into() };
    let bytes = prefixes.key(address.into());
    let key = str::from_utf8(&bytes).unwrap();
    assert!(key.bytes().all(|byte| byte.is_ascii_hexdigit() || b".:/".contains(&byte)), "{key}");
    if let Some((network, prefix)) = key.split_once('/') {
        let prefix = prefix.parse().unwrap();
        assert_eq!(Prefixes { ipv4: prefix, ipv6: prefix }.key(network.parse().unwrap()), bytes);
    }
}
