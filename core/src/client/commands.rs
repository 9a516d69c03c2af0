//! The commands about limits, from the first request for each until its reply.

use super::PREALLOCATED;
use super::agenda::Agenda;
use super::command::{Command, Member, Members, Purpose, Stage};
use super::requests::{Error, Requests};
use super::slab::{CommandKey, RequestKey, Slab};
use super::waiting::{Coalescer, longest_hold};
use crate::charge::Charge;
use crate::lease::Lease;
use crate::redis::reply::ScriptReply;

/// How often a command may be sent on to another node.
const MAX_MOVES: u8 = 5;

#[derive(Debug)]
pub(super) struct Commands {
    slab: Slab<Command>,
    coalescer: Coalescer,
    spare: SpareMemory,
}

/// Memory for the members of commands that several requests share.
#[derive(Debug)]
struct SpareMemory(Vec<Vec<Member>>);

impl SpareMemory {
    /// How much is kept: it is for a few keys that many requests are about.
    const MOST: usize = 4;

    fn new() -> Self {
        Self([(); Self::MOST].map(|()| Vec::with_capacity(PREALLOCATED)).into())
    }

    /// Puts members where there is room for more.
    fn lend(&mut self, members: &[Member]) -> Members {
        let mut memory = self.0.pop().unwrap_or_default();
        memory.extend_from_slice(members);
        memory.into()
    }

    fn take_back(&mut self, members: Members) {
        if members.spilled() && self.0.len() < Self::MOST {
            let mut memory = members.into_vec();
            memory.clear();
            self.0.push(memory);
        }
    }
}

/// A command that has ended without a reply.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) members: Members,
    pub(super) purpose: Purpose,
    /// The command that was held until then.
    pub(super) follower: Option<CommandKey>,
}

impl Commands {
    pub(super) fn new() -> Self {
        Self {
            slab: Slab::with_room(PREALLOCATED),
            coalescer: Coalescer::new(),
            spare: SpareMemory::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slab.len() == 0
    }

    pub(super) fn get(&self, key: CommandKey) -> Option<&Command> {
        self.slab.get(key)
    }

    pub(super) fn get_mut(&mut self, key: CommandKey) -> Option<&mut Command> {
        self.slab.get_mut(key)
    }

    /// The stage of a command, unless it is gone.
    pub(super) fn stage(&self, key: CommandKey) -> Option<Stage> {
        Some(self.get(key)?.stage)
    }

    /// The latest command about just this charge, if others may share it or what follows it, and its
    /// stage.
    pub(super) fn latest(&self, charge: &Charge<'_>) -> Option<(CommandKey, Stage)> {
        let key = self.coalescer.latest(charge.digest.low())?;
        let command = self.get(key)?;
        let is_shared =
            command.is_same(charge) && command.is_shareable() && command.follower.is_none();
        is_shared.then_some((key, command.stage))
    }

    /// How many requests wait for a command.
    pub(super) fn awaiting(&self, key: CommandKey, requests: &Requests) -> usize {
        let members = self.get(key).map_or(&[][..], |command| &command.members);
        members.iter().filter(|member| requests.is_waiting(member.request)).count()
    }

    /// The first request that a command was made for, if it is known.
    pub(super) fn first_request(&self, key: CommandKey) -> Option<RequestKey> {
        Some(self.get(key)?.members.first()?.request)
    }
}

/// Adding and removing.
impl Commands {
    /// Adds a command that charges a request.
    pub(super) fn add(
        &mut self,
        charges: &[Charge<'_>],
        member: Member,
        slot: u16,
        requests: &mut Requests,
    ) -> CommandKey {
        let key = self.slab.reuse();
        if let Some(command) = self.slab.get_mut(key) {
            charges.iter().for_each(|charge| command.add(charge));
            command.join(member, charges.first().and_then(|first| first.lease));
            command.slot = slot;
            if let Some(request) = requests.get_mut(member.request) {
                request.command = Some(key);
            }
            if let [charge] = charges {
                self.coalescer.set_latest(charge.digest.low(), key);
            }
        }
        key
    }

    /// Adds any other command.
    pub(super) fn insert(&mut self, command: Command) -> CommandKey {
        self.slab.insert(command)
    }

    pub(super) fn remove(&mut self, key: CommandKey) {
        self.slab.remove(key);
    }

    /// Forgets a command in flight for which no request but this one waits: its reply will be discarded.
    pub(super) fn forget(&mut self, key: CommandKey, request: RequestKey) {
        let is_unneeded = |command: &Command| {
            let is_in_flight = matches!(command.stage, Stage::InFlight { .. });
            // It may have been sent without the request, for others.
            let is_only = matches!(command.members[..], [ref only] if only.request == request);
            is_in_flight && is_only && command.follower.is_none()
        };
        if self.get(key).is_some_and(is_unneeded) {
            self.remove(key);
        }
    }

    /// Removes a command that gets no reply, unless it is gone.
    pub(super) fn take(&mut self, key: CommandKey) -> Option<Ended> {
        let command = self.get_mut(key)?;
        let members = std::mem::take(&mut command.members);
        let (follower, purpose) = (command.follower, command.purpose);
        self.remove(key);
        Some(Ended { members, purpose, follower })
    }

    /// Removes a command that is answered, and so are its `members`, whose memory is used again. Returns the
    /// command that was held until then.
    pub(super) fn remove_answered(
        &mut self,
        key: CommandKey,
        members: Members,
    ) -> Option<CommandKey> {
        self.spare.take_back(members);
        let follower = self.get(key)?.follower;
        self.remove(key);
        follower
    }
}

/// Requests that share a command.
impl Commands {
    /// Lets a request share a command that was not sent yet. Returns its stage.
    pub(super) fn join(
        &mut self,
        key: CommandKey,
        member: Member,
        lease: Option<&Lease>,
        requests: &mut Requests,
        agenda: &mut Agenda,
    ) -> Option<Stage> {
        if self.get(key)?.is_full() {
            // Many may have come and gone while it waits for a connection.
            self.drop_gone(key, requests, agenda);
        }
        let command = self.slab.get_mut(key)?;
        if !command.members.spilled() && command.members.len() == 1 {
            command.members = self.spare.lend(&command.members);
        }
        command.join(member, lease);
        Some(command.stage)
    }

    /// Removes released requests from a command that was not sent. Returns whether none is left.
    #[inline]
    pub(super) fn drop_gone(
        &mut self,
        key: CommandKey,
        requests: &mut Requests,
        agenda: &mut Agenda,
    ) -> bool {
        let Some(command) = self.get(key) else { return true };
        let is_gone = |member: &Member| !requests.is_waiting(member.request);
        command.members.iter().any(is_gone) && self.drop_some(key, requests, agenda)
    }

    /// Removes those requests, of which there are some.
    #[cold]
    fn drop_some(&mut self, key: CommandKey, requests: &mut Requests, agenda: &mut Agenda) -> bool {
        let Some(command) = self.get_mut(key) else { return true };
        let gone = command.take_gone(|request| !requests.is_waiting(request));
        let is_unneeded = command.members.is_empty();
        for member in gone {
            requests.conclude(member, Err(Error::Lost), agenda);
        }
        is_unneeded
    }

    /// Keeps a command until the reply to the one before it.
    pub(super) fn hold(&mut self, key: CommandKey, before: CommandKey) {
        if let Some(before) = self.get_mut(before) {
            before.follower = Some(key);
        }
        if let Some(command) = self.get_mut(key) {
            command.stage = Stage::Held;
            command.send_at = u64::MAX;
        }
    }

    /// Has a held command sent in time for a request. Returns when, if that is earlier than before.
    pub(super) fn send_in_time(
        &mut self,
        key: CommandKey,
        member: Member,
        now: u64,
    ) -> Option<u64> {
        let at = now.saturating_add(longest_hold(member.timeout));
        let command = self.get_mut(key).filter(|command| at < command.send_at)?;
        command.send_at = at;
        Some(at)
    }
}

/// Replies.
impl Commands {
    /// Keeps what the limits of a command hold without its charges, for requests that have others: these may
    /// reject them.
    pub(super) fn note_unspent(
        &self,
        key: CommandKey,
        found: &ScriptReply<'_>,
        requests: &mut Requests,
    ) {
        let charge = self.get(key).filter(|command| command.purpose == Purpose::Charge);
        let Some(command) = charge else { return };
        for (earlier, member) in command.members.iter().enumerate() {
            if let Some(request) = requests.get_mut(member.request)
                && request.answers.len() > command.len()
            {
                command.read_unspent(found.clone(), earlier, |index, verdict| {
                    let charge = member.first.saturating_add(index);
                    request.rare.update(charge, |rare| rare.unspent = Some(verdict));
                });
            }
        }
    }
}

/// Commands that are sent on.
impl Commands {
    /// Counts that a command is sent on once more. `false` if that was done too often.
    pub(super) fn count_move(&mut self, key: CommandKey) -> bool {
        let Some(command) = self.get_mut(key) else { return false };
        command.moves = command.moves.saturating_add(1);
        command.moves <= MAX_MOVES
    }

    /// A command is to wait for a topology. Returns whether it has not done so before.
    pub(super) fn begin_wait(&mut self, key: CommandKey) -> bool {
        self.get_mut(key).is_some_and(|it| !std::mem::replace(&mut it.has_waited, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::agenda::Action;

    impl Commands {
        /// How many members all commands have.
        pub(in crate::client) fn members(&self) -> usize {
            self.slab.keys().filter_map(|key| Some(self.get(key)?.members.len())).sum()
        }
    }

    /// A command that two requests share, and these.
    fn shared() -> (Commands, CommandKey, Requests, [RequestKey; 2]) {
        let (mut commands, mut requests) = (Commands::new(), Requests::new());
        let keys = [(); 2].map(|()| {
            let key = requests.begin(&[]);
            requests.add_open(key);
            requests.get_mut(key).unwrap().on_dispatched(1, 0);
            key
        });
        let members =
            keys.map(|request| Member { request, first: 0, timeout: 80 }).into_iter().collect();
        let key = commands.insert(Command::default());
        commands.get_mut(key).unwrap().members = members;
        (commands, key, requests, keys)
    }

    #[test]
    fn a_command_is_needed_for_as_long_as_a_request_waits_for_it() {
        let (mut commands, key, mut requests, [first, second]) = shared();
        let mut agenda = Agenda::default();
        assert_eq!(commands.awaiting(key, &requests), 2);
        assert!(!commands.drop_gone(key, &mut requests, &mut agenda));
        requests.release(first, false);
        assert!(!commands.drop_gone(key, &mut requests, &mut agenda));
        assert_eq!((commands.awaiting(key, &requests), commands.members()), (1, 1));
        requests.release(second, false);
        assert!(commands.drop_gone(key, &mut requests, &mut agenda));
        assert_eq!(agenda.poll(), None, "no request waits for its outcome");
    }

    #[test]
    fn memory_for_many_requests_is_lent_again() {
        let (mut commands, _, mut requests, [request, _]) = shared();
        let mut agenda = Agenda::default();
        let member = Member { request, first: 0, timeout: 80 };
        let places = [(); 2].map(|()| {
            let key = commands.insert(Command::default());
            commands.get_mut(key).unwrap().members.push(member);
            commands.join(key, member, None, &mut requests, &mut agenda);
            let members = std::mem::take(&mut commands.get_mut(key).unwrap().members);
            assert!(members.len() == 2 && members.capacity() >= PREALLOCATED);
            let place = members.as_ptr();
            commands.remove_answered(key, members);
            place
        });
        assert_eq!(places[0], places[1]);
    }

    #[test]
    fn only_what_is_in_flight_for_one_request_is_forgotten_with_it() {
        let (mut commands, key, requests, [first, second]) = shared();
        commands.get_mut(key).unwrap().stage = Stage::InFlight { busy: true };
        commands.forget(key, first);
        assert_eq!(commands.awaiting(key, &requests), 2, "it is shared");
        commands.get_mut(key).unwrap().members.truncate(1);
        commands.forget(key, second);
        assert!(commands.get(key).is_some(), "it is another request's");
        commands.get_mut(key).unwrap().stage = Stage::Unsent;
        commands.forget(key, first);
        assert!(commands.get(key).is_some(), "it drops out when its turn comes");
        commands.get_mut(key).unwrap().stage = Stage::InFlight { busy: false };
        commands.forget(key, first);
        assert!(commands.is_empty());
    }

    #[test]
    fn a_held_command_is_sent_in_time_for_the_most_impatient() {
        let (mut commands, before, _, [request, _]) = shared();
        let key = commands.insert(Command::default());
        commands.hold(key, before);
        assert_eq!(commands.stage(key), Some(Stage::Held));
        let mut at =
            |timeout| commands.send_in_time(key, Member { request, first: 0, timeout }, 10);
        assert_eq!([at(80), at(160), at(40)], [Some(20), None, Some(15)]);
        let ended = commands.take(before).unwrap();
        assert_eq!((ended.follower, ended.members.len()), (Some(key), 2));
        assert!(commands.take(before).is_none());
    }

    #[test]
    fn a_command_is_sent_on_a_few_times_and_waits_for_a_topology_once() {
        let (mut commands, key, ..) = shared();
        assert_eq!((0..9).take_while(|_| commands.count_move(key)).count(), 5);
        assert!(commands.begin_wait(key) && !commands.begin_wait(key));
        commands.remove(key);
        assert!(!commands.count_move(key) && !commands.begin_wait(key));
    }

    #[test]
    fn the_last_outcome_completes_a_request() {
        let (mut commands, key, mut requests, keys) = shared();
        let mut agenda = Agenda::default();
        for member in commands.take(key).unwrap().members {
            requests.conclude(member, Err(Error::Lost), &mut agenda);
        }
        assert_eq!([(); 2].map(|()| agenda.poll()), keys.map(|key| Some(Action::Complete(key))));
        assert!(keys.iter().all(|key| !requests.is_waiting(*key)));
    }
}
