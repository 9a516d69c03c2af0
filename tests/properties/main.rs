//! The promises of each algorithm, tried on random histories of its reference.

mod history;

mod allocation;
mod at_once;
mod blocks;
mod calendar;
mod cell;
mod clock;
mod corrections;
mod debts;
mod deny;
mod drift;
mod even;
mod give_back;
mod leaky;
mod lease;
mod overrides;
mod promises;
mod window;
