//! A deterministic simulation: servers, a network and a clock, all of which follow from a seed.

mod queue;
mod resp;

mod database;
mod script;

mod journal;
mod server;
mod slots;

mod cluster;
mod deployment;
mod replication;
mod sentinel;

mod fault;
mod network;
mod world;
