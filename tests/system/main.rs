//! Tests of the whole system, in groups by what they are about.

mod seen;

/// Requests in NGINX: phases, redirects, rejections, fields, variables, the log.
mod requests {
    mod after_auth;
    mod body;
    mod client;
    mod dry_run;
    mod dry_run_line;
    mod forms;
    mod h2;
    pub mod h3;
    mod headers;
    mod invalid;
    mod jitter;
    mod leave;
    mod log_rate;
    mod once;
    mod satisfy;
}

/// Abuse of HTTP, by clients that no browser would be: a limited location behaves as one without a limit.
mod abuse {
    mod aborts;
    mod inputs;
    mod keys;
    mod site;
    mod storms;
    mod streams;
}

/// Limits: how much they let pass, and their state in Redis and in this machine's memory.
mod limits {
    mod algorithms;
    mod as_limit_req;
    mod block;
    mod busy;
    mod deny;
    mod exact;
    mod leaky;
    mod lease;
    mod lease_fleet;
    mod parameters;
    mod settle;
}

/// Redis as it is run: servers, clusters, sentinels, versions, accounts, TLS, connections.
mod deployments {
    mod cluster;
    mod compat;
    mod credentials;
    mod key_hmac;
    mod link;
    mod redirect;
    mod replay;
    mod resolver;
    mod scripts;
    mod sentinel;
    mod store;
    mod tls;
}

/// Failures: what they cost, and whose fault they are.
mod failures {
    mod blame;
    mod breaker;
    mod chaos;
    mod down;
    mod faults;
    mod flapping;
    mod local;
    mod soak;
}

/// Operation, as an administrator sees it: configurations, reloads, metrics, load.
mod operation {
    mod admin;
    mod admin_page;
    mod config;
    mod control;
    mod load;
    mod metrics;
    mod metrics_page;
    mod monitoring;
    mod page;
    mod plain;
    mod reload;
    mod top;
    mod upgrade;
    mod workers;
}

/// Promises of the documents, examples and scripts.
mod documents {
    mod admin;
    mod api_clients;
    mod capacity;
    mod demo;
    mod examples;
    mod fleet;
    mod kubernetes;
    mod pages;
    mod quick_start;
    mod recipes;
    mod scenarios;
    mod source;
}
