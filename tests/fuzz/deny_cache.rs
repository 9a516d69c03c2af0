//! The deny cache in memory of any words: nobody is rejected but by a denial of its own quota, for its time, and what
//! was denied last is found. Words that happen to be a denial of a client are one.

use rate_limit_core::decision::Retry;
use rate_limit_core::deny_cache::Denial;
use rate_limit_core::deny_cache::DenyTable;
use rate_limit_core::entry::ClientBucket;

use crate::input::Input;
use crate::shared::Shared;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let memory = Shared::new::<ClientBucket>(input.below(4));
    let buckets = memory.buckets();
    let table = DenyTable::new(buckets);
    let mut is_sound = true;
    while !input.is_empty() {
        match input.below(4) {
            0 => {
                memory.corrupt(&mut input);
                is_sound = false;
            }
            1 => {
                let (client, quota) = (input.digest(), input.number());
                table.end_others(client, quota);
                assert_eq!(table.denied(client, quota ^ 1, 0), None);
            }
            2 => check_denied(&mut input, &table),
            _ => check_deny(&mut input, &table, !buckets.is_empty(), is_sound),
        }
    }
}

fn check_denied(input: &mut Input<'_>, table: &DenyTable<'_>) {
    let Some(verdict) = table.denied(input.digest(), input.number(), input.number()) else {
        return;
    };
    assert!(!verdict.allowed && verdict.remaining == 0);
    assert!(matches!(verdict.retry, Retry::After(1..)), "{verdict:?}");
}

fn check_deny(input: &mut Input<'_>, table: &DenyTable<'_>, has_room: bool, is_sound: bool) {
    let (client, now, quota) = (input.digest(), input.number(), input.number());
    let denial = Denial {
        quota,
        until: input.number(),
        passes: input.number(),
        whole: input.number(),
        blocked: input.number(),
    };
    table.end_others(client, quota);
    assert_eq!(table.deny(client, denial), has_room);
    let found = table.denied(client, quota, now);
    let is_denied = has_room && now < denial.until;
    assert!(found.is_some() || !is_denied);
    if is_sound {
        assert_eq!(found, denial.verdict(now).filter(|_| has_room));
    }
}
