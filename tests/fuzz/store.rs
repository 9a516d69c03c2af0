//! The lines of a store: a configuration that is accepted is within its bounds, and a client can be made of it.

use std::sync::{Arc, LazyLock};

use rate_limit_core::client::{Client, Config, Kind, Server};
use rate_limit_core::conf::store::{StoreError, StoreLine, StoreLines, StoreSets, password};
use rate_limit_core::conf::{Directive, endpoint};
use rate_limit_core::redis::script::Scripts;

use crate::words::{directive, lines};

static SCRIPTS: LazyLock<Arc<Scripts>> = LazyLock::new(|| Arc::new(Scripts::new()));

/// A password that no message may show, and that no other part of an input is likely to hold.
const SECRET: &str = "s3cr3t-p4ss";

pub fn run(data: &[u8]) {
    let lines = lines(data);
    let mut store = StoreLines::default();
    for words in &lines {
        let line = directive(words);
        if let Err(error) = read(&mut store, &line) {
            // A name that is not known is shown.
            let shows = words.len() == 2 && words[0] == b"password";
            assert!(!shows || !error.to_string().contains(SECRET), "{error}");
        }
    }
    let prefix = store.prefix();
    assert!(!prefix.contains('$'));
    for doubt in store.doubts() {
        assert!(!doubt.is_empty());
    }
    if let Ok(Some(tls)) = store.tls() {
        let _ = tls.verifies();
    }
    match store.config("store") {
        Ok(config) => check(config),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Reads a line as the module does, which also reads the files of a password and a secret.
fn read<'a>(store: &mut StoreLines<'a>, line: &Directive<'a>) -> Result<(), StoreError> {
    match StoreLine::find(line.name()?)?.sets {
        StoreSets::Server => {
            if let Ok(endpoint) = endpoint("server", line.value()?) {
                let server = Server { endpoint, targets: Vec::new() };
                store.add_server(server, "nginx.conf:1".to_owned());
            }
            Ok(())
        }
        StoreSets::PasswordFile => match password(line.value()?) {
            Some(found) => {
                assert!(!found.contains('\n') && !found.is_empty());
                store.set_password_file("file", found.to_owned())
            }
            None => Ok(()),
        },
        StoreSets::KeyHmac => store.set_key_hmac(line, "file", line.value()?.as_bytes()),
        StoreSets::Value(read) => read(store, line),
    }
}

fn check(config: Config) {
    assert!(config.servers.len() == 1 || config.kind != Kind::Single && !config.servers.is_empty());
    assert!((1..=64).contains(&config.connections) && config.max_fails <= 1_000);
    assert!(config.connect_timeout > 0 && config.fail_timeout > 0);
    let nodes = config.servers.len();
    let mut client = Client::new(Config { longest_timeout: 1_000, ..config }, Arc::clone(&SCRIPTS));
    client.start(0);
    assert!(client.nodes().count() <= nodes && client.poll_action().is_some());
}
