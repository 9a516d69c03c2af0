//! What is counted for a limit or a node, of all workers together.

use std::sync::atomic::{AtomicU64, Ordering};

/// The longest name of a record, in words; longer ones are cut.
const NAME_WORDS: usize = 16;

/// The name of a record; all zeroes if nobody has it.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Name([AtomicU64; NAME_WORDS]);

/// Something with a name.
pub(super) trait Named {
    fn name(&self) -> &Name;
}

/// What is counted for a limit.
#[derive(Default)]
#[repr(C)]
pub(crate) struct LimitRecord {
    name: Name,
}

/// What is known of a node.
#[derive(Default)]
#[repr(C)]
pub(crate) struct NodeRecord {
    name: Name,
    /// The Unix time in ms since which it is down; 0 if it is not.
    down_since: AtomicU64,
    /// Requests that it did not decide since its last answer.
    undecided: AtomicU64,
    /// The Unix time in ms at which something was last complained of.
    complained: AtomicU64,
}

impl Named for LimitRecord {
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Named for NodeRecord {
    fn name(&self) -> &Name {
        &self.name
    }
}

impl NodeRecord {
    /// Notes that the node is down since `now`, and says whether that is news.
    pub(crate) fn goes_down(&self, now: u64) -> bool {
        self.down_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Notes that the node is up. If that is news, says since when it was down, and how many
    /// requests it did not decide.
    pub(crate) fn comes_up(&self) -> Option<(u64, u64)> {
        if self.down_since.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match self.down_since.swap(0, Ordering::Relaxed) {
            0 => None,
            since => Some((since, self.undecided.swap(0, Ordering::Relaxed))),
        }
    }

    /// Notes a request that the node did not decide.
    pub(crate) fn undecided(&self) {
        self.undecided.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the node has answered.
    pub(crate) fn answers(&self) {
        if self.undecided.load(Ordering::Relaxed) != 0
            && self.down_since.load(Ordering::Relaxed) == 0
        {
            self.undecided.store(0, Ordering::Relaxed);
        }
    }

    /// Whether nothing was complained of in the `pause` ms before `now`; now it is.
    pub(crate) fn may_complain(&self, now: u64, pause: u64) -> bool {
        let last = self.complained.load(Ordering::Relaxed);
        // A clock that steps back is no reason to be silent.
        (now.abs_diff(last) >= pause)
            && self
                .complained
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// The record of this name, which takes the first free one if there is none yet. `None` if there
/// is none free. The caller has the lock.
pub(super) fn find<R: Named>(records: &'static [R], name: &str) -> Option<&'static R> {
    let wanted = Name::words(name);
    let record = records.iter().find(|record| {
        let own = record.name().read();
        own == wanted || own == [0; NAME_WORDS]
    })?;
    record.name().write(wanted);
    Some(record)
}

impl Name {
    fn words(name: &str) -> [u64; NAME_WORDS] {
        let mut words = [0; NAME_WORDS];
        for (word, bytes) in words.iter_mut().zip(name.as_bytes().chunks(8)) {
            let mut padded = [0; 8];
            padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            *word = u64::from_ne_bytes(padded);
        }
        words
    }

    fn read(&self) -> [u64; NAME_WORDS] {
        self.0.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    fn write(&self, words: [u64; NAME_WORDS]) {
        self.0.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }
}
