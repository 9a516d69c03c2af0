//! Scripts that are made for lists of algorithms. The algorithms stand in the script in their order, so
//! that Redis neither looks them up nor builds tables: several limits take much less of it than with
//! the script for any limits.

use super::source::fill;
use super::{By, Script, Variant, line};
use crate::charge::Charge;

/// How long a list may be: its script has the source of each algorithm in it.
const MAX_LEN: usize = 8;

/// The bytes of the arguments of a limit.
const WIDTH: usize = 4 * size_of::<u64>();

/// The script of a list of algorithms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// The names of the Lua functions of the algorithms.
    functions: Vec<[&'static str; 2]>,
    script: Script,
}

impl List {
    /// The script of these algorithms. A single one has another, and what stores itself has none.
    pub(super) fn new(variants: &[impl Copy + Into<Variant>]) -> Option<Self> {
        let variants: Vec<Variant> = variants.iter().map(|variant| (*variant).into()).collect();
        let has_script = (2..=MAX_LEN).contains(&variants.len())
            && !variants
                .iter()
                .any(|variant| variant.algorithm().stores_itself() || variant.has_override());
        has_script.then(|| Self {
            functions: variants.iter().map(|variant| variant.function()).collect(),
            script: Script::new(source(&variants)),
        })
    }

    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    /// Whether it can charge these limits: their algorithms are those of the list, none needs more
    /// than the plain arguments, and no two have the same key.
    pub(super) fn takes<'a>(&self, charges: impl Iterator<Item = Charge<'a>> + Clone) -> bool {
        let functions = charges.clone().map(|charge| Variant::from(charge.quota).function());
        functions.eq(self.functions.iter().copied())
            && charges.clone().all(|charge| charge.is_plain())
            && are_distinct(charges)
    }

    /// Appends the command that charges these limits to `out`.
    pub(super) fn encode<'a>(
        &self,
        out: &mut Vec<u8>,
        by: By,
        charges: impl ExactSizeIterator<Item = Charge<'a>> + Clone,
    ) {
        let keys = charges.len();
        self.script.head(out, by, keys, 1);
        charges.clone().for_each(|charge| charge.push_key(out));
        line(out, b'$', keys.saturating_mul(WIDTH));
        for charge in charges {
            let (period, count) = charge.quota.terms();
            for value in [charge.quota.limit(), period, count, charge.cost] {
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The Lua source for these algorithms: what is between `$each` and `$end` is repeated for each limit,
/// and `$i` is its number.
fn source(variants: &[Variant]) -> String {
    let mut parts = include_str!("list.lua").split("$each\n");
    let mut source = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (each, after) = part.split_once("$end\n").unwrap_or((part, ""));
        for (index, variant) in (1_usize..).zip(variants) {
            // A second pass begins with all that was stored.
            let each = match variant.is_settled() {
                true => {
                    each.replace("record_ends$i = call", "record_ends$i, before$i = call").replace(
                        "$decide\n",
                        "before$i = before$i or stored\nstored = before$i\n$decide\n",
                    )
                }
                false => each.to_owned(),
            };
            source += &fill(&each, *variant).replace("$i", &index.to_string());
        }
        source += after;
    }
    source
}

fn are_distinct<'a>(mut charges: impl Iterator<Item = Charge<'a>> + Clone) -> bool {
    std::iter::from_fn(|| charges.next().map(|charge| (charge, charges.clone())))
        .all(|(charge, mut others)| !others.any(|other| other.redis_key() == charge.redis_key()))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::{MAX_LISTS, Scripts};
    use super::*;
    use crate::charge::{Effect, Template};
    use crate::key::Head;
    use crate::lease::Lease;
    use crate::limit::{Algorithm, Quota};

    const LIST: [Algorithm; 2] = [Algorithm::TokenBucket, Algorithm::LeakyBucket];

    fn quota(algorithm: Algorithm) -> Quota {
        Quota::new(algorithm, "3r/s".parse().unwrap(), 5).unwrap()
    }

    fn template(prefix: &str, name: &str) -> Rc<Template> {
        Rc::new(Template::new(Head::new(prefix, name).unwrap(), None))
    }

    /// The name of the script that charges the limits.
    fn script(scripts: &Scripts, charges: &[Charge<'_>]) -> String {
        let mut out = Vec::new();
        scripts.encode_charges(&mut out, By::Sha, charges.iter().copied());
        String::from_utf8_lossy(&out).lines().nth(4).unwrap().to_owned()
    }

    #[test]
    fn a_command_has_keys_and_numbers() {
        let (template, mut out) = (template("rl:", "a"), Vec::new());
        let list = List::new(&LIST).unwrap();
        let [first, second] = LIST.map(quota);
        let charges =
            [Charge::new(&template, b"k", &first, 7), Charge::new(&template, b"kk", &second, 7)];
        list.encode(&mut out, By::Sha, charges.into_iter());
        let numbers = [5_u64, 1_000_000, 3, 7].map(u64::to_le_bytes).concat();
        let sha = list.script().sha();
        let mut expected =
            format!("*6\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n$1\r\n2\r\n").into_bytes();
        expected.extend_from_slice(b"$6\r\nrl:a:k\r\n$7\r\nrl:a:kk\r\n$64\r\n");
        expected.extend([&numbers[..], &numbers, b"\r\n"].concat());
        assert_eq!(out, expected);
    }

    #[test]
    fn plain_limits_of_the_list_with_different_keys_have_its_script() {
        let scripts = Scripts::new().with_lists([&LIST[..]]);
        let (shorter, longer) = (template("rl:", "a"), template("rl:a:", "k"));
        let ([first, second], third) = (LIST.map(quota), quota(Algorithm::Gcra));
        let bucket = Charge::new(&shorter, b"k:x", &first, 7);
        let leaky = Charge::new(&shorter, b"other", &second, 7);
        let list = scripts.lists[0].script().sha();
        assert_eq!(script(&scripts, &[bucket, leaky]), list);
        let gcra = Charge { quota: &third, ..leaky };
        assert_eq!(script(&scripts, &[bucket, gcra]), list);
        let lease = Lease { span: 1_000, want: 1, ..Lease::default() };
        let blocking = first.with_block(1);
        for others in [
            vec![leaky, bucket],
            vec![bucket, leaky, leaky],
            vec![bucket, Charge { key: bucket.key, ..leaky }],
            vec![bucket, Charge { template: &longer, key: b"x", ..leaky }],
            vec![bucket, Charge { effect: Effect::DryRun, ..leaky }],
            vec![bucket, Charge { lease: Some(&lease), ..leaky }],
            vec![Charge { quota: &blocking, ..bucket }, leaky],
        ] {
            assert_eq!(script(&scripts, &others), scripts.several().sha(), "{others:?}");
        }
    }

    #[test]
    fn a_script_is_whole() {
        let script = Script::new(source(&[Variant::from(Algorithm::FixedWindow); 8]));
        let source = script.source();
        assert!(source.contains("stored8") && !source.contains("stored9"));
        assert!(!source.contains('$'), "{source}");
    }

    #[test]
    fn not_every_list_has_a_script() {
        assert_eq!(List::new(&LIST[..1]), None);
        assert_eq!(List::new(&[Algorithm::Gcra, Algorithm::SlidingLog]), None);
        assert_eq!(List::new(&[Algorithm::Gcra; MAX_LEN + 1]), None);
        assert!(List::new(&[Algorithm::Gcra; MAX_LEN]).is_some());
    }

    #[test]
    fn lists_are_bounded_and_each_is_made_once() {
        let plain = Scripts::new().loaded().count();
        let same = [Algorithm::TokenBucket, Algorithm::Gcra];
        let scripts = Scripts::new().with_lists([&LIST[..], &same, &LIST]);
        assert_eq!(scripts.loaded().count(), plain + 1);
        let pairs = Algorithm::ALL.map(|one| Algorithm::ALL.map(|other| [one, other]));
        let scripts = Scripts::new().with_lists(pairs.iter().flatten().map(|pair| &pair[..]));
        assert_eq!(scripts.loaded().count(), plain + MAX_LISTS);
    }
}
