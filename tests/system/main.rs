//! Tests of the whole system, one module for each feature.

mod algorithms;
mod body;
mod client;
mod config;
mod down;
mod dry_run;
mod exact;
mod forms;
mod h2;
mod h3;
mod headers;
mod leaky;
mod leave;
mod limits;
mod link;
mod load;
mod once;
mod plain;
mod readme;
mod reload;
mod replay;
mod satisfy;
mod scripts;
mod seen;
mod smoke;
mod tls;
