//! Blocks, with what they make or the error that they get.

use super::*;
use crate::conf::directive::tests::directive;
use crate::conf::endpoint;
use crate::rate::SECOND;

/// The lines of a block. It stands on one line of a file, `place`.
fn lines(block: &str) -> Result<StoreLines<'_>, String> {
    let mut store = StoreLines::default();
    for line in block.split(';').filter(|line| !line.trim().is_empty()) {
        let line = directive(line);
        match line.name().map_err(|error| error.to_string())? {
            "server" => {
                let url = line.value().map_err(|error| error.to_string())?;
                let endpoint = endpoint("server", url).map_err(|error| error.to_string())?;
                let place = format!("place of {}", endpoint.address);
                store.add_server(Server { endpoint, targets: Vec::new() }, place);
            }
            _ => read_line(&mut store, &line).map_err(|error| error.to_string())?,
        }
    }
    Ok(store)
}

/// Reads a line that words alone make.
fn read_line<'a>(store: &mut StoreLines<'a>, line: &Directive<'a>) -> Result<(), StoreError> {
    match StoreLine::find(line.name()?)?.sets {
        StoreSets::Value(read) => read(store, line),
        other => panic!("{other:?}"),
    }
}

/// The client's configuration, and whether it uses TLS.
fn read(block: &str) -> Result<(Config, bool), String> {
    let store = lines(block)?;
    let config = store.config("edge").map_err(|error| error.to_string())?;
    let has_tls = store.tls().map_err(|error| error.to_string())?.is_some();
    Ok((config, has_tls))
}

#[track_caller]
fn good(block: &str) -> Config {
    read(block).unwrap_or_else(|error| panic!("{block}: {error}")).0
}

/// Checks the errors of a table of blocks.
#[track_caller]
fn refused(table: &[(&str, &str)]) {
    for (block, expected) in table {
        let error = read(block).err().unwrap_or_else(|| panic!("{block} is valid"));
        assert_eq!(error, *expected, "{block}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

fn invalid(line: &str, value: &str, expected: &str) -> String {
    format!("invalid value \"{value}\" in \"{line}\" directive, it must be {expected}")
}

const A: &str = "server redis://127.0.0.1:1;";

/// Checks that a line cannot have any of these values.
#[track_caller]
fn refused_values(name: &str, values: &[&str], expected: &str) {
    for value in values {
        let block = format!("{A} {name} '{value}';");
        assert_eq!(read(&block).unwrap_err(), invalid(name, value, expected));
    }
}

#[test]
fn the_servers_of_a_store_fit_together() {
    let several = "several servers must be the nodes of a cluster, with \"cluster on\", or sentinels, with \
                   \"sentinel\" and the name of the master";
    let database = "the URL of a cluster's node or of a sentinel has no database";
    let unix = "a cluster or a sentinel cannot be at a unix socket";
    let account = "the servers of a cluster have one account, but their URLs differ in it";
    let partly = "TLS is used for all servers of a store, or for none";
    refused(&[
        ("", "there must be a \"server\", such as redis://127.0.0.1:6379"),
        ("cluster on;", "there must be a \"server\", such as redis://127.0.0.1:6379"),
        ("server redis://127.0.0.1:1; server redis://127.0.0.1:2;", several),
        ("server redis://127.0.0.1:1; server redis://127.0.0.1:2; cluster off;", several),
        (
            "server redis://127.0.0.1:1; cluster on; sentinel m;",
            "\"cluster on\" and \"sentinel\" exclude each other",
        ),
        ("server redis://127.0.0.1:1/2; cluster on;", database),
        ("server redis://127.0.0.1:1/2; sentinel m;", database),
        ("server redis+unix:///x; cluster on;", unix),
        ("server redis+unix:///x; sentinel m;", unix),
        (
            "server redis://127.0.0.1:1; cluster on; database 1;",
            "a cluster has only the database 0",
        ),
        ("server redis://:s3cret@127.0.0.1:1; server redis://127.0.0.1:2; cluster on;", account),
        ("server rediss://127.0.0.1:1; server redis://127.0.0.1:2; cluster on;", partly),
    ]);
    assert_eq!(good(A).kind, Kind::Single);
    assert_eq!(good("server redis+unix:///run/redis.sock; cluster off;").kind, Kind::Single);
    let both = "server redis://127.0.0.1:1; server redis://127.0.0.1:2;";
    let cluster = good(&format!("{both} cluster on; database 0;"));
    assert_eq!((cluster.kind, cluster.servers.len()), (Kind::Cluster, 2));
    let sentinel = good(&format!("{both} sentinel mymaster; cluster off;"));
    assert_eq!(sentinel.kind, Kind::Sentinel("mymaster".to_owned()));
}

#[test]
fn lines_that_are_wrong_are_refused() {
    let arguments = |name: &str, count: usize| {
        format!("invalid number of arguments in \"{name}\" directive: {count}")
    };
    refused(&[
        ("server;", &arguments("server", 0)),
        ("server a b;", &arguments("server", 2)),
        (
            "server 127.0.0.1:1;",
            "invalid URL \"127.0.0.1:1\" in \"server\" directive: must be \
             redis://[user[:password]@]host[:port][/database], the same with rediss:// for TLS, or \
             redis+unix:///path[?db=database]",
        ),
        (
            "server redis://:s3cret@127.0.0.1:x;",
            "invalid URL \"redis://***@127.0.0.1:x\" in \"server\" directive: the port must be a number \
             between 1 and 65535",
        ),
        ("weight 5;", "unknown directive \"weight\" in \"rate_limit_redis_store\""),
        (
            "rate_limit_redis a rate=1r/s;",
            "unknown directive \"rate_limit_redis\" in \"rate_limit_redis_store\"",
        ),
        (
            "ssl_session_reuse on;",
            "unknown directive \"ssl_session_reuse\" in \"rate_limit_redis_store\"",
        ),
        ("password s3cret s3cret;", &arguments("password", 2)),
        ("prefix a prefix b;", &arguments("prefix", 3)),
        ("'';", "unknown directive \"\" in \"rate_limit_redis_store\""),
    ]);
    let values = LINES.iter().filter(|row| matches!(row.sets, StoreSets::Value(_)));
    for StoreLine { name, .. } in values {
        let error = read(&format!("{name};")).unwrap_err();
        assert_eq!(error, arguments(name, 0), "{name}");
    }
}

#[test]
fn a_line_stands_once() {
    for line in [
        "cluster on",
        "sentinel m",
        "user a",
        "database 1",
        "prefix a",
        "connect_timeout 1s",
        "connections 2",
        "max_fails 2",
        "fail_timeout 2s",
        "auth_interval 2s",
        "ssl_verify on",
        "ssl_protocols TLSv1.2",
        "ssl_trusted_certificate a",
        "ssl_name a",
        "ssl_certificate a",
        "ssl_certificate_key a",
        "ssl_crl a",
        "ssl_ciphers a",
    ] {
        let name = line.split(' ').next().expect("a name");
        let expected = format!("\"{name}\" directive is duplicate");
        refused(&[(&format!("{line}; {line};"), &expected)]);
    }
    let password = "\"password\" or \"password_file\" directive is duplicate";
    refused(&[("password s3cret; password s3cret;", password)]);
    let mut store = lines("password s3cret;").expect("a store");
    let error = store.set_password_file("a", "s3cret".to_owned()).unwrap_err();
    assert_eq!(error.to_string(), password);
}

#[test]
fn an_account_is_set_once() {
    let twice = "user and password are set in the URL and by directives";
    refused(&[
        ("server redis://u:s3cret@127.0.0.1:1; user b;", twice),
        ("server redis://:s3cret@127.0.0.1:1; password s3cret;", twice),
        (
            "server redis://127.0.0.1:1/1; database 2;",
            "the database is set in the URL and by \"database\"",
        ),
        (
            "server redis://u@127.0.0.1:1; auth_interval 1m;",
            "\"auth_interval\" needs a password to log in with: \"password_file\", \"password\" or one in the URL",
        ),
        ("password '';", "the value of \"password\" must not be empty"),
    ]);
    refused_values("user", &[""], "a name");
    refused_values("sentinel", &[""], "a name");
    refused_values("database", &["x", "-1", "4294967296", ""], "a number between 0 and 4294967295");
    let account = |block: &str| {
        let account = good(block).account;
        (account.user, account.password, account.database)
    };
    let (u, p) = (Some("u".to_owned()), Some("s3cret".to_owned()));
    assert_eq!(account(A), (None, None, 0));
    assert!(read("server redis://:s3cret@127.0.0.1:1; auth_interval 1m;").is_ok());
    let lines = "server redis://127.0.0.1; user u; password s3cret; database 3;";
    assert_eq!(account(lines), (u.clone(), p.clone(), 3));
    assert_eq!(account("server redis://u:s3cret@127.0.0.1/4;"), (u.clone(), p.clone(), 4));
    // The account in the URL of a sentinel is its own.
    let sentinel = "server redis://u:s3cret@127.0.0.1; sentinel m;";
    assert_eq!(account(sentinel), (None, None, 0));
    assert_eq!(account(&format!("{sentinel} user u; password s3cret; database 2;")), (u, p, 2));
}

#[test]
fn a_password_that_is_no_text_is_not_shown() {
    let line = Directive::new([&b"password"[..], b"s3cret\xff"]);
    let error = read_line(&mut StoreLines::default(), &line).unwrap_err().to_string();
    assert_eq!(error, "the value of \"password\" directive is not UTF-8");
}

#[test]
fn a_password_is_the_first_line_of_its_file() {
    for content in ["p@ss", "p@ss\n", "p@ss\r\nother\n", "\u{feff}p@ss\n"] {
        assert_eq!(password(content), Some("p@ss"), "{content:?}");
    }
    assert_eq!(password(" p \n"), Some(" p "));
    for content in ["", "\n", "\r\n", "\np@ss\n", "\u{feff}"] {
        assert_eq!(password(content), None, "{content:?}");
    }
}

#[test]
fn a_secret_has_at_least_16_bytes() {
    let set = |content: &[u8]| {
        let (mut store, line) = (StoreLines::default(), directive("key_hmac s3cret"));
        store.set_key_hmac(&line, "/etc/s3cret", content).map_err(|error| error.to_string())?;
        Ok::<_, String>(store.key_hmac().expect("an HMAC").hex(b"a"))
    };
    let secret = b"0123456789abcdef";
    let expected = KeyHmac::new(secret).hex(b"a");
    assert_eq!(set(secret), Ok(expected.clone()));
    assert_eq!(set(b"0123456789abcdef\n"), Ok(expected), "without a newline at the end");
    assert_eq!(set(b"0123456789abcdef\n\n"), Ok(KeyHmac::new(b"0123456789abcdef\n").hex(b"a")));
    assert_eq!(set(&[0xff; 20]), Ok(KeyHmac::new(&[0xff; 20]).hex(b"a")), "any bytes");
    for (content, length) in [(&b""[..], 0), (b"\n", 0), (b"0123456789abcde\n", 15)] {
        let error = format!(
            "the secret in \"/etc/s3cret\" of \"key_hmac\" has {length} bytes without a newline at its end, it \
             must have at least 16"
        );
        assert_eq!(set(content), Err(error));
    }
    let (mut store, line) = (StoreLines::default(), directive("key_hmac s3cret"));
    assert!(store.key_hmac().is_none());
    assert_eq!(store.set_key_hmac(&line, "a", secret), Ok(()));
    let error = store.set_key_hmac(&line, "a", secret).unwrap_err().to_string();
    assert_eq!(error, "\"key_hmac\" directive is duplicate");
}

#[test]
fn numbers_and_times_have_bounds() {
    let time = "a time above 0, such as 250ms or 1s";
    refused_values("connect_timeout", &["0", "soon", "-1", ""], time);
    refused_values("fail_timeout", &["0s", "x"], time);
    refused_values("auth_interval", &["0", "x", "-1s"], time);
    refused_values("connections", &["0", "65", "-1", "x"], "a number between 1 and 64");
    refused_values("max_fails", &["-1", "1001", "x"], "a number between 0 and 1000");
    refused_values("cluster", &["yes", "On", ""], "\"on\" or \"off\"");
    refused_values("prefix", &["rl:$host"], "a text without variables");
    let config = good(A);
    assert_eq!((config.connect_timeout, config.connections), (SECOND / 4, 1));
    assert_eq!((config.max_fails, config.fail_timeout, config.auth_interval), (3, SECOND, 0));
    assert_eq!(good(&format!("{A} password a; auth_interval 5m;")).auth_interval, 300 * SECOND);
    let config = good(&format!(
        "{A} connect_timeout 1s; connections 64; max_fails 0; fail_timeout '1m 30s';"
    ));
    assert_eq!((config.connect_timeout, config.connections), (SECOND, 64));
    assert_eq!((config.max_fails, config.fail_timeout), (0, 90 * SECOND));
}

#[test]
fn a_prefix_may_be_empty() {
    let prefix = |block: &str| lines(block).map(|store| store.prefix().to_owned());
    assert_eq!(prefix(A).as_deref(), Ok("rl:"));
    assert_eq!(prefix("prefix my:;").as_deref(), Ok("my:"));
    assert_eq!(prefix("prefix '';").as_deref(), Ok(""));
}

#[test]
fn settings_of_tls_need_a_server_with_tls() {
    let tls = "server rediss://127.0.0.1;";
    let unused = "the \"ssl_\" directives set up TLS, and no server is at rediss://";
    refused(&[
        (
            "server rediss://127.0.0.1; ssl_certificate a;",
            "no \"ssl_certificate_key\" is defined for certificate \"a\"",
        ),
        (
            "server rediss://127.0.0.1; ssl_certificate_key a;",
            "no \"ssl_certificate\" is defined for certificate key \"a\"",
        ),
        (
            "server rediss://127.0.0.1; ssl_crl a; ssl_verify off;",
            "\"ssl_crl\" cannot be checked with \"ssl_verify off\"",
        ),
        ("server redis://127.0.0.1; ssl_verify on;", unused),
        ("server redis+unix:///s; ssl_name a;", unused),
        ("ssl_verify;", "invalid number of arguments in \"ssl_verify\" directive: 0"),
        ("ssl_name a b;", "invalid number of arguments in \"ssl_name\" directive: 2"),
        ("ssl_protocols;", "invalid number of arguments in \"ssl_protocols\" directive: 0"),
    ]);
    refused_values("ssl_verify", &["yes", ""], "\"on\" or \"off\"");
    for name in ["ssl_name", "ssl_certificate", "ssl_certificate_key", "ssl_crl", "ssl_ciphers"] {
        refused_values(name, &[""], "not empty");
        refused_values(name, &["$host"], "without variables");
    }
    let known = "any of \"SSLv2\", \"SSLv3\", \"TLSv1\", \"TLSv1.1\", \"TLSv1.2\", \"TLSv1.3\"";
    refused_values("ssl_protocols", &["TLSv1.4", "tlsv1.2", ""], known);
    let on = invalid("ssl_protocols", "on", known);
    refused(&[("ssl_protocols TLSv1.2 on;", &on)]);

    let store = lines("server rediss://127.0.0.1;").expect("a store");
    let settings = store.tls().unwrap().expect("TLS");
    assert!(settings.verifies() && settings.versions.is_none());
    assert!(!read(A).unwrap().1 && read(tls).unwrap().1);
    let block = "server rediss://127.0.0.1; ssl_verify off; ssl_name redis.internal; ssl_ciphers HIGH:!aNULL; \
                 ssl_protocols TLSv1.2 TLSv1.3 TLSv1.2; ssl_certificate c; ssl_certificate_key k; \
                 ssl_trusted_certificate t;";
    let store = lines(block).expect("a store");
    let settings = store.tls().unwrap().expect("TLS");
    let versions = vec![TlsVersion::Tls12, TlsVersion::Tls13, TlsVersion::Tls12];
    let expected = TlsSettings {
        trusted_certificate: Some("t"),
        verify: Some(false),
        name: Some("redis.internal"),
        certificate: Some("c"),
        certificate_key: Some("k"),
        crl: None,
        versions: Some(versions),
        ciphers: Some("HIGH:!aNULL"),
    };
    assert_eq!(*settings, expected);
    assert!(!settings.verifies());
}

#[test]
fn sentinels_at_the_port_of_redis_are_warned_of() {
    let doubts = |block: &str| lines(block).map(|store| store.doubts().collect::<Vec<_>>());
    let servers = "server redis://127.0.0.1; server redis://127.0.0.2:26379; server \
                   redis://:s3cret@127.0.0.3:6379;";
    let doubt = |address| {
        format!(
            "the sentinel {address} is at the default port of Redis, not of a sentinel (26379) in place of \
             {address}"
        )
    };
    let expected = vec![doubt("127.0.0.1:6379"), doubt("127.0.0.3:6379")];
    assert_eq!(doubts(&format!("{servers} sentinel mymaster;")), Ok(expected));
    for kind in ["", "cluster on;"] {
        assert_eq!(doubts(&format!("server redis://127.0.0.1; {kind}")), Ok(Vec::new()));
    }
}

#[test]
fn servers_at_the_port_of_a_sentinel_are_warned_of() {
    let doubts = |block: &str| lines(block).map(|store| store.doubts().collect::<Vec<_>>());
    let servers = "server redis://127.0.0.1:26379; server redis://127.0.0.2;";
    let doubt = "the server 127.0.0.1:26379 is at the default port of a sentinel, and there is no \"sentinel\" with \
                 the name of the master in place of 127.0.0.1:26379";
    for kind in ["", "cluster on;"] {
        assert_eq!(doubts(&format!("{servers} {kind}")), Ok(vec![doubt.to_owned()]));
    }
    assert_eq!(doubts("server redis+unix:///26379;"), Ok(Vec::new()));
}

#[test]
fn times_that_lack_their_unit_are_warned_of() {
    let doubt = |line: &str| line_doubt(&directive(line));
    for (value, seconds) in [("250", 250), ("11", 11), ("2000", 2_000)] {
        let expected = format!(
            "\"connect_timeout {value}\" lets connecting take {seconds} s, and a number without a unit is one of \
             seconds"
        );
        assert_eq!(doubt(&format!("connect_timeout {value}")), Some(expected));
    }
    for line in [
        "connect_timeout 250ms",
        "connect_timeout 30s",
        "connect_timeout 10",
        "connect_timeout x",
        "connect_timeout",
        "fail_timeout 250",
        "connections 64",
    ] {
        assert_eq!(doubt(line), None, "{line}");
    }
}

#[test]
fn a_password_that_may_be_meant_as_a_variable_is_warned_of() {
    let doubt = line_doubt(&directive("password $REDIS_PASSWORD"));
    // The password itself is in no log.
    let expected =
        "\"password\" begins with \"$\", and is taken as it is written: it has no variables";
    assert_eq!(doubt.as_deref(), Some(expected));
    for line in ["password s3cr$t", "password", "user $name"] {
        assert_eq!(line_doubt(&directive(line)), None, "{line}");
    }
}

#[test]
fn names_are_unique() {
    let names: std::collections::BTreeSet<_> = LINES.iter().map(|row| row.name).collect();
    assert_eq!((names.len(), LINES.len()), (22, 22));
}

/// A line with the default of its row makes what there is without it.
#[test]
fn defaults_change_nothing() {
    let a = "server rediss://127.0.0.1:1;";
    let made = |block: &str| {
        let store = lines(block).expect(block);
        let tls = store.tls().expect(block).expect("TLS");
        let config = format!("{:?}", store.config("edge").expect(block));
        let tls = (tls.verifies(), tls.versions().to_vec(), tls.ciphers().to_owned());
        (config, store.prefix().to_owned(), tls)
    };
    for StoreLine { name, default, .. } in LINES {
        if let Some(default) = default {
            assert_eq!(made(&format!("{a} {name} {default};")), made(a), "{name} {default}");
        }
    }
    assert_eq!(LINES.iter().filter(|row| row.default.is_some()).count(), 10);
}
