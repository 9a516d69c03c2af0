//! The answers of the admin interface: JSON, and the page for a browser.

use super::json::{Object, object};
use super::number::seconds;
use crate::admin::{AdminError, ManagedLimit, Management};
use crate::conf::limit::Definition;
use crate::manage::{Change, ClientState};
use crate::overrides::Override;
use crate::rate::SECOND;
use crate::top::TopKey;

/// The page for a browser. It gets JSON from its own address.
pub const HTML: &str = page!("admin");

/// How long the deny cache of a machine may reject a client after a change, in µs.
const CACHED: u64 = SECOND;

/// An answer that is an error.
pub fn error(error: &AdminError) -> String {
    written(|answer| answer.string("error", &error.to_string()))
}

/// The limits.
pub fn limits(limits: &[ManagedLimit<'_>]) -> String {
    written(|answer| answer.objects("limits", limits, |row, limit| add_limit(row, limit)))
}

/// The clients of a limit that were rejected most.
pub fn top(clients: &[TopKey]) -> String {
    written(|answer| {
        answer.objects("top", clients, |row, client| {
            row.string("key", &shown_key(&client.key));
            row.value("rejected", client.rejected);
            row.value("error", client.error);
        });
    })
}

/// The state of a client.
pub fn client(managed: &Management<'_>, state: &ClientState) -> String {
    let limit = managed.limit.definition;
    written(|answer| {
        answer.string("limit", limit.name);
        answer.string("key", &shown_key(&managed.key));
        answer.value("quota", state.quota.limit());
        answer.value("remaining", state.remaining);
        answer.value("reset", seconds(state.reset));
        answer.value("retry_after", seconds(state.retry_after));
        answer.value("blocked_for", seconds(state.blocked_for));
        answer.value("debt", state.debt);
        match state.leased(limit.lease_span() > 0) {
            None => answer.value("leased", "null"),
            Some(units) => answer.value("leased", units),
        }
        match &state.own {
            None => answer.value("override", "null"),
            Some(own) => answer.object("override", |row| add_override(row, limit, own)),
        }
        answer.value("everywhere_in", seconds(everywhere_in(limit, state)));
    })
}

/// When a change that is made now holds on all machines, in µs from now: until then rejections that are cached and units
/// that were taken ahead may still count.
fn everywhere_in(limit: &Definition<'_>, state: &ClientState) -> u64 {
    let cached = if limit.is_cached.get() { CACHED } else { 0 };
    cached.max(state.leases_end_in(limit.lease_span()))
}

fn add_limit(row: &mut Object<'_>, limit: &ManagedLimit<'_>) {
    let Definition { name, algorithm, rate, burst, block, has_override, .. } = *limit.definition;
    row.string("name", name);
    row.string("store", limit.store);
    row.string("algorithm", algorithm.name());
    row.string("rate", rate);
    if let Some(name) = limit.burst_name() {
        match (limit.known_burst(), burst) {
            (Some(number), _) => row.value(name, number),
            (None, Some(written)) => row.string(name, written),
            // The default is the n of the rate.
            (None, None) => row.value(name, "null"),
        }
    }
    row.value("block", seconds(block));
    row.value("override", has_override);
}

fn add_override(row: &mut Object<'_>, limit: &Definition<'_>, own: &Override) {
    row.string("rate", &own.rate.to_string());
    if let Some((name, number)) = burst(limit, own.limit) {
        row.value(name, number);
    }
    match own.ends {
        None => row.value("ends", "null"),
        Some(ends) => row.value("ends", seconds(ends.get())),
    }
}

/// The capacity or burst that stands for the most that can be spent at once.
fn burst(definition: &Definition<'_>, limit: u64) -> Option<(&'static str, u64)> {
    let parameter = definition.algorithm.burst_parameter();
    parameter.name().zip(parameter.value(limit))
}

/// The change of a client's state, for the log.
pub fn described(managed: &Management<'_>) -> String {
    match managed.change {
        Change::Look => "nothing".to_owned(),
        Change::Reset => "reset".to_owned(),
        Change::GiveBack(units) => format!("grant {units}"),
        Change::Block(0) => "unblock".to_owned(),
        Change::Block(time) => format!("block for {} s", seconds(time)),
        Change::RemoveOverride => "remove the override".to_owned(),
        Change::SetOverride { rate, limit, lasts } => {
            let burst = burst(managed.limit.definition, limit)
                .map_or(String::new(), |(name, value)| format!(" {name}={value}"));
            let lasts =
                lasts.map_or(String::new(), |time| format!(" for {} s", seconds(time.get())));
            format!("override rate={rate}{burst}{lasts}")
        }
    }
}

/// A key as text: bytes that are not UTF-8 become `%XX`.
fn shown_key(key: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in key.utf8_chunks() {
        shown += chunk.valid();
        shown.extend(chunk.invalid().iter().map(|byte| format!("%{byte:02X}")));
    }
    shown
}

fn written(fill: impl FnOnce(&mut Object<'_>)) -> String {
    let mut text = String::new();
    object(&mut text, fill);
    text
}

#[cfg(test)]
mod tests;
