//! The scripts that Redis runs, and the commands that run them.

use std::rc::Rc;
use std::sync::OnceLock;

use crate::charge::{Charge, Effect, Prepared, Template};
use crate::key::Head;
use crate::lease::{Lease, Report};
use crate::limit::{Algorithm, Quota};
use crate::manage::Change;
use crate::text::number;

mod list;
mod source;
mod variant;

pub use variant::Variant;

use list::List;
use source::{minify, with_numbers};

/// A script and the name under which Redis caches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    source: String,
    sha: String,
}

/// How a script is named in a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// By its SHA-1: `EVALSHA`.
    #[default]
    Sha,
    /// By its source: `EVAL`, which also puts it into the cache of a server that has lost it.
    Source,
}

/// How many arguments there are for each limit, beside its key; how many more where any of them is
/// not 0; and how many more in a command with leases.
const PLAIN: usize = 5;
const EXTENDED: usize = 3;
const LEASED: usize = 11;

/// How many lists of algorithms have scripts of their own: each connection loads them.
const MAX_LISTS: usize = 16;

/// The arguments of a script that charges one limit, and how many of them are sent.
type ScriptArguments = ([i64; PLAIN + EXTENDED], usize);

/// The scripts of this module, each made once, when it is first needed.
#[derive(Clone, Debug)]
pub struct Scripts {
    /// For one limit of each variant. Those that not every configuration needs are assembled when they are.
    single: Vec<(Variant, OnceLock<Script>)>,
    /// For several limits.
    several: OnceLock<Script>,
    /// For several limits any of which is settled.
    several_settled: OnceLock<Script>,
    /// For several limits any of which has `override`.
    several_override: OnceLock<Script>,
    /// For a change of a client of one limit of each variant.
    manage: Vec<(Variant, OnceLock<Script>)>,
    lists: Vec<List>,
    /// The variants whose scripts are loaded, and whether the one for several limits is.
    loaded: (Vec<Variant>, bool),
}

impl Scripts {
    /// The scripts, none of which is assembled yet.
    pub fn new() -> Self {
        let loaded = (Algorithm::ALL.map(Variant::from).into(), true);
        let each = || Variant::all().map(|variant| (variant, OnceLock::new())).collect();
        let (several, several_settled, several_override) = Default::default();
        Self {
            single: each(),
            several,
            several_settled,
            several_override,
            manage: each(),
            lists: Vec::new(),
            loaded,
        }
    }

    /// These scripts, of which connections load only those for one limit of these algorithms and, if
    /// `several`, the one for several limits: a server has to read and hash them for each connection.
    /// A command with one that the server does not have is sent again, with the source. So is one about several
    /// limits of which any is settled, that is in no list: its script is too long to be loaded.
    pub fn loading(&self, variants: &[impl Copy + Into<Variant>], several: bool) -> Self {
        let variants = variants.iter().map(|variant| (*variant).into()).collect();
        Self { loaded: (variants, several), ..self.clone() }
    }

    /// These scripts, and scripts for limits of these lists of algorithms: for the first lists, and those
    /// that can have one.
    pub fn with_lists<'a, V: Copy + Into<Variant> + 'a>(
        &self,
        lists: impl IntoIterator<Item = &'a [V]>,
    ) -> Self {
        let mut scripts = self.clone();
        for list in lists.into_iter().filter_map(List::new) {
            if scripts.lists.len() < MAX_LISTS && !scripts.lists.contains(&list) {
                scripts.lists.push(list);
            }
        }
        scripts
    }

    /// The scripts that connections load into a server, each once: two algorithms may share one.
    pub fn loaded(&self) -> impl Iterator<Item = &Script> {
        let (variants, several) = &self.loaded;
        let used = self.single.iter().filter(|(variant, _)| variants.contains(variant));
        let mut scripts: Vec<_> = used.filter_map(|(variant, _)| self.single(*variant)).collect();
        scripts.dedup();
        let several = several.then_some(self.several());
        scripts.into_iter().chain(several).chain(self.lists.iter().map(List::script))
    }

    /// The script that checks one limit of this algorithm.
    pub fn single(&self, variant: impl Into<Variant>) -> Option<&Script> {
        let variant = variant.into();
        let (_, script) = self.single.iter().find(|(other, _)| *other == variant)?;
        Some(script.get_or_init(|| source::single(variant)))
    }

    /// The script that checks several limits, of any algorithms, none of which is settled.
    pub fn several(&self) -> &Script {
        let plain = || Variant::plain().filter(|variant| !variant.is_settled());
        self.several.get_or_init(|| source::several(plain()))
    }

    /// The script that checks several limits, of any algorithms, any of which may be settled.
    pub fn several_settled(&self) -> &Script {
        self.several_settled.get_or_init(|| source::several(Variant::plain()))
    }

    /// The script that checks several limits, of any algorithms, of any of which clients may have quotas of their own.
    pub fn several_override(&self) -> &Script {
        let variants = || Variant::plain().map(Variant::with_override);
        self.several_override.get_or_init(|| source::several(variants()))
    }

    /// The script that changes what a client has of one limit of this variant.
    pub fn manage(&self, variant: impl Into<Variant>) -> Option<&Script> {
        let variant = variant.into();
        let (_, script) = self.manage.iter().find(|(other, _)| *other == variant)?;
        Some(script.get_or_init(|| source::manage(variant)))
    }

    /// Appends the command for `charges` to `out`: all are charged, or none.
    ///
    /// [`answer::verdicts`](super::answer::verdicts) reads its reply.
    pub fn encode_charges<'a>(
        &self,
        out: &mut Vec<u8>,
        by: By,
        charges: impl ExactSizeIterator<Item = Charge<'a>> + Clone,
    ) {
        let mut first = charges.clone();
        match (first.next(), first.next()) {
            (Some(charge), None) => self.encode_repeated(out, by, charge, 1),
            _ => match self.lists.iter().find(|list| list.takes(charges.clone())) {
                Some(list) => list.encode(out, by, charges),
                None => self.encode_several(out, by, charges, 1),
            },
        }
    }

    /// Appends the command for so many equal requests to `out`: as many pass as fit. A limit that stores
    /// itself is checked once.
    ///
    /// [`answer::repeated`](super::answer::repeated) reads its reply.
    pub fn encode_repeated(&self, out: &mut Vec<u8>, by: By, charge: Charge<'_>, times: u32) {
        match charge.lease {
            Some(_) => self.encode_several(out, by, std::iter::once(charge), times),
            None => self.encode_one(out, by, &charge, charge.arguments(times, None)),
        }
    }

    /// Appends the command that corrects a charge, whose cost can have been regained since a moment, by Redis's clock
    /// (see [`Algorithm::regained_from`]): charges it whatever is left, or gives it back if it is less than nothing.
    ///
    /// Its reply is ignored.
    pub fn encode_correction(
        &self,
        out: &mut Vec<u8>,
        by: By,
        charge: Charge<'_>,
        since: u64,
        is_less: bool,
    ) {
        self.encode_one(out, by, &charge, charge.arguments(1, Some((since, is_less))));
    }

    /// Appends the command that changes what a client has of the limit of `charge`, or looks at it.
    ///
    /// [`answer::managed`](super::answer::managed) reads its reply.
    pub fn encode_change(&self, out: &mut Vec<u8>, by: By, charge: &Charge<'_>, change: &Change) {
        let Some(script) = self.manage(charge.quota) else { return };
        let (period, count) = charge.quota.terms();
        let arguments = change.arguments(charge.quota);
        script.head(out, by, 1, arguments.len().saturating_add(4));
        charge.push_key(out);
        bulk(out, [change.name()]);
        numbers(out, [charge.quota.limit(), period, count].into_iter().chain(arguments));
    }

    fn encode_several<'a>(
        &self,
        out: &mut Vec<u8>,
        by: By,
        charges: impl ExactSizeIterator<Item = Charge<'a>> + Clone,
        times: u32,
    ) {
        let keys = charges.len();
        let [mut is_leased, mut is_extended, mut has_override, mut is_settled] = [false; 4];
        for charge in charges.clone() {
            is_leased |= charge.lease.is_some();
            is_extended |= charge.lease.is_some() || charge.extended(0) != [0; EXTENDED];
            has_override |= charge.quota.has_override();
            is_settled |= charge.quota.is_settled();
        }
        let width = match (is_extended, is_leased) {
            (_, true) => PLAIN + EXTENDED + LEASED,
            (true, false) => PLAIN + EXTENDED,
            (false, false) => PLAIN,
        };
        let script = match (has_override, is_settled) {
            (true, _) => self.several_override(),
            (false, true) => self.several_settled(),
            (false, false) => self.several(),
        };
        script.head(out, by, keys, keys.saturating_mul(width));
        for charge in charges.clone() {
            charge.push_key(out);
        }
        for charge in charges {
            let (period, count) = charge.quota.terms();
            bulk(out, Variant::from(charge.quota).called());
            numbers(out, [charge.cost, charge.quota.limit(), period, count]);
            if is_extended {
                numbers(out, charge.extended(0));
            }
            if is_leased {
                numbers(out, charge.leased(times));
            }
        }
    }

    fn encode_one(
        &self,
        out: &mut Vec<u8>,
        by: By,
        charge: &Charge<'_>,
        (arguments, kept): ScriptArguments,
    ) {
        let Some(script) = self.single(charge.quota) else { return };
        script.head(out, by, 1, kept);
        charge.push_key(out);
        numbers(out, arguments.into_iter().take(kept));
    }
}

impl Default for Scripts {
    fn default() -> Self {
        Self::new()
    }
}

impl Script {
    /// A script of this Lua source, without its comments and indentation: each server is sent it, and
    /// hashes it. `$max_debt` and `$max_spent` stand for how many limits a client may owe, and have spent in all.
    pub fn new(source: String) -> Self {
        let source = minify(&with_numbers(&source));
        let sha = sha1_smol::Sha1::from(&source).digest().to_string();
        Self { source, sha }
    }

    /// The Lua source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The SHA-1 of the source, in hexadecimal.
    pub fn sha(&self) -> &str {
        &self.sha
    }

    fn head(&self, out: &mut Vec<u8>, by: By, keys: usize, arguments: usize) {
        let length = keys.saturating_add(arguments).saturating_add(3);
        line(out, b'*', length);
        let (command, script) = match by {
            By::Sha => ("EVALSHA", &self.sha),
            By::Source => ("EVAL", &self.source),
        };
        bulk(out, [command]);
        bulk(out, [script]);
        numbers(out, [keys]);
    }
}

/// A charge as arguments of scripts.
impl Charge<'_> {
    fn push_key(&self, out: &mut Vec<u8>) {
        bulk(out, [self.template.head(), self.key]);
    }

    /// Whether it needs none of the arguments that few commands have.
    fn is_plain(&self) -> bool {
        self.lease.is_none() && self.extended(0) == [0; EXTENDED] && !self.quota.has_override()
    }

    /// The arguments of a script that charges one limit, and how many are sent: at least the first two.
    /// Arguments at the end that are 1, or 0 in case of the extended ones, are left out. Equal requests of
    /// cost 0 are sent as one. A correction has the moment since when the charge can have been regained, and whether it
    /// was too much: then the cost is below zero.
    fn arguments(&self, times: u32, correction: Option<(u64, bool)>) -> ScriptArguments {
        let (since, is_less) = correction.unwrap_or_default();
        let (period, count) = self.quota.terms();
        let times = if self.cost == 0 { 1 } else { u64::from(times) };
        let plain = [self.quota.limit(), period, count, times, self.cost].map(signed);
        let [block, since, dry_run] = self.extended(since).map(signed);
        let [limit, period, count, times, cost] = plain;
        let cost = if is_less { -cost } else { cost };
        let arguments = [limit, period, count, times, cost, block, since, dry_run];
        let default = |index| i64::from(index < PLAIN);
        let last =
            (2..arguments.len()).rfind(|index| arguments.get(*index) != Some(&default(*index)));
        (arguments, last.map_or(2, |last| last.saturating_add(1)))
    }

    /// The arguments about leases.
    fn leased(&self, times: u32) -> [u64; LEASED] {
        let lease = self.lease.copied().unwrap_or_default();
        let Lease { want, keep, report, .. } = lease;
        let hold = match self.quota.algorithm().leases_end_with_windows(self.quota) {
            true => 0,
            false => lease.hold(),
        };
        let Report { of, unused, ends, plain: [first, second, third], charged } = report;
        let times = u64::from(times);
        [times, hold, want, keep, of, unused, ends, first, second, third, charged]
    }

    /// The arguments that few commands have. `since` is not 0 where a charge is corrected.
    fn extended(&self, since: u64) -> [u64; EXTENDED] {
        [self.quota.block(), since, u64::from(self.effect == Effect::DryRun)]
    }
}

/// A string of these parts.
fn bulk<const N: usize>(out: &mut Vec<u8>, parts: [impl AsRef<[u8]>; N]) {
    line(out, b'$', parts.iter().map(|part| part.as_ref().len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part.as_ref()));
    out.extend_from_slice(b"\r\n");
}

fn numbers(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = impl itoa::Integer>) {
    let mut buffer = itoa::Buffer::new();
    numbers.into_iter().for_each(|number| bulk(out, [buffer.format(number)]));
}

/// No quota and no cost is too large for it: Redis counts up to 2^53.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The line before a bulk string or an array, with its length.
fn line(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    number::push(out, length as u64);
    out.extend_from_slice(b"\r\n");
}

impl Scripts {
    /// The part that the commands of the limit whose Redis keys start with `head` have in common. `known` are its quota and its
    /// cost, if they are the same for all requests: then its command is prepared.
    pub fn template(&self, head: Head, known: Option<(&Quota, u64)>) -> Template {
        let prepared = known.and_then(|(quota, cost)| self.prepare(&head, quota, cost));
        Template::new(head, prepared)
    }

    fn prepare(&self, head: &Head, quota: &Quota, cost: u64) -> Option<Prepared> {
        let unprepared = Rc::new(Template::new(head.clone(), None));
        let charge = Charge::new(&unprepared, b"", quota, cost);
        let (arguments, kept) = charge.arguments(1, None);
        let (mut before_key, mut after_key) = (Vec::new(), Vec::new());
        self.single(quota)?.head(&mut before_key, By::Sha, 1, kept);
        numbers(&mut after_key, arguments.into_iter().take(kept));
        Some(Prepared::new(&before_key, head, &after_key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::tests::template;
    use crate::limit::Algorithm;
    use crate::limit::Quota;
    use std::sync::LazyLock;

    static QUOTA: LazyLock<Quota> = LazyLock::new(|| {
        Quota::new(Algorithm::TokenBucket, "100r/m".parse().unwrap(), 100).unwrap()
    });

    fn charge(key: &'static [u8], cost: u64) -> Charge<'static> {
        Charge::new(template(), key, &QUOTA, cost)
    }

    fn words(by: By, charges: &[Charge<'_>]) -> Vec<String> {
        let mut out = Vec::new();
        Scripts::new().encode_charges(&mut out, by, charges.iter().copied());
        parse(&out)
    }

    fn parse(command: &[u8]) -> Vec<String> {
        match ::redis::parse_redis_value(command).unwrap() {
            ::redis::Value::Array(words) => {
                words.iter().map(|word| ::redis::from_redis_value_ref(word).unwrap()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_charge_is_encoded() {
        let words = words(By::Sha, &[charge(b"\r\nx", 10)]);
        let scripts = Scripts::new();
        let sha = scripts.single(Algorithm::TokenBucket).unwrap().sha().to_owned();
        assert_eq!(words, ["EVALSHA", &sha, "1", "rl:a:\r\nx", "100", "600000", "1", "1", "10"]);
    }

    #[test]
    fn arguments_at_the_end_that_are_1_are_left_out() {
        let arguments = |rate: &str, limit, cost, times| {
            let rate = rate.parse().unwrap();
            let quota = Quota::new(Algorithm::TokenBucket, rate, limit).unwrap();
            let mut out = Vec::new();
            let charge = Charge::new(template(), b"k", &quota, cost);
            Scripts::new().encode_repeated(&mut out, By::Sha, charge, times);
            parse(&out)[4..].join(" ")
        };
        assert_eq!(arguments("100r/m", 100, 1, 1), "100 600000");
        assert_eq!(arguments("3r/s", 5, 1, 1), "5 1000000 3");
        assert_eq!(arguments("3r/s", 5, 1, 7), "5 1000000 3 7");
        assert_eq!(arguments("1r/s", 5, 2, 7), "5 1000000 1 7 2");
        assert_eq!(arguments("1r/s", 5, 2, 1), "5 1000000 1 1 2");
        assert_eq!(arguments("1r/s", 5, 0, 1), "5 1000000 1 1 0");
        assert_eq!(arguments("1r/s", 5, 0, 7), "5 1000000 1 1 0");
        // Two are always there.
        assert_eq!(arguments("1000000r/s", 1, 1, 1), "1 1");
    }

    #[test]
    fn several_charges_are_encoded() {
        let words = words(By::Sha, &[charge(b"k1", 0), charge(b"k2", 9)]);
        let expected = "2 rl:a:k1 rl:a:k2 token_bucket 0 100 600000 1 token_bucket 9 100 600000 1";
        assert_eq!(words[2..].join(" "), expected);
    }

    #[test]
    fn extended_arguments_are_sent_where_one_is_not_0() {
        let plain = charge(b"k1", 1);
        let quota = plain.quota.with_block(9);
        let blocked = Charge { quota: &quota, ..plain };
        assert_eq!(words(By::Sha, &[blocked])[4..].join(" "), "100 600000 1 1 1 9");
        let dry = Charge { effect: Effect::DryRun, ..charge(b"k2", 2) };
        let expected = "rl:a:k1 rl:a:k2 token_bucket 1 100 600000 1 9 0 0 \
            token_bucket 2 100 600000 1 0 0 1";
        assert_eq!(words(By::Sha, &[blocked, dry])[3..].join(" "), expected);
    }

    #[test]
    fn a_settlement_has_the_time_of_the_charge() {
        let settled = |is_less| {
            let mut out = Vec::new();
            Scripts::new().encode_correction(&mut out, By::Sha, charge(b"k", 3), 77, is_less);
            parse(&out)[3..].join(" ")
        };
        assert_eq!(settled(false), "rl:a:k 100 600000 1 1 3 0 77");
        assert_eq!(settled(true), "rl:a:k 100 600000 1 1 -3 0 77");
    }

    #[test]
    fn none_is_loaded_twice() {
        let scripts = Scripts::new();
        let names: std::collections::BTreeSet<_> = scripts.loaded().map(Script::sha).collect();
        assert_eq!(names.len(), scripts.loaded().count());
        let shas =
            [Algorithm::Gcra, Algorithm::LeakyBucket].map(|a| scripts.single(a).unwrap().sha());
        assert_eq!(shas[0], shas[1]);
    }

    #[test]
    fn the_source_goes_with_eval() {
        let words = words(By::Source, &[charge(b"k", 1)]);
        assert_eq!(words[0], "EVAL");
        assert_eq!(words[1], Scripts::new().single(Algorithm::TokenBucket).unwrap().source());
        assert!(words[1].contains("'PXAT'") && !words[1].contains("-- "));
    }

    #[test]
    fn as_it_is_encoded_each_time() {
        let (scripts, head) = (Scripts::new(), Head::new("rl:", "a").unwrap());
        for (algorithm, rate, cost) in [
            (Algorithm::TokenBucket, "100r/m", 1),
            (Algorithm::Gcra, "3r/s", 7),
            (Algorithm::SlidingLog, "1r/d", 0),
        ] {
            let quota = Quota::new(algorithm, rate.parse().unwrap(), 100).unwrap();
            let template = Rc::new(scripts.template(head.clone(), Some((&quota, cost))));
            for key in [&b"k"[..], b"", b"a\r\nb", &[b'x'; 300]] {
                let (mut expected, mut found) = (b"before".to_vec(), b"before".to_vec());
                let charge = Charge::new(&template, key, &quota, cost);
                scripts.encode_charges(&mut expected, By::Sha, std::iter::once(charge));
                template.prepared().unwrap().encode(&mut found, key);
                assert_eq!(found, expected);
            }
        }
    }
}
