//! All servers of a store, as a worker knows them, and which of them decides what.
//!
//! What a connection has to say is noted here and dealt with at the end of the turn, when no
//! function of a connection is on the stack: so questions can go to any other connection.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr::NonNull;

use ngx::ffi::{
    NGX_LOG_ERR, NGX_LOG_NOTICE, ngx_event_t, ngx_exiting, ngx_msec_t, ngx_palloc, ngx_pool_t,
    ngx_random,
};
use rate_limit_core::metrics::Command;
use rate_limit_core::redis::cluster::{Map, Member, Redirect, SLOTS, slot};
use rate_limit_core::redis::endpoint::{Address, Endpoint};
use rate_limit_core::redis::queue::Ticket;
use rate_limit_core::redis::reply::Reply;
use rate_limit_core::redis::{Value, command, sentinel};
use rate_limit_core::text::log::Escaped;

use super::address::SocketAddress;
use super::gift::Gift;
use super::node::{Node, Role};
use super::part::Part;
use super::pending::{Asked, Trouble};
use super::waiter::Waiter;
use super::{cycle_log, now};
use crate::conf::{Kind, Store};
use crate::event::{Posted, Timer};
use crate::log::log;
use crate::shm::Shared;

/// News of who decides are asked for at most this often, in ms.
const NEWS_AT_MOST: u64 = 100;

/// While somebody who decides is missing they are asked for this often, in ms.
const NEWS_IN_NEED: ngx_msec_t = 250;

/// And else this often, in ms, give or take a tenth: workers shall not ask in step.
const NEWS_ROUTINE: ngx_msec_t = 10_000;

/// How many nodes are known before redirections to others are not followed any more.
const MAX_NODES: usize = 1_000;

/// How long those wait whom a cluster asks to try again, in ms.
const LATER: ngx_msec_t = 2;

/// How long a server that does not decide any more may take to answer what it was asked, in ms.
const FAREWELL: u64 = 1_000;

/// All servers of a store.
pub(crate) struct Deployment {
    store: &'static Store,
    shared: Shared,
    /// Those of the configuration first, which stay; then those that were heard of.
    nodes: RefCell<Vec<NonNull<Node>>>,
    /// Those that do not decide any more, and since when.
    retired: RefCell<Vec<(NonNull<Node>, u64)>>,
    /// Who decides, where it is one server.
    master: Cell<Option<NonNull<Node>>>,
    /// Who decides for each slot, where it is a cluster.
    owners: RefCell<Vec<Option<NonNull<Node>>>>,
    /// Whether there are slots of a cluster that nobody has.
    has_orphans: Cell<bool>,
    parked: RefCell<BTreeMap<Ticket, (NonNull<Part>, Wish)>>,
    tickets: Cell<Ticket>,
    notes: RefCell<Vec<Note>>,
    inquiry: RefCell<Inquiry>,
    gifts: RefCell<Vec<NonNull<Gift>>>,
    /// Deals with the notes.
    wake: Posted,
    /// For the next inquiry, or the end of patience with this one.
    clock: Timer,
    /// For those who are to try again.
    later: Timer,
    closing: Cell<bool>,
}

/// Why a part waits here.
pub(super) enum Wish {
    /// To be sent on, because the node `from` said so.
    Go { redirect: Redirect, asking: bool, from: String },
    /// To be sent again in a moment.
    Later,
    /// To be sent again when there are news of who decides; if there are none it is in trouble.
    News(Trouble),
}

/// What a connection has told.
enum Note {
    /// Of the inquiry of this number.
    Told(u32, Option<News>),
    Heard(News),
    Lost,
}

/// Who decides.
enum News {
    Map(Map),
    Master(String, u16),
}

/// Asking who decides.
#[derive(Default)]
struct Inquiry {
    number: u32,
    /// When it began.
    at: Option<u64>,
    under_way: bool,
    wanted: bool,
    /// Which node is asked first.
    first: usize,
    /// How many have been asked.
    tried: usize,
}

impl Deployment {
    /// The deployment of a store, at an address of its own; nothing is connected yet.
    pub(crate) fn new(store: &'static Store, shared: Shared) -> NonNull<Self> {
        let deployment = Box::leak(Box::new(Self {
            store,
            shared,
            nodes: RefCell::default(),
            retired: RefCell::default(),
            master: Cell::new(None),
            owners: RefCell::default(),
            has_orphans: Cell::new(false),
            parked: RefCell::default(),
            tickets: Cell::new(0),
            notes: RefCell::default(),
            inquiry: RefCell::default(),
            gifts: RefCell::default(),
            wake: Posted::new(),
            clock: Timer::background(),
            later: Timer::background(),
            closing: Cell::new(false),
        }));
        for server in store.servers() {
            let node = match store.kind() {
                Kind::Sentinel(_) => {
                    deployment.add(Role::Sentinel, server.endpoint.clone(), &server.addresses)
                }
                _ => deployment.add_decider(server.endpoint.address.clone(), &server.addresses),
            };
            if *store.kind() == Kind::Single {
                deployment.master.set(Some(node));
            }
        }
        if *store.kind() == Kind::Cluster {
            deployment.owners.replace(vec![None; SLOTS]);
            // Not all workers ask the same node.
            deployment.inquiry.borrow_mut().first = random() as usize;
        }
        NonNull::from(deployment)
    }

    fn add(&self, role: Role, endpoint: Endpoint, addresses: &[SocketAddress]) -> NonNull<Node> {
        // SAFETY: the deployment frees its nodes before it goes.
        let node = unsafe { Node::new(self, role, endpoint, addresses) };
        self.nodes.borrow_mut().push(node);
        node
    }

    fn add_decider(&self, address: Address, addresses: &[SocketAddress]) -> NonNull<Node> {
        let endpoint = Endpoint { address, ..self.store.account().clone() };
        self.add(Role::Decides, endpoint, addresses)
    }

    pub(super) fn store(&self) -> &'static Store {
        self.store
    }

    pub(super) fn shared(&self) -> Shared {
        self.shared
    }

    /// Whether it is a Redis Cluster.
    pub(super) fn is_cluster(&self) -> bool {
        *self.store.kind() == Kind::Cluster
    }

    fn is_single(&self) -> bool {
        *self.store.kind() == Kind::Single
    }

    /// Connects, before the first request needs it to.
    pub(crate) fn connect(&self) {
        match self.store.kind() {
            Kind::Single => self.each_node(Node::open),
            // What is posted before the event loop runs would wait until anything happens.
            _ => self.clock_in(0),
        }
    }

    fn each_node(&self, mut act: impl FnMut(&Node)) {
        let nodes = self.nodes.borrow().clone();
        // SAFETY: nodes are freed only by `free_retired` and at the end.
        nodes.iter().for_each(|node| act(unsafe { node.as_ref() }));
    }

    /// The commands that ask `asked`: a script's keys must all be in one slot of a cluster.
    ///
    /// # Safety
    /// `pool` must be that of the request, and `asked` live as long as it does.
    pub(crate) unsafe fn parts(
        &self,
        asked: &'static [Asked],
        pool: *mut ngx_pool_t,
    ) -> Option<&'static [Part]> {
        let same_place = |a: &Asked, b: &Asked| !self.is_cluster() || slot_of(a) == slot_of(b);
        // In a cluster there are as many as limits: a part that has several can be divided.
        let count = if self.is_cluster() { asked.len() } else { 1 };
        // SAFETY: the memory is of the request's pool, large and aligned enough, and all of it is
        // written before it is returned.
        unsafe {
            let first = ngx_palloc(pool, size_of::<Part>().saturating_mul(count)).cast::<Part>();
            if first.is_null() {
                return None;
            }
            let mut next = first;
            let mut add = |asked, slot| {
                next.write(Part::new(asked, slot, NonNull::from(self)));
                next = next.add(1);
            };
            for asked in asked.chunk_by(same_place) {
                // Who needs no slot does not compute it.
                let needed = self.is_cluster() || self.store.connections() > 1;
                let slot = asked.first().filter(|_| needed).map_or(0, slot_of);
                add(asked, slot);
                if self.is_cluster() {
                    (1..asked.len()).for_each(|_| add(&[], slot));
                }
            }
            Some(std::slice::from_raw_parts(first, count))
        }
    }
}

fn slot_of(asked: &Asked) -> u16 {
    slot(asked.question.head, asked.question.key)
}

fn random() -> u64 {
    ngx_random().unsigned_abs()
}

/// Where questions go.
impl Deployment {
    /// Asks who decides. No function of a connection may be on the stack.
    pub(super) fn submit(&self, part: &Part) {
        match self.decider(part.slot()) {
            Some(node) => self.submit_to(node, part, false),
            None => self.park(part, Wish::News(Trouble::Down)),
        }
    }

    fn submit_to(&self, node: NonNull<Node>, part: &Part, asking: bool) {
        // SAFETY: nodes are freed only by `free_retired` and at the end.
        if let Err(trouble) = unsafe { node.as_ref() }.submit(part, asking) {
            part.settle(Err(trouble));
        }
    }

    fn decider(&self, slot: u16) -> Option<NonNull<Node>> {
        match self.is_cluster() {
            false => self.master.get(),
            true => self.owners.borrow().get(usize::from(slot)).copied().flatten(),
        }
    }

    /// Sends a part on, as a node said.
    fn go(&self, part: &Part, redirect: &Redirect, asking: bool, from: &str) {
        let host = if redirect.host.is_empty() { from } else { &redirect.host };
        if self.known_at(host, redirect.port).is_none() && self.nodes.borrow().len() >= MAX_NODES {
            return part.settle(Err(Trouble::Refused));
        }
        let node = self.decider_at(host, redirect.port);
        if !asking {
            if let Some(owner) = self.owners.borrow_mut().get_mut(usize::from(redirect.slot)) {
                *owner = Some(node);
            }
            self.want_news();
        }
        self.submit_to(node, part, asking);
    }

    /// Keeps a part until its wish can be fulfilled.
    pub(super) fn park(&self, part: &Part, wish: Wish) {
        if let Wish::News(trouble) = wish
            && (self.is_single() || self.closing.get() || !part.may_renew())
        {
            return part.settle(Err(trouble));
        }
        if matches!(wish, Wish::News(_)) {
            self.want_news();
        }
        let ticket = self.tickets.get();
        self.tickets.set(ticket.wrapping_add(1));
        self.parked.borrow_mut().insert(ticket, (NonNull::from(part), wish));
        part.is_parked(ticket);
        self.post_wake();
    }

    /// Forgets a part.
    pub(super) fn unpark(&self, ticket: Ticket) {
        self.parked.borrow_mut().remove(&ticket);
    }

    /// Takes the parts whose wish can be fulfilled.
    fn take_parked(&self, can: impl Fn(&Wish) -> bool) -> Vec<(NonNull<Part>, Wish)> {
        let mut parked = self.parked.borrow_mut();
        let tickets: Vec<_> =
            parked.iter().filter(|(_, (_, wish))| can(wish)).map(|(ticket, _)| *ticket).collect();
        tickets.iter().filter_map(|ticket| parked.remove(ticket)).collect()
    }

    /// Sends those who waited for news, or for a moment, to whoever decides now.
    fn submit_parked(&self, can: impl Fn(&Wish) -> bool) {
        for (part, _) in self.take_parked(can) {
            self.submit(Part::get(part));
        }
    }

    /// There are no news for those who wait for them.
    fn give_up_parked(&self) {
        for (part, wish) in self.take_parked(|wish| matches!(wish, Wish::News(_))) {
            if let Wish::News(trouble) = wish {
                Part::get(part).settle(Err(trouble));
            }
        }
    }

    /// A gift has been answered, and can be freed once nothing of it is on the stack.
    pub(super) fn discard(&self, gift: NonNull<Gift>) {
        self.gifts.borrow_mut().push(gift);
        self.post_wake();
    }

    fn free_gifts(&self) {
        for gift in self.gifts.take() {
            // SAFETY: `Gift::give` made it, and nothing refers to it after its part is settled.
            drop(unsafe { Box::from_raw(gift.as_ptr()) });
        }
    }
}

/// What connections tell.
impl Deployment {
    /// Appends the question who decides to what is sent.
    pub(super) fn ask_topology(&self, node: &Node, out: &mut Vec<u8>) {
        match self.store.kind() {
            Kind::Sentinel(name) => {
                node.count_command(Command::Sentinel);
                command::pack(out, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]);
            }
            _ => {
                node.count_command(Command::Cluster);
                command::pack(out, &["CLUSTER", "SLOTS"]);
            }
        }
    }

    /// `node` has answered the question who decides.
    pub(super) fn told(&self, number: u32, node: &Node, reply: Reply<'_>) {
        let news = self.read(node, &reply);
        if let Err(reason) = &news {
            node.complain(&format!("does not tell who decides: {reason}"));
        }
        self.note(Note::Told(number, news.ok()));
    }

    fn read(&self, node: &Node, reply: &Reply<'_>) -> Result<News, String> {
        match (self.store.kind(), reply) {
            (_, Reply::Error(refusal)) => Err(format!("\"{}\"", Escaped(refusal.text.as_bytes()))),
            (Kind::Cluster, Reply::Other(Value::Array(ranges))) if ranges.is_empty() => {
                Err("it knows nobody who has slots".to_owned())
            }
            (Kind::Cluster, Reply::Other(value)) => {
                Map::parse(value, node.host()).map(News::Map).map_err(|error| error.to_string())
            }
            (Kind::Sentinel(name), Reply::Other(Value::Nil)) => {
                Err(format!("it knows no master \"{name}\""))
            }
            (Kind::Sentinel(_), Reply::Other(value)) => {
                let master =
                    sentinel::master(value).ok_or("the master's address makes no sense")?;
                Ok(News::Master(master.0, master.1))
            }
            _ => Err("the answer makes no sense".to_owned()),
        }
    }

    /// The question who decides will not be answered.
    pub(super) fn not_told(&self, number: u32) {
        self.note(Note::Told(number, None));
    }

    /// A sentinel has sent a message.
    pub(super) fn heard(&self, message: &Value) {
        if let Kind::Sentinel(name) = self.store.kind()
            && let Some((host, port)) = sentinel::switched(message, name)
        {
            self.note(Note::Heard(News::Master(host, port)));
        }
    }

    /// A connection is lost, or a server answers too late: others may decide now. A sentinel tells
    /// of them only over a connection on which it was asked to.
    pub(super) fn is_lost(&self) {
        if !self.is_single() {
            self.note(Note::Lost);
        }
    }

    fn note(&self, note: Note) {
        self.notes.borrow_mut().push(note);
        self.post_wake();
    }

    fn post_wake(&self) {
        if !self.closing.get() {
            // SAFETY: the deployment stays where it is until it is dropped, which cancels it.
            unsafe { self.wake.post(Some(on_wake), self, cycle_log()) };
        }
    }

    /// Deals with all that was told in this turn.
    fn wake(&self) {
        for note in self.notes.take() {
            match note {
                Note::Told(number, news) => self.conclude(number, news),
                Note::Heard(news) => self.learn(news),
                Note::Lost => self.want_news(),
            }
        }
        for (part, wish) in self.take_parked(|wish| matches!(wish, Wish::Go { .. })) {
            if let Wish::Go { redirect, asking, from } = wish {
                self.go(Part::get(part), &redirect, asking, &from);
            }
        }
        let later = self.parked.borrow().values().any(|(_, wish)| matches!(wish, Wish::Later));
        if later && !self.later.is_set() {
            // SAFETY: as for `wake`.
            unsafe { self.later.start(LATER, Some(on_later), self, cycle_log()) };
        }
        self.inquire_if_wanted();
        self.free_gifts();
    }
}

/// Finding out who decides.
impl Deployment {
    fn want_news(&self) {
        self.inquiry.borrow_mut().wanted = true;
        self.post_wake();
    }

    fn clock_in(&self, delay: ngx_msec_t) {
        // SAFETY: the deployment stays where it is until it is dropped, which stops the timer.
        unsafe { self.clock.start(delay, Some(on_clock), self, cycle_log()) };
    }

    fn inquire_if_wanted(&self) {
        let (wanted, under_way, at) = {
            let inquiry = self.inquiry.borrow();
            (inquiry.wanted, inquiry.under_way, inquiry.at)
        };
        if !wanted || under_way {
            return;
        }
        let due = at.map_or(0, |at| at.saturating_add(NEWS_AT_MOST).saturating_sub(now()));
        if due > 0 {
            // Those who wait for news would wait for long.
            self.give_up_parked();
            return self.clock_in(due as ngx_msec_t);
        }
        {
            let mut inquiry = self.inquiry.borrow_mut();
            inquiry.wanted = false;
            inquiry.under_way = true;
            inquiry.at = Some(now());
            inquiry.tried = 0;
            if self.is_cluster() {
                inquiry.first = inquiry.first.wrapping_add(1);
            }
        }
        self.ask_next();
    }

    /// Asks the next node that can be asked who decides.
    fn ask_next(&self) {
        let guides = self.guides();
        loop {
            let (number, guide) = {
                let mut inquiry = self.inquiry.borrow_mut();
                if inquiry.tried >= guides.len() {
                    break;
                }
                // An answer to the one before would come too late.
                inquiry.number = inquiry.number.wrapping_add(1);
                let index = inquiry.first.wrapping_add(inquiry.tried).checked_rem(guides.len());
                inquiry.tried = inquiry.tried.saturating_add(1);
                (inquiry.number, guides.get(index.unwrap_or(0)).copied())
            };
            // SAFETY: nodes are freed only by `free_retired` and at the end.
            let Some(guide) = guide.map(|guide| unsafe { guide.as_ref() }) else { break };
            if self.ask(guide, number) {
                return self.clock_in(guide.connect_timeout());
            }
        }
        self.inquiry.borrow_mut().under_way = false;
        self.give_up_parked();
        self.clock_in(NEWS_IN_NEED);
    }

    /// Those who may know who decides.
    fn guides(&self) -> Vec<NonNull<Node>> {
        let nodes = self.nodes.borrow();
        match self.store.kind() {
            Kind::Sentinel(_) => {
                nodes.get(..self.store.servers().len()).unwrap_or_default().to_vec()
            }
            _ => nodes.clone(),
        }
    }

    fn ask(&self, guide: &Node, number: u32) -> bool {
        // Who still owes an old answer is not waited for.
        guide.check();
        let ask = |waiter| guide.submit_waiter(waiter).is_ok();
        match self.store.kind() {
            Kind::Sentinel(_) => {
                ask(Waiter::Unsubscribe) && ask(Waiter::Topology(number)) && ask(Waiter::Subscribe)
            }
            _ => ask(Waiter::Topology(number)),
        }
    }

    /// Ends the inquiry of this number, or goes on with it if there are no news.
    fn conclude(&self, number: u32, news: Option<News>) {
        {
            let inquiry = self.inquiry.borrow();
            if !inquiry.under_way || inquiry.number != number {
                return;
            }
        }
        let Some(news) = news else { return self.ask_next() };
        {
            let mut inquiry = self.inquiry.borrow_mut();
            inquiry.under_way = false;
            // The one who knew is asked first the next time.
            inquiry.first = inquiry.first.wrapping_add(inquiry.tried).wrapping_sub(1);
        }
        self.learn(news);
        self.clock_in(self.next_inquiry());
    }

    /// When to ask again, in ms.
    fn next_inquiry(&self) -> ngx_msec_t {
        let mut in_need = self.has_orphans.get() || !self.retired.borrow().is_empty();
        let seeds = self.store.servers().len();
        for (index, node) in self.nodes.borrow().iter().enumerate() {
            // SAFETY: nodes are freed only by `free_retired` and at the end.
            let node = unsafe { node.as_ref() };
            in_need |= !node.is_available() && (index >= seeds || self.is_decider(node));
        }
        match in_need {
            true => NEWS_IN_NEED,
            false => {
                let tenth = NEWS_ROUTINE / 10;
                NEWS_ROUTINE - tenth + random() as ngx_msec_t % (2 * tenth)
            }
        }
    }

    fn is_decider(&self, node: &Node) -> bool {
        let is = |other: &Option<NonNull<Node>>| other.is_some_and(|o| o == NonNull::from(node));
        is(&self.master.get()) || self.owners.borrow().iter().any(is)
    }

    /// From now on these decide.
    fn learn(&self, news: News) {
        let deciders = match news {
            News::Map(map) => self.learn_map(&map),
            News::Master(host, port) => vec![self.learn_master(&host, port)],
        };
        self.retire_others(&deciders);
        // SAFETY: nodes are freed only by `free_retired` and at the end.
        deciders.iter().for_each(|node| unsafe { node.as_ref() }.open());
        self.submit_parked(|wish| matches!(wish, Wish::News(_)));
    }

    fn learn_map(&self, map: &Map) -> Vec<NonNull<Node>> {
        let member = |member: &Member| {
            let node = self.decider_at(&member.host, member.port);
            // SAFETY: as above.
            unsafe { node.as_ref() }.set_alias(member.name.clone());
            node
        };
        let members: Vec<_> = map.members.iter().map(member).collect();
        let owner = |slot| map.owner(slot).and_then(|index| members.get(index).copied());
        self.owners.replace((0..SLOTS as u16).map(owner).collect());
        self.has_orphans(map.orphans());
        members
    }

    /// Notes how many slots nobody has. Tells it once, and once that it is over.
    fn has_orphans(&self, number: usize) {
        if self.has_orphans.replace(number > 0) != (number > 0) {
            let name = self.store.shown();
            match number {
                0 => log!(
                    NGX_LOG_ERR,
                    cycle_log(),
                    "cluster \"{name}\": every slot has a node again"
                ),
                _ => log!(
                    NGX_LOG_ERR,
                    cycle_log(),
                    "cluster \"{name}\": {number} slots have no node"
                ),
            }
        }
    }

    fn learn_master(&self, host: &str, port: u16) -> NonNull<Node> {
        let node = self.decider_at(host, port);
        if self.master.replace(Some(node)) != Some(node)
            && let Kind::Sentinel(name) = self.store.kind()
        {
            // SAFETY: as above.
            let address = unsafe { node.as_ref() }.name();
            log!(NGX_LOG_NOTICE, cycle_log(), "redis {address} is the master of \"{name}\"");
        }
        node
    }

    /// The node at this address, which is made if it is new.
    fn decider_at(&self, host: &str, port: u16) -> NonNull<Node> {
        self.known_at(host, port).unwrap_or_else(|| {
            let addresses: Vec<_> =
                host.parse().map(|ip| SocketAddress::new(ip, port)).into_iter().collect();
            self.add_decider(Address::Tcp(host.to_owned(), port), &addresses)
        })
    }

    fn known_at(&self, host: &str, port: u16) -> Option<NonNull<Node>> {
        // SAFETY: nodes are freed only by `free_retired` and at the end.
        let is_it = |node: &&NonNull<Node>| unsafe { node.as_ref() }.decides_at(host, port);
        self.nodes.borrow().iter().find(is_it).copied()
    }

    /// Lets go of those who do not decide any more. Those of the configuration stay, unconnected:
    /// they may know who decides when nobody else does.
    fn retire_others(&self, deciders: &[NonNull<Node>]) {
        let seeds = self.store.servers().len();
        let nodes = self.nodes.borrow().clone();
        for (index, node) in nodes.iter().enumerate().filter(|(_, node)| !deciders.contains(node)) {
            if index < seeds {
                if self.is_cluster() {
                    // SAFETY: nodes are freed only by `free_retired` and at the end.
                    unsafe { node.as_ref() }.rest();
                }
                continue;
            }
            self.nodes.borrow_mut().retain(|other| other != node);
            self.retired.borrow_mut().push((*node, now()));
        }
        self.free_retired();
    }

    /// Frees those of whom nobody waits for an answer.
    fn free_retired(&self) {
        let goes = |(node, since): &(NonNull<Node>, u64)| {
            // SAFETY: nodes are freed only here and at the end.
            unsafe { node.as_ref() }.is_quiet() || now().saturating_sub(*since) >= FAREWELL
        };
        let (gone, left): (Vec<_>, _) = self.retired.take().into_iter().partition(goes);
        self.retired.replace(left);
        for (node, _) in gone {
            // SAFETY: it is in no list any more, owns no slot, and is not the master.
            unsafe { Node::free(node) };
        }
    }

    /// The clock has struck.
    fn tick(&self) {
        self.free_retired();
        if self.inquiry.borrow().under_way {
            return self.ask_next();
        }
        // SAFETY: only NGINX writes it, in this thread.
        if unsafe { ngx_exiting } == 0 || !self.parked.borrow().is_empty() {
            self.want_news();
        }
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        self.closing.set(true);
        let retired = self.retired.take().into_iter().map(|(node, _)| node);
        for node in self.nodes.take().into_iter().chain(retired) {
            // SAFETY: nothing refers to it any more: the worker, or the cycle, ends.
            unsafe { Node::free(node) };
        }
        for (part, _) in self.parked.take().into_values() {
            Part::get(part).settle(Err(Trouble::Lost));
        }
        self.free_gifts();
        self.wake.cancel();
        self.clock.stop();
        self.later.stop();
    }
}

/// The deployment that NGINX calls back.
///
/// # Safety
/// The data of `event` must be what a living deployment gave to it.
unsafe fn deployment<'a>(event: *mut ngx_event_t) -> &'a Deployment {
    // SAFETY: it lives until it is dropped, which removes its events.
    unsafe { &*(*event).data.cast::<Deployment>() }
}

unsafe extern "C" fn on_wake(event: *mut ngx_event_t) {
    // SAFETY: the event is the deployment's own.
    unsafe { deployment(event) }.wake();
}

unsafe extern "C" fn on_clock(event: *mut ngx_event_t) {
    // SAFETY: as above.
    unsafe { deployment(event) }.tick();
}

unsafe extern "C" fn on_later(event: *mut ngx_event_t) {
    // SAFETY: as above.
    unsafe { deployment(event) }.submit_parked(|wish| matches!(wish, Wish::Later));
}
