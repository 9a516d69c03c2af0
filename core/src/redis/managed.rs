//! The state of a client, from the reply of the script that looks at it or changes it.

use super::reply::{Entry, ScriptReply};
use crate::algorithm::Stored;
use crate::charge::Charge;
use crate::manage::ClientState;
use crate::overrides::{Applied, Override};

/// How many numbers the script of a limit that stores itself replies with.
const NUMBERS: usize = 9;

/// The state of the client of `charge`; `None` if this is no reply about it.
pub fn managed(mut found: ScriptReply<'_>, charge: &Charge<'_>) -> Option<ClientState> {
    let (now, quota) = (found.now(), charge.quota);
    let (Some(Entry::Stored(bytes)), None) = (found.next(), found.next()) else { return None };
    if !quota.algorithm().stores_itself() {
        let (held_until, bytes) = bytes.split_first_chunk()?;
        let applied = quota.algorithm().read_applied(bytes, now, quota);
        let state = ClientState::new(&applied, now);
        let held_for = u64::from_le_bytes(*held_until).saturating_sub(now);
        return Some(ClientState { held_for: state.held_for.max(held_for), ..state });
    }
    let (words, []) = bytes.as_chunks() else { return None };
    let numbers: [_; NUMBERS] = words.try_into().ok()?;
    let [remaining, reset, retry_after, blocked_until, debt, limit, ends, n, rate_period] =
        numbers.map(u64::from_le_bytes);
    let own = Override::from_parts(limit, ends, [n, rate_period]);
    let Applied { quota, own, .. } = Applied::new(Stored::default(), own, now, quota);
    Some(ClientState {
        now,
        quota,
        remaining,
        reset,
        retry_after,
        blocked_for: blocked_until.saturating_sub(now),
        debt,
        held: 0,
        held_for: 0,
        own,
    })
}
