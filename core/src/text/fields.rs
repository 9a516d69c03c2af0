//! Header fields of an answer.

use super::number::{self, Digits};
use crate::decision::{Shown, seconds};
use crate::rate::SECOND;

/// The name of a header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name that is sent.
    pub text: &'static str,
    /// The name in lower case.
    pub lower: &'static str,
}

macro_rules! name {
    ($text:literal, $lower:literal) => {
        Name { text: $text, lower: $lower }
    };
}

static X_RATELIMIT: [Name; 3] = [
    name!("X-RateLimit-Limit", "x-ratelimit-limit"),
    name!("X-RateLimit-Remaining", "x-ratelimit-remaining"),
    name!("X-RateLimit-Reset", "x-ratelimit-reset"),
];

static RATELIMIT: [Name; 3] = [
    name!("RateLimit-Limit", "ratelimit-limit"),
    name!("RateLimit-Remaining", "ratelimit-remaining"),
    name!("RateLimit-Reset", "ratelimit-reset"),
];

static POLICY: Name = name!("RateLimit-Policy", "ratelimit-policy");
static SERVICE_LIMIT: Name = name!("RateLimit", "ratelimit");
static RETRY_AFTER: Name = name!("Retry-After", "retry-after");

/// Which forms of fields an answer carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// `X-RateLimit-*`, and the unit of `X-RateLimit-Reset`.
    pub x_ratelimit: Option<Reset>,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`.
    pub ratelimit: bool,
    /// `RateLimit-Policy` and `RateLimit`.
    pub ietf: bool,
}

/// How the time at which the quota is whole again is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// In seconds from now.
    Seconds,
    /// The reset as a Unix time.
    Epoch,
}

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The fields of an answer: the quota of the limit that is `shown` in the single-valued forms, of `all` limits in the list form,
/// and `Retry-After` (RFC 9110, section 10.2.3).
#[derive(Clone, Debug)]
pub struct Fields<'a, I> {
    /// Which forms there are.
    pub forms: Forms,
    /// The limit to show, if any has decided.
    pub shown: Option<Shown<'a>>,
    /// All limits that have decided.
    pub all: I,
    /// The Unix time in µs.
    pub now: u64,
    /// Whether the request is rejected: a `Retry-After` of an upstream, which has the error page, does not stay.
    pub is_rejected: bool,
    /// When the request may be repeated, in seconds, if it may.
    pub retry_after: Option<u64>,
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub enum FieldValue<'a> {
    /// A number.
    Number(&'a Digits),
    /// A list.
    List(&'a [u8]),
}

impl<'a> FieldValue<'a> {
    /// The value as it is sent.
    pub fn text(self) -> &'a [u8] {
        match self {
            Self::Number(digits) => digits.text(),
            Self::List(list) => list,
        }
    }
}

/// The values of the previous answer. Most answers have the same limit, and those of one second the same time. Used again,
/// they need no allocation.
#[derive(Clone, Debug)]
pub struct Values {
    x_ratelimit: [Digits; 3],
    ratelimit: [Digits; 3],
    retry_after: Digits,
    list: Vec<u8>,
}

impl Default for Values {
    fn default() -> Self {
        let digits = [Digits::ZERO; 3];
        let (retry_after, list) = (Digits::ZERO, Vec::new());
        Self { x_ratelimit: digits, ratelimit: digits, retry_after, list }
    }
}

impl<'a, I: Iterator<Item = Shown<'a>> + Clone> Fields<'a, I> {
    /// Whether a field of this name, in whichever case, would contradict them.
    pub fn has(&self, name: &[u8]) -> bool {
        let Forms { x_ratelimit, ratelimit, ietf } = self.forms;
        let is = |other: &Name| name.eq_ignore_ascii_case(other.lower.as_bytes());
        let of_limits = x_ratelimit.is_some() && X_RATELIMIT.iter().any(is)
            || ratelimit && RATELIMIT.iter().any(is)
            || ietf && [&POLICY, &SERVICE_LIMIT].into_iter().any(is);
        self.shown.is_some() && of_limits || self.is_rejected && is(&RETRY_AFTER)
    }

    /// Calls `each` with the names and values, until it fails.
    pub fn write<E>(
        &self,
        values: &mut Values,
        mut each: impl FnMut(&'static Name, FieldValue<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(shown) = &self.shown {
            if let Some(reset) = self.forms.x_ratelimit {
                let numbers = self.numbers(shown, reset);
                single(&X_RATELIMIT, &mut values.x_ratelimit, numbers, &mut each)?;
            }
            if self.forms.ratelimit {
                let numbers = self.numbers(shown, Reset::Seconds);
                single(&RATELIMIT, &mut values.ratelimit, numbers, &mut each)?;
            }
            if self.forms.ietf {
                let list = &mut values.list;
                self.list(list, |limit, out| policy(limit, self.now, out));
                each(&POLICY, FieldValue::List(list))?;
                self.list(list, |limit, out| service_limit(limit, self.now, self.retry_after, out));
                each(&SERVICE_LIMIT, FieldValue::List(list))?;
            }
        }
        match self.retry_after {
            Some(seconds) => each(&RETRY_AFTER, FieldValue::Number(values.retry_after.of(seconds))),
            None => Ok(()),
        }
    }

    /// The form that APIs have converged on: the limit, what remains of it, and when it is whole
    /// again.
    fn numbers(&self, shown: &Shown<'_>, reset: Reset) -> [u64; 3] {
        let reset = match reset {
            Reset::Seconds => seconds(shown.verdict.reset),
            Reset::Epoch => seconds(self.now.saturating_add(shown.verdict.reset)),
        };
        [shown.quota.limit(), shown.verdict.remaining, reset]
    }

    /// Replaces a list by the items of all limits, separated by commas.
    fn list(&self, list: &mut Vec<u8>, item: impl Fn(&Shown<'a>, &mut Vec<u8>)) {
        list.clear();
        for limit in self.all.clone() {
            if !list.is_empty() {
                list.extend_from_slice(b", ");
            }
            item(&limit, list);
        }
    }
}

/// Calls `each` with each number and its name.
fn single<E>(
    names: &'static [Name; 3],
    digits: &mut [Digits; 3],
    numbers: [u64; 3],
    each: &mut impl FnMut(&'static Name, FieldValue<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut all = names.iter().zip(digits).zip(numbers);
    all.try_for_each(|((name, digits), number)| each(name, FieldValue::Number(digits.of(number))))
}

/// Appends an item of a list: the limit's name and two numbers.
fn item(out: &mut Vec<u8>, name: &str, numbers: [(&str, u64); 2]) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.push(b'"');
    for (parameter, number) in numbers {
        out.extend_from_slice(parameter.as_bytes());
        number::push(out, number);
    }
}

/// An item of `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-11): the rate as a quota and
/// a window of whole seconds. A period that is not whole seconds is scaled, and the quota rounded
/// down; a month has the length of the present one.
fn policy(limit: &Shown<'_>, now: u64, out: &mut Vec<u8>) {
    let rate = limit.quota.rate();
    let period = rate.period_at(now);
    let window = seconds(period);
    let quota =
        u128::from(rate.count()) * u128::from(window) * u128::from(SECOND) / u128::from(period);
    let quota = u64::try_from(quota).unwrap_or(MAX_INTEGER).min(MAX_INTEGER);
    item(out, limit.name, [(";q=", quota), (";w=", window)]);
}

/// An item of `RateLimit` (same draft): what remains, and the time until there is more, or where quota
/// does not come back continuously, until it is whole.
///
/// A server must not invite more than it means to serve, so `t` is stretched until `r / t` is no
/// more than the rate; and where the answer has a `Retry-After`, which must not be earlier than
/// `t`, `t` ends there and `r` is cut instead.
fn service_limit(limit: &Shown<'_>, now: u64, retry_after: Option<u64>, out: &mut Vec<u8>) {
    let (rate, verdict) = (limit.quota.rate(), &limit.verdict);
    let (count, period) = (u128::from(rate.count()), u128::from(rate.period_at(now)));
    let more = match limit.quota.algorithm().is_continuous() {
        true if verdict.remaining == 0 => until_first(limit).clamp(1, verdict.reset.max(1)),
        true => rate.period().div_ceil(rate.count()).min(verdict.reset),
        false => verdict.reset,
    };
    let spend = (u128::from(verdict.remaining) * period).div_ceil(count);
    let wait = seconds(more.max(u64::try_from(spend).unwrap_or(u64::MAX)));
    let wait = match retry_after {
        Some(retry_after) if retry_after < wait => retry_after,
        Some(_) | None => wait,
    };
    let affordable = u128::from(wait) * u128::from(SECOND) * count / period;
    let affordable = u64::try_from(affordable).unwrap_or(u64::MAX);
    let remaining = verdict.remaining.min(affordable).min(MAX_INTEGER);
    item(out, limit.name, [(";r=", remaining), (";t=", wait.min(MAX_INTEGER))]);
}

/// µs until a unit comes back to a limit of which nothing remains, and to which quota comes back
/// continuously. A debt is regained first.
///
/// The others come after it, at the rate, until all are back: so it follows from the reset. That is too late if units that
/// machines hold are the last to come. A rejected request has a better value: it cannot pass before a unit is back and no
/// block is left. A limit with a block is blocked once it rejects, and so is a client that an operator blocks: this is its
/// time then. Of any other limit it is the latest one.
///
/// A request that passes has none. While others hold units, what is said to the one that takes the last unit may be too
/// late. One of cost 0 gets the time at which a block ends; of a long one the first hour is known.
fn until_first(limit: &Shown<'_>) -> u64 {
    let (quota, verdict) = (limit.quota, &limit.verdict);
    let latest = verdict.retry.after().unwrap_or(verdict.reset);
    if !verdict.allowed && (quota.block() > 0 || verdict.blocked > 0) {
        return latest;
    }
    let others = u128::from(quota.limit().saturating_sub(1));
    let span = others * u128::from(quota.rate().period()) / u128::from(quota.rate().count());
    let owed = verdict.reset.saturating_sub(u64::try_from(span).unwrap_or(u64::MAX));
    owed.min(latest).max(verdict.block())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Stored;
    use crate::decision::{Retry, Verdict};
    use crate::limit::{Algorithm, Quota};
    use crate::rate::Rate;
    use proptest::prelude::*;

    fn shown(
        algorithm: Algorithm,
        rate: &str,
        limit: u64,
        remaining: u64,
        reset: u64,
    ) -> Shown<'static> {
        let quota = Quota::new(algorithm, rate.parse().unwrap(), limit).unwrap();
        Shown {
            name: "per_ip",
            quota: Box::leak(Box::new(quota)),
            verdict: Verdict { allowed: true, blocked: 0, remaining, reset, retry: Retry::No },
        }
    }

    fn bucket(rate: &str, limit: u64, remaining: u64, reset: u64) -> Shown<'static> {
        shown(Algorithm::TokenBucket, rate, limit, remaining, reset)
    }

    fn lines(forms: Forms, limits: &[Shown<'static>], retry_after: Option<u64>) -> Vec<String> {
        let mut values = Values::default();
        let now = 1_700_000_000_500_000;
        let (all, shown) = (limits.iter().copied(), Some(limits[0]));
        let mut lines = Vec::new();
        // Whatever was there before.
        for retry_after in [Some(1), retry_after] {
            lines.clear();
            let is_rejected = retry_after.is_some();
            let fields = Fields { forms, shown, all: all.clone(), now, is_rejected, retry_after };
            let line = |name: &Name, value: FieldValue<'_>| {
                assert_eq!(name.text.to_ascii_lowercase(), name.lower);
                assert!(fields.has(name.text.as_bytes()) && fields.has(name.lower.as_bytes()));
                lines.push(format!("{}: {}", name.text, str::from_utf8(value.text()).unwrap()));
                Ok::<_, ()>(())
            };
            fields.write(&mut values, line).unwrap();
            assert!(!fields.has(b"") && !fields.has(b"X-RateLimit"));
        }
        lines
    }

    #[test]
    fn a_rejection_without_retry_after_keeps_none_of_an_upstream() {
        let (forms, all) = (IETF, std::iter::empty());
        let fields =
            Fields { forms, shown: None, all, now: 0, is_rejected: true, retry_after: None };
        assert!(fields.has(b"retry-after") && !fields.has(b"ratelimit"));
        let none = |_: &Name, _: FieldValue<'_>| Err(());
        assert_eq!(fields.write(&mut Values::default(), none), Ok(()));
    }

    const IETF: Forms = Forms { x_ratelimit: None, ratelimit: false, ietf: true };

    #[test]
    fn single_valued_forms() {
        let limits = [bucket("100r/m", 10, 9, 1_000_001)];
        let forms = Forms { x_ratelimit: Some(Reset::Seconds), ratelimit: true, ietf: false };
        assert_eq!(
            lines(forms, &limits, None),
            [
                "X-RateLimit-Limit: 10",
                "X-RateLimit-Remaining: 9",
                "X-RateLimit-Reset: 2",
                "RateLimit-Limit: 10",
                "RateLimit-Remaining: 9",
                "RateLimit-Reset: 2",
            ]
        );
        let forms = Forms { x_ratelimit: Some(Reset::Epoch), ..Forms::default() };
        assert_eq!(lines(forms, &limits, None)[2], "X-RateLimit-Reset: 1700000002");
        assert_eq!(lines(Forms::default(), &limits, None), [""; 0]);
        assert_eq!(lines(Forms::default(), &limits, Some(7)), ["Retry-After: 7"]);
    }

    /// With a debt or a block nothing remains until it is over. What other machines hold comes back later,
    /// while there is quota.
    #[test]
    fn there_is_more_when_a_debt_or_a_block_is_over() {
        let line = |remaining, reset| lines(IETF, &[bucket("1r/s", 10, remaining, reset)], None);
        let item = |r, t| format!("RateLimit: \"per_ip\";r={r};t={t}");
        assert_eq!(line(0, 10_000_000)[1], item(0, 1));
        assert_eq!(line(0, 40_000_000)[1], item(0, 31), "a debt of 30");
        assert_eq!(line(3, 40_000_000)[1], item(3, 3), "a hold");
        let slow = |reset| lines(IETF, &[bucket("1r/m", 2, 0, reset)], None);
        assert_eq!(slow(61_000_000)[1], item(0, 1), "most of a unit is back");
        assert_eq!(slow(0)[1], item(0, 1), "what ends meanwhile is not known");
        let mut blocked = bucket("1r/m", 20, 0, 600_000_000);
        blocked.verdict = blocked.verdict.blocked_for(600_000_000);
        assert_eq!(
            lines(IETF, &[blocked], None)[1],
            item(0, 600),
            "a request of cost 0 in a block"
        );
    }

    /// `r` and `t` of the only limit.
    fn r_and_t(quota: &Quota, verdict: Verdict) -> (u64, u64) {
        let mut item = Vec::new();
        service_limit(&Shown { name: "a", quota, verdict }, 0, None, &mut item);
        let item = String::from_utf8(item).unwrap();
        let mut numbers = item.split([';', '=']).filter_map(|part| part.parse().ok());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// `t` of the request that takes the last unit, of one that is rejected, and of one a minute later,
    /// with a block of so many minutes.
    fn until_more(algorithm: Algorithm, rate: &str, block: u64) -> [u64; 3] {
        let (rate, mut stored) = (rate.parse::<Rate>().unwrap(), Stored::default());
        let quota = Quota::new(algorithm, rate, rate.count()).unwrap();
        let quota = quota.with_block(block * 60 * SECOND);
        let requests = [(9, rate.count()), (9, 1), (10, 1)];
        requests.map(|(minute, cost)| {
            let now = minute * 60 * SECOND;
            let (r, t) = r_and_t(&quota, algorithm.decide(&mut stored, now, &quota, cost));
            assert_eq!(r, 0);
            t
        })
    }

    /// The quota may be whole before that or long after, and the first unit may come later.
    #[test]
    fn there_is_more_when_the_block_of_a_rejected_request_is_over() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
            assert_eq!(until_more(algorithm, "5r/m", 15), [12, 900, 840]);
            assert_eq!(until_more(algorithm, "1000r/d", 60), [87, 3600, 3540]);
            assert_eq!(until_more(algorithm, "100r/m", 10), [1, 600, 540]);
            assert_eq!(until_more(algorithm, "1r/h", 5), [3600, 3600, 3540]);
        }
    }

    #[test]
    fn there_is_more_when_a_rejected_request_could_pass() {
        let quota = Quota::new(Algorithm::TokenBucket, "1000r/m".parse().unwrap(), 1_000).unwrap();
        let retry = Retry::After(60_000);
        let held = Verdict { allowed: false, blocked: 0, remaining: 0, reset: 145 * SECOND, retry };
        assert_eq!(r_and_t(&quota, held), (0, 1));
        // One that costs more waits for longer.
        let costly = Verdict { reset: 60 * SECOND, retry: Retry::After(30 * SECOND), ..held };
        assert_eq!(r_and_t(&quota, costly), (0, 1));
        let by_operator = Verdict { blocked: 30_000_000, ..costly };
        assert_eq!(r_and_t(&quota, by_operator), (0, 30));
    }

    /// A quota of which many units come in a µs.
    #[test]
    fn there_is_more_when_the_debt_of_a_fast_rate_is_over() {
        let shown = bucket("125000000r/s", 1_250_000_000, 0, 40 * SECOND);
        assert_eq!(r_and_t(shown.quota, shown.verdict), (0, 31));
    }

    #[test]
    fn lists_have_all_limits() {
        let limits = [bucket("100r/m", 100, 40, 36_000_000), bucket("2r/s", 5, 0, 2_400_000)];
        assert_eq!(
            lines(IETF, &limits, None),
            [
                "RateLimit-Policy: \"per_ip\";q=100;w=60, \"per_ip\";q=2;w=1",
                "RateLimit: \"per_ip\";r=40;t=24, \"per_ip\";r=0;t=1",
            ]
        );
        // A window comes back all at once.
        let limits = [shown(Algorithm::FixedWindow, "100r/m", 100, 0, 36_000_000)];
        assert_eq!(lines(IETF, &limits, None)[1], "RateLimit: \"per_ip\";r=0;t=36");
        // `t` ends at Retry-After, and `r` is no more than the rate gives until then.
        let limits = [bucket("100r/m", 100, 90, 6_000_000)];
        assert_eq!(lines(IETF, &limits, Some(3))[1], "RateLimit: \"per_ip\";r=5;t=3");
    }

    /// It is November of 2023.
    #[test]
    fn a_month_is_the_present_one() {
        let limits = [shown(Algorithm::FixedWindow, "3000r/month", 3_000, 3_000, 0)];
        let expected = [
            "RateLimit-Policy: \"per_ip\";q=3000;w=2592000",
            "RateLimit: \"per_ip\";r=3000;t=2592000",
        ];
        assert_eq!(lines(IETF, &limits, None), expected);
    }

    #[test]
    fn windows_are_whole_seconds() {
        let policy = |rate| lines(IETF, &[bucket(rate, 1, 1, 0)], None)[0].clone();
        assert_eq!(policy("7r/250ms"), "RateLimit-Policy: \"per_ip\";q=28;w=1");
        assert_eq!(policy("5r/300ms"), "RateLimit-Policy: \"per_ip\";q=16;w=1");
        assert_eq!(policy("3r/1500ms"), "RateLimit-Policy: \"per_ip\";q=4;w=2");
        assert_eq!(policy("1000r/1d"), "RateLimit-Policy: \"per_ip\";q=1000;w=86400");
        assert_eq!(
            policy("9007199254740992r/1s"),
            "RateLimit-Policy: \"per_ip\";q=999999999999999;w=1"
        );
    }

    proptest! {
        /// However much is left, `r` in `t` is no more than the rate, and `t` not past Retry-After.
        #[test]
        fn promises_no_more_than_the_rate(
            count in 1..100_000u64,
            period in 1_000..10_000_000_000u64,
            limit in 1..10_000u64,
            left in 0..10_000u64,
            reset in 0..10_000_000_000u64,
            retry_after in prop::option::of(1..1_000u64),
            retry in prop_oneof![
                Just(Retry::No),
                Just(Retry::Never),
                (1..10_000_000_000u64).prop_map(Retry::After),
            ],
            block in 0..2u64,
        ) {
            let rate = Rate::new(count, period).unwrap();
            let quota = Quota::new(Algorithm::TokenBucket, rate, limit).unwrap().with_block(block);
            let (allowed, remaining) = (retry == Retry::No, left.min(limit));
            let verdict = Verdict { allowed, blocked: 0, remaining, reset, retry };
            let mut item = Vec::new();
            service_limit(&Shown { name: "a", quota: &quota, verdict }, 0, retry_after, &mut item);
            let item = String::from_utf8(item).unwrap();
            let mut numbers = item.split([';', '=']).filter_map(|part| part.parse::<u128>().ok());
            let (r, t) = (numbers.next().unwrap(), numbers.next().unwrap());
            prop_assert!(r * u128::from(period) <= t * 1_000_000 * u128::from(count), "{}", item);
            prop_assert!(retry_after.is_none_or(|seconds| t <= u128::from(seconds)), "{}", item);
        }
    }
}
