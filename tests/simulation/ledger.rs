//! The charges that were submitted, executed, answered and refunded, and whether these agree.
//!
//! Charges of one worker that are the same, key and cost, share an account. A key that only one
//! request has makes the account exact.

use std::collections::{HashMap, VecDeque};

use rate_limit_core::client::Answer;
use rate_limit_core::decision::Verdict;

use crate::journal::{Execution, Journal};
use crate::lease::{MACHINES, Machine};
use crate::network::{ClientId, ConnectionId};

/// The number of a request; none is used twice.
pub type RequestId = u64;

/// Charges that are the same: the worker, the key in Redis, and the cost.
pub type Class = (ClientId, Box<[u8]>, u64);

/// How many decisions are remembered about a charge that spends nothing.
const FREE: usize = 200;

/// So few units that are to be given back late show nothing.
const FEW: u64 = 8;

/// The accounts of all charges.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: HashMap<Class, Account>,
    /// The units that each worker gives back of each key: refunds that wait for each other are joined, whatever their costs.
    refunds: HashMap<(ClientId, Box<[u8]>), Refunds>,
    /// The script commands of each connection whose replies have not arrived.
    owed: HashMap<ConnectionId, VecDeque<Owed>>,
    /// How many bytes were handed to the client of each connection.
    delivered: HashMap<ConnectionId, u64>,
    executions: u64,
    pub lost_replies: u64,
}

/// The refunds of one worker to a key.
#[derive(Debug, Default)]
struct Refunds {
    /// The costs of its charges.
    costs: Vec<u64>,
    /// The units that were given back.
    units: u64,
}

/// The charges of one class, and their outcomes.
#[derive(Debug, Default)]
struct Account {
    submitted: u64,
    executed: u64,
    spent: u64,
    /// How many may be refunded, as their requests did not pass.
    refundable: u64,
    /// The charges that were decided, and are not answered yet.
    pending: Vec<Decided>,
    /// The last answers.
    answered: Vec<(RequestId, Decided)>,
    /// Until this execution more than one has led to the same decision.
    ambiguous: Option<u64>,
    /// The only request, and whether nothing is wrong while it lives.
    owner: Option<(RequestId, bool)>,
    /// Whether the only request was released, and whether with a refund.
    released: Option<bool>,
    /// Whether it was not decided in time.
    is_late: bool,
}

/// A decision about one request, at a server.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decided {
    verdict: Verdict,
    spent: bool,
    /// Which execution it was, and which of its requests.
    execution: u64,
    index: usize,
}

#[derive(Debug)]
struct Owed {
    reply_ends: u64,
    classes: Vec<Class>,
}

impl Ledger {
    /// A request is submitted with a charge. `owner` if no other request has the key.
    pub fn submit(&mut self, class: &Class, owner: Option<(RequestId, bool)>) {
        let account = self.accounts.entry(class.clone()).or_default();
        account.submitted += 1;
        account.owner = owner;
        let (worker, key, cost) = class;
        let refunds = self.refunds.entry((*worker, key.clone())).or_default();
        if !refunds.costs.contains(cost) {
            refunds.costs.push(*cost);
        }
    }

    /// Takes over what the servers have done.
    pub fn read(
        &mut self,
        journal: &mut Journal,
        machines: &mut [Machine],
        worker_of: impl Fn(ConnectionId) -> ClientId,
    ) {
        for execution in journal.executions.drain(..) {
            let worker = worker_of(execution.connection);
            self.executions += 1;
            let machine = &mut machines[worker % MACHINES];
            execution.charges.iter().for_each(|charge| machine.execute(charge, execution.at));
            self.execute(worker, execution);
        }
        journal.losses.clear();
    }

    fn execute(&mut self, worker: ClientId, execution: Execution) {
        let mut classes = Vec::new();
        for charge in execution.charges {
            if charge.gives_back {
                self.refund(worker, charge.key, charge.cost);
                continue;
            }
            let class = (worker, charge.key, charge.cost);
            let Some(account) = self.accounts.get_mut(&class) else {
                panic!("executed, but never submitted: {}", show(&class));
            };
            account.executed += u64::from(charge.times);
            account.spent += u64::from(charge.passed);
            let is_once = account.executed <= account.submitted;
            assert!(is_once, "executed more than once: {}", show(&class));
            let decided = |(index, verdict)| Decided {
                verdict,
                spent: index < charge.passed as usize,
                execution: self.executions,
                index,
            };
            account.pending.extend(charge.verdicts.into_iter().enumerate().map(decided));
            if charge.cost == 0 {
                let old = account.pending.len().saturating_sub(FREE);
                account.pending.drain(..old);
            }
            classes.push(class);
        }
        let owed = Owed { reply_ends: execution.reply_ends, classes };
        self.owed.entry(execution.connection).or_default().push_back(owed);
    }

    /// A server has given back so many units.
    fn refund(&mut self, worker: ClientId, key: Box<[u8]>, units: u64) {
        let owner = (worker, key);
        let Some(refunds) = self.refunds.get_mut(&owner) else {
            panic!("given back, but never charged: {}", show(&(worker, owner.1, units)));
        };
        refunds.units += units;
        let refundable = |cost: &u64| {
            let account = &self.accounts[&(worker, owner.1.clone(), *cost)];
            account.refundable.min(account.spent) * cost
        };
        let most: u64 = refunds.costs.iter().map(refundable).sum();
        assert!(refunds.units <= most, "too much given back: {}", show(&(worker, owner.1, units)));
    }

    /// Bytes of a connection were handed to the client, which has read them: the charges whose
    /// replies were complete, if one request only has them.
    pub fn deliver(&mut self, connection: ConnectionId, count: usize) -> Vec<(RequestId, Class)> {
        let delivered = self.delivered.entry(connection).or_default();
        *delivered += count as u64;
        let (delivered, mut arrived) = (*delivered, Vec::new());
        let Some(owed) = self.owed.get_mut(&connection) else { return arrived };
        while owed.front().is_some_and(|first| first.reply_ends <= delivered)
            && let Some(first) = owed.pop_front()
        {
            let owner = |class: Class| Some((self.accounts.get(&class)?.owner?.0, class));
            arrived.extend(first.classes.into_iter().filter_map(owner));
        }
        arrived
    }

    /// A connection has ended: the replies that have not arrived never will.
    pub fn end(&mut self, connection: ConnectionId) {
        let owed = self.owed.remove(&connection).unwrap_or_default();
        self.lost_replies += owed.len() as u64;
        self.delivered.remove(&connection);
    }

    /// A request gets this answer about a charge.
    pub fn on_answer(&mut self, request: RequestId, class: &Class, answer: &Answer) {
        let Some(verdict) = answer.verdict else { return };
        let account = self.accounts.get_mut(class).expect("an account");
        let matches = |one: &Decided| one.verdict == verdict && one.spent == answer.is_charged;
        let matching: Vec<_> = (0..account.pending.len())
            .filter(|position| matches(&account.pending[*position]))
            .collect();
        let newest = matching.iter().map(|position| account.pending[*position].execution).max();
        let is_newest = |position: &&usize| Some(account.pending[**position].execution) == newest;
        let Some(position) = matching.iter().find(is_newest).copied() else {
            panic!("no server has decided so: {answer:?} {} {account:?}", show(class));
        };
        if !matching.iter().all(|position| is_newest(&position)) {
            account.ambiguous = account.ambiguous.max(newest);
        }
        if class.2 == 0 {
            // A command of cost 0 runs once, for any number of requests.
            return;
        }
        let decided = account.pending.remove(position);
        account.check_turn(request, &decided, class);
        account.answered.retain(|(_, answered)| answered.execution == decided.execution);
        account.answered.push((request, decided));
    }

    /// A request is released with this answer about a charge. `is_late` if it was not decided in time.
    pub fn release(&mut self, class: &Class, answer: &Answer, refund: bool, is_late: bool) {
        let account = self.accounts.get_mut(class).expect("an account");
        let is_charged = answer.is_charged || answer.verdict.is_none();
        account.refundable += u64::from(refund && is_charged);
        account.released = Some(refund);
        account.is_late = is_late;
    }

    /// At the end: where nothing was wrong, what was to be refunded has been; and most of what was late, as that waits for
    /// others, and may meet a later fault.
    pub fn close(&self) {
        let (mut late, mut late_refunded) = (0, 0);
        for (class, account) in &self.accounts {
            let Some((request, true)) = account.owner else { continue };
            let refund = account.released.expect("every request is released");
            // A charge of cost 0 has nothing to be refunded.
            let due = if refund { account.spent * class.2 } else { 0 };
            let refunded = self.refunds[&(class.0, class.1.clone())].units;
            if account.is_late {
                late += due;
                late_refunded += refunded.min(due);
            } else {
                assert_eq!(refunded, due, "refunds of request {request}: {}", show(class));
            }
        }
        let are_most = late < FEW || late_refunded > late / 2;
        assert!(are_most, "{late_refunded} of {late} were given back late");
    }
}

impl Account {
    /// Requests that share a command are decided in the order in which they came.
    fn check_turn(&self, request: RequestId, decided: &Decided, class: &Class) {
        if self.ambiguous >= Some(decided.execution) {
            return;
        }
        for (other, answered) in &self.answered {
            let is_comparable = answered.execution == decided.execution
                && (answered.verdict, answered.spent) != (decided.verdict, decided.spent);
            let is_in_turn = (*other < request) == (answered.index < decided.index);
            assert!(
                !is_comparable || is_in_turn,
                "decided out of turn: {} {decided:?} {:?}",
                show(class),
                self.answered
            );
        }
    }
}

fn show((worker, key, cost): &Class) -> String {
    format!("worker {worker}, {} for {cost}", String::from_utf8_lossy(key))
}
