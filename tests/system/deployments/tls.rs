//! TLS to Redis: which certificates are required, and what happens without them.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener};
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{
    Authority, ClusterConf, Conf, Identity, Library, Load, MASTER_NAME, Nginx, PATIENCE, Recorder,
    Redis, SentinelConf, Usage, wait_until,
};

const LOCAL: &str = "DNS:localhost,IP:127.0.0.1,IP:::1";

/// Limits by the store `edge`, of which `lines` are the whole block.
fn limited(lines: &str) -> Conf {
    let generous = if lines.contains("connect_timeout") { "" } else { "connect_timeout 30s;" };
    Conf::new()
        .decisions()
        .http(&format!("rate_limit_redis_store edge {{ {lines} {generous} }}"))
        .http("rate_limit_redis_pass edge;\nrate_limit_redis_timeout 5s;")
        .http("rate_limit_redis_log_level info;\nkeepalive_requests 1000000;")
        .server("location / { rate_limit_redis $arg_k rate=1r/m capacity=99; }")
}

fn server(url: &str, port: u16) -> String {
    format!("server rediss://{url}:{port};")
}

fn trust(authority: &Authority) -> String {
    format!("ssl_trusted_certificate {};", authority.certificate())
}

fn introduce(identity: &Identity) -> String {
    format!("ssl_certificate {}; ssl_certificate_key {};", identity.certificate, identity.key)
}

/// A Redis with a certificate for `LOCAL`, and the authority that signed it.
fn redis(lines: &[&str]) -> (Authority, Redis) {
    let authority = Authority::new();
    let redis = Redis::start_tls(&authority, &authority.issue(LOCAL), lines);
    (authority, redis)
}

#[track_caller]
fn decides(conf: &Conf) -> Nginx {
    let nginx = conf.start();
    assert_eq!([(); 2].map(|()| nginx.get("/?k=a").remaining()), [Some(98), Some(97)]);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
    nginx
}

/// No request is decided, and `reason` is logged once.
#[track_caller]
fn refuses(conf: &Conf, reason: &str) -> Nginx {
    let nginx = conf.start();
    for _ in 0..20 {
        assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
        sleep(Duration::from_millis(10));
    }
    // Some attempts later.
    sleep(Duration::from_millis(500));
    let errors = nginx.logged("[error]");
    assert!(
        errors.len() == 1 && errors[0].contains(" is down: ") && errors[0].contains(reason),
        "{errors:?}"
    );
    nginx
}

/// A server that shows `identity` gets no byte over TLS.
#[track_caller]
fn shows_nothing(identity: &Identity, url: &str, lines: &str, reason: &str) {
    sends_it_nothing(&Recorder::start(identity), url, lines, reason);
}

#[track_caller]
fn sends_it_nothing(recorder: &Recorder, url: &str, lines: &str, reason: &str) {
    let url = format!("server rediss://user:secret@{url}:{};", recorder.port());
    refuses(&limited(&format!("{url} {lines}")), reason);
    assert_eq!(recorder.record(), "");
}

#[test]
fn decides_over_tls() {
    let (authority, redis) = redis(&["user limiter on >p@ss ~* +@all"]);
    let url = format!("server rediss://limiter:p%40ss@localhost:{}/5;", redis.tls_port());
    // One worker: its connection is counted.
    let nginx = decides(&limited(&format!("{url} {}", trust(&authority))).workers(1));
    let clients = redis.clients();
    assert!(clients.len() == 1 && clients[0].contains(" db=5 "), "{clients:?}");
    // Over the port that speaks TLS, and with all that is sent at once after a wait.
    assert!(clients[0].contains(&format!("laddr=127.0.0.1:{} ", redis.tls_port())), "{clients:?}");
    let paths: Vec<String> = (0..300).map(|n| format!("/?k=b{n}")).collect();
    let mut waiting: Vec<_> = paths.iter().map(|_| nginx.http()).collect();
    for (http, path) in waiting.iter_mut().zip(&paths) {
        http.send_raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    }
    for http in &mut waiting {
        assert_eq!(http.read_response().remaining(), Some(98));
    }
}

#[test]
fn trusts_the_system_by_default() {
    let (authority, redis) = redis(&[]);
    let conf = Conf::new()
        .decisions()
        .store(format!("rediss://localhost:{}", redis.tls_port()))
        .server("location / { rate_limit_redis $arg_k rate=1r/m capacity=99; }");
    decides(&conf.clone().env("SSL_CERT_FILE", &authority.certificate()));
    refuses(&conf, "certificate");
    // The named certificates are trusted instead of the system's, not beside them.
    let stranger = Authority::new();
    let other = limited(&format!("{} {}", server("localhost", redis.tls_port()), trust(&stranger)));
    refuses(&other.env("SSL_CERT_FILE", &authority.certificate()), "certificate");
}

/// Between the certificates of a server and of a public authority there may be several others.
#[test]
fn a_certificate_of_a_subordinate_authority_is_trusted() {
    let root = Authority::new();
    let middle = root.subordinate();
    let lowest = middle.subordinate();
    let identity = lowest.issue(LOCAL);
    let chain = [&identity.certificate, &lowest.certificate(), &middle.certificate()];
    let chain = chain.map(|file| fs::read_to_string(file).expect("a certificate")).concat();
    fs::write(&identity.certificate, chain).expect("write the chain");
    let redis = Redis::start_tls(&root, &identity, &[]);
    let url = server("localhost", redis.tls_port());
    decides(&limited(&format!("{url} {}", trust(&root))));
    let stranger = Authority::new();
    refuses(&limited(&format!("{url} {}", trust(&stranger))), "certificate");
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let reason = "SSL certificate verify error: (20:unable to get local issuer certificate)";
    shows_nothing(&theirs.issue(LOCAL), "localhost", &trust(&ours), reason);
}

#[test]
fn a_self_signed_certificate_is_refused() {
    let authority = Authority::new();
    let reason = "SSL certificate verify error: (18:self-signed certificate)";
    shows_nothing(&authority.self_signed(LOCAL), "localhost", &trust(&authority), reason);
}

#[test]
fn a_certificate_that_has_expired_is_refused() {
    let authority = Authority::new();
    let reason = "SSL certificate verify error: (10:certificate has expired)";
    shows_nothing(&authority.issue_expired(LOCAL), "localhost", &trust(&authority), reason);
}

/// Failures for which OpenSSL has no message.
#[test]
fn a_server_without_a_certificate_is_refused() {
    let recorder = Recorder::start_anonymous();
    let ciphers = "ssl_ciphers aNULL:@SECLEVEL=0;";
    sends_it_nothing(&recorder, "localhost", ciphers, "SSL certificate is missing");
    let url = format!("server rediss://user:secret@localhost:{};", recorder.port());
    let _nginx = limited(&format!("{url} {ciphers} ssl_verify off;")).start();
    wait_until(PATIENCE, || recorder.record().contains("secret"), "the password");
}

#[test]
fn a_certificate_of_another_name_is_refused() {
    let authority = Authority::new();
    let identity = authority.issue("DNS:redis.internal,DNS:127.0.0.1,IP:127.0.0.2");
    let trust = trust(&authority);
    for (url, more, name) in [
        ("localhost", "", "localhost"),
        // A name does not stand for an address.
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "ssl_name redis.example;", "redis.example"),
        ("127.0.0.1", "ssl_name internal;", "internal"),
        ("127.0.0.1", "ssl_name 127.0.0.3;", "127.0.0.3"),
    ] {
        let reason = format!("SSL certificate does not match \"{name}\"");
        shows_nothing(&identity, url, &format!("{trust} {more}"), &reason);
    }
}

#[test]
fn a_certificate_that_is_revoked_is_refused() {
    let authority = Authority::new();
    let (good, bad) = (authority.issue(LOCAL), authority.issue(LOCAL));
    authority.revoke(&bad);
    let lines = format!("{} ssl_crl {};", trust(&authority), authority.revoked());
    let reason = "SSL certificate verify error: (23:certificate revoked)";
    shows_nothing(&bad, "localhost", &lines, reason);
    let redis = Redis::start_tls(&authority, &good, &[]);
    decides(&limited(&format!("{} {lines}", server("localhost", redis.tls_port()))));
}

#[test]
fn nothing_is_verified_only_with_ssl_verify_off() {
    let authority = Authority::new();
    let identity = authority.issue_expired("DNS:redis.internal");
    let recorder = Recorder::start(&identity);
    let url = format!("server rediss://user:secret@localhost:{};", recorder.port());
    let _nginx = limited(&format!("{url} ssl_verify off;")).start();
    // The test of the tests above: this is what they would see.
    wait_until(PATIENCE, || recorder.record().contains("secret"), "the password");
    assert!(recorder.record().starts_with("*3\r\n$4\r\nAUTH\r\n"));
    let redis = Redis::start_tls(&authority, &identity, &[]);
    decides(&limited(&format!("{} ssl_verify off;", server("localhost", redis.tls_port()))));
    let on = format!("{} ssl_verify on;", server("localhost", redis.tls_port()));
    refuses(&limited(&on), "SSL certificate verify error");
}

#[test]
fn closed_rejects_what_was_not_decided() {
    let (_, redis) = redis(&[]);
    let conf = limited(&server("localhost", redis.tls_port()));
    let nginx = conf.server("rate_limit_redis_on_error closed;").start();
    let response = nginx.get("/?k=a");
    assert_eq!((response.status, response.decision()), (503, "ERROR_REJECTED none"));
    assert_eq!(redis.calls("evalsha"), 0);
}

#[test]
fn a_certificate_may_hold_names_and_addresses() {
    let authority = Authority::new();
    let identity = authority.issue("DNS:redis.internal,DNS:*.redis.internal,IP:127.0.0.1,IP:::1");
    let redis = Redis::start_tls(&authority, &identity, &["bind 127.0.0.1 ::1"]);
    for (host, more) in [
        ("127.0.0.1", ""),
        ("[::1]", ""),
        ("localhost", "ssl_name redis.internal;"),
        ("localhost", "ssl_name REDIS.internal;"),
        ("localhost", "ssl_name a.redis.internal;"),
        ("localhost", "ssl_name 127.0.0.1;"),
        ("localhost", "ssl_name ::1;"),
    ] {
        let lines = format!("{} {} {more}", server(host, redis.tls_port()), trust(&authority));
        let nginx = limited(&lines).start();
        assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis", "{lines}");
    }
}

/// The first bytes that come on a connection, which is then left alone.
fn first_bytes(lines: &str, host: &str) -> (Vec<u8>, Nginx) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = server(host, listener.local_addr().unwrap().port());
    let nginx = limited(&format!("{url} {lines} connect_timeout 1s;")).start();
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = vec![0; 4096];
    let count = stream.read(&mut bytes).unwrap();
    bytes.truncate(count);
    nginx.wait_for_error_log("timed out while SSL handshaking");
    (bytes, nginx)
}

#[test]
fn sends_the_name_unless_it_is_an_address() {
    let holds = |bytes: &[u8], name: &str| bytes.windows(name.len()).any(|w| w == name.as_bytes());
    for (lines, host, name, said) in [
        ("", "localhost", "localhost", true),
        ("ssl_verify off;", "localhost", "localhost", true),
        ("ssl_name redis.internal;", "127.0.0.1", "redis.internal", true),
        ("", "127.0.0.1", "127.0.0.1", false),
        ("ssl_name ::1;", "localhost", "localhost", false),
    ] {
        let (bytes, _nginx) = first_bytes(lines, host);
        assert_eq!(bytes[0], 0x16, "no handshake");
        assert_eq!(holds(&bytes, name), said, "{lines} {host}");
    }
}

#[test]
fn a_server_may_require_a_certificate() {
    let authority = Authority::new();
    let identity = authority.issue(LOCAL);
    for (version, reason) in [("TLSv1.3", "certificate required"), ("TLSv1.2", "handshake failure")]
    {
        let protocols = format!("tls-protocols {version}");
        let lines = ["tls-auth-clients yes", &protocols];
        let redis = Redis::start_tls(&authority, &identity, &lines);
        let lines = format!("{} {}", server("localhost", redis.tls_port()), trust(&authority));
        let nginx =
            decides(&limited(&format!("{lines} {}", introduce(&authority.issue("DNS:nginx")))));
        drop(nginx);
        refuses(&limited(&lines), reason);
        let stranger = Authority::new();
        let lines = format!("{lines} {}", introduce(&stranger.issue("DNS:nginx")));
        refuses(&limited(&lines), "unknown ca");
    }
}

#[test]
fn versions_and_ciphers_must_be_shared() {
    let ciphers = "tls-ciphers ECDHE-ECDSA-AES128-GCM-SHA256";
    let (authority, redis) = redis(&["tls-protocols TLSv1.2", ciphers]);
    let lines = format!("{} {}", server("localhost", redis.tls_port()), trust(&authority));
    for good in [
        "ssl_protocols TLSv1.2;",
        "ssl_protocols TLSv1.3 TLSv1.2;",
        "ssl_ciphers ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256;",
    ] {
        let nginx = limited(&format!("{lines} {good}")).start();
        assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis", "{good}");
    }
    refuses(&limited(&format!("{lines} ssl_protocols TLSv1.3;")), "alert protocol version");
    let other = "ssl_ciphers ECDHE-ECDSA-AES256-GCM-SHA384;";
    refuses(&limited(&format!("{lines} {other}")), "alert handshake failure");
}

/// TLS on one side only: no request waits longer than an attempt to connect may take.
#[test]
fn one_side_speaks_tls_and_the_other_does_not() {
    let (authority, redis) = redis(&[]);
    let trust = trust(&authority);
    for url in [
        format!("rediss://localhost:{}", redis.port()),
        format!("redis://localhost:{}", redis.tls_port()),
    ] {
        let lines = if url.starts_with("rediss") { trust.as_str() } else { "" };
        // Random bytes of the handshake decide whether Redis takes them for a command.
        for _ in 0..4 {
            let nginx = limited(&format!("server {url}; {lines} connect_timeout 250ms;")).start();
            let start = Instant::now();
            assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
            let took = start.elapsed();
            assert!(took < Duration::from_millis(2_500), "{url} took {took:?}");
            let errors = nginx.logged("[error]");
            assert!(errors.len() == 1 && errors[0].contains(" is down: "), "{errors:?}");
        }
    }
    assert_eq!(redis.calls("evalsha"), 0);
}

/// Whether nginx is connected to `redis`, and only over the port that speaks TLS.
fn only_over_tls(redis: &Redis) -> bool {
    let clients = redis.clients();
    let mut ours = clients.iter().filter(|line| line.contains("name=nginx_rate")).peekable();
    let port = format!("laddr=127.0.0.1:{} ", redis.tls_port());
    ours.peek().is_some() && ours.all(|line| line.contains(&port))
}

#[test]
fn sentinels_and_their_master_are_spoken_to_over_tls() {
    let authority = Authority::new();
    let identity = authority.issue("IP:127.0.0.1");
    let mut sentinels = SentinelConf::new(1).secured(&authority, &identity).start();
    let urls = (0..3).map(|n| server("127.0.0.1", sentinels.sentinel(n).tls_port()));
    let lines = format!("sentinel {MASTER_NAME}; {}", trust(&authority));
    let nginx = limited(&format!("{} {lines}", urls.collect::<String>())).start();
    let decided = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, decided, "decisions by Redis");
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
    assert!(only_over_tls(sentinels.server(sentinels.master())));
    let old = sentinels.master();
    sentinels.kill9_master();
    let new = sentinels.wait_for_failover(old);
    wait_until(PATIENCE, decided, "decisions by the new master");
    assert!(only_over_tls(sentinels.server(new)));
}

#[track_caller]
fn is_decided_by_all(nginx: &Nginx) {
    let mut http = nginx.http();
    // The first may come before the slots are known.
    wait_until(PATIENCE, || http.get("/?k=a").decision() == "PASSED redis", "a decision");
    for key in 0..100 {
        assert_eq!(http.get(&format!("/?k=b{key}")).decision(), "PASSED redis");
    }
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// Three nodes that speak TLS.
fn cluster_conf(authority: &Authority, identity: &Identity) -> ClusterConf {
    ClusterConf::steady(3, 0).secured(authority, identity)
}

#[test]
fn every_node_of_a_cluster_is_verified() {
    let authority = Authority::new();
    let identity = authority.issue("DNS:redis.internal,IP:127.0.0.1");
    let cluster = cluster_conf(&authority, &identity).start();
    let seed = server("127.0.0.1", cluster.node(0).tls_port());
    let lines = format!("{seed} cluster on; {}", trust(&authority));
    is_decided_by_all(&limited(&lines).start());
    let nginx = limited(&format!("{lines} ssl_name redis.internal;")).start();
    is_decided_by_all(&nginx);
    assert!((0..3).all(|node| only_over_tls(cluster.node(node))));
    let nginx = limited(&format!("{lines} ssl_name redis.example;")).start();
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    let errors = nginx.logged("[error]");
    let reason = "SSL certificate does not match \"redis.example\"";
    assert!(errors.len() == 1 && errors[0].contains(reason), "{errors:?}");
}

/// The nodes announce names, which the certificates hold, and not the addresses. The names cannot be
/// resolved here: then the announced addresses are used, and the names are verified.
#[test]
fn the_names_of_a_cluster_are_verified_where_addresses_are_used() {
    let authority = Authority::new();
    let names = ["localhost", "node0.test", "node1.test", "node2.test"];
    let identity = authority.issue(&names.map(|name| format!("DNS:{name}")).join(","));
    let cluster = cluster_conf(&authority, &identity).hostnames("node{n}.test").start();
    let seed = server("localhost", cluster.node(0).tls_port());
    let nginx = limited(&format!("{seed} cluster on; {}", trust(&authority))).start();
    is_decided_by_all(&nginx);
    assert!((0..3).all(|node| only_over_tls(cluster.node(node))));
}

/// How many handshakes have resumed a session, as OpenSSL reports, and how many there were.
fn handshakes(nginx: &Nginx) -> (usize, usize) {
    (nginx.logged("SSL reused session").len(), nginx.logged("SSL: TLSv1.").len())
}

#[test]
fn the_next_connection_resumes_the_session() {
    let authority = Authority::new();
    let identity = authority.issue(LOCAL);
    for version in ["TLSv1.2", "TLSv1.3"] {
        let protocols = format!("tls-protocols {version}");
        let redis = Redis::start_tls(&authority, &identity, &["tls-auth-clients yes", &protocols]);
        let (trust, us) = (trust(&authority), introduce(&identity));
        let lines = format!("{} {trust} {us}", server("localhost", redis.tls_port()));
        // One worker: each has a session of its own.
        let nginx = limited(&lines).workers(1).debug().start();
        assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
        assert_eq!(handshakes(&nginx), (0, 1), "{version}");
        // Each session that is resumed gives way to the next.
        for number in 1..4 {
            sleep(Duration::from_millis(1_200));
            redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
            assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
            assert_eq!(handshakes(&nginx), (number, number + 1), "{version}");
        }
    }
}

#[test]
fn a_session_does_not_outlive_what_was_verified() {
    let (authority, redis) = redis(&[]);
    let lines = format!("{} {}", server("localhost", redis.tls_port()), trust(&authority));
    // One worker: each finds out by itself that the certificate is another.
    let nginx = limited(&lines).workers(1).start();
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    let stranger = Authority::new();
    let Identity { certificate, key } = stranger.issue(LOCAL);
    redis.command::<()>(&["CONFIG", "SET", "tls-cert-file", &certificate, "tls-key-file", &key]);
    redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    nginx.wait_for_error_log("is down: SSL certificate verify error");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
}

/// OpenSSL verifies nothing when it resumes a session, of which each makes another.
#[test]
fn a_session_does_not_outlive_the_certificate() {
    const SECONDS: u64 = 8;
    let (authority, start) = (Authority::new(), Instant::now());
    let identity = authority.issue_for(LOCAL, SECONDS);
    let redis = Redis::start_tls(&authority, &identity, &[]);
    let lines = format!("{} {}", server("localhost", redis.tls_port()), trust(&authority));
    let nginx = limited(&lines).workers(1).start();
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    sleep(Duration::from_secs(SECONDS + 1).saturating_sub(start.elapsed()));
    redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    nginx.wait_for_error_log("certificate has expired");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
}

#[test]
fn a_server_that_stops_within_the_handshake_is_down() {
    let (authority, mut redis) = redis(&[]);
    let lines = format!("{} {}", server("localhost", redis.tls_port()), trust(&authority));
    // Longer than a busy machine keeps a request waiting, and shorter than the connection may be silent.
    let conf =
        limited(&format!("{lines} connect_timeout 1s;")).server("rate_limit_redis_timeout 700ms;");
    redis.stop_signal();
    let nginx = conf.start();
    let start = Instant::now();
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    nginx.wait_for_error_log("is down: timed out while SSL handshaking");
    redis.cont();
    let recovered = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, recovered, "decisions by Redis");
    let errors = nginx.logged("redis localhost");
    let of = |text: &str| errors.iter().filter(|line| line.contains(text)).count();
    // A busy machine may have been late once more.
    assert_eq!((of(" is down: "), of(" is up again")), (1, 1), "{errors:?}");
    assert!(errors[0].contains(" is down: "), "{errors:?}");
    // And once more in the middle of things, with more to send than the socket takes.
    let load = Load::start(nginx.addr(), "/?k=b", 8);
    let before = redis.calls("evalsha");
    wait_until(PATIENCE, || redis.calls("evalsha") > before + 50, "decisions by Redis");
    redis.stop_signal();
    wait_until(PATIENCE, || nginx.logged(" is down: ").len() == 2, "the second outage");
    sleep(Duration::from_millis(1_500));
    redis.cont();
    let recovered = || nginx.get("/?k=c").decision() == "PASSED redis";
    wait_until(PATIENCE, recovered, "decisions by Redis");
    assert_eq!(load.stop().failures, Vec::<String>::new());
    let errors = nginx.logged(" is down: ");
    // By the requests that it keeps waiting; or, if the worker is so busy that their waits are its own, by
    // the silence of the connection.
    let reasons = ["no reply within 700 ms", "no reply for 1000 ms"];
    assert!(errors.len() == 2 && reasons.iter().any(|it| errors[1].contains(it)), "{errors:?}");
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the descriptors of a worker").count()
}

#[test]
fn connections_that_were_lost_leave_nothing_behind() {
    const STORES: usize = 20;
    let (authority, redis) = redis(&[]);
    let url = server("localhost", redis.tls_port());
    // One worker: what it has is counted.
    let mut conf = limited(&format!("{url} {}", trust(&authority))).workers(1);
    for store in 0..STORES {
        conf = conf
            .http(&format!(
                "rate_limit_redis_store s{store} {{ {url} {} connect_timeout 30s; }}",
                trust(&authority)
            ))
            .server(&format!("location = /{store} {{ rate_limit_redis k rate=1r/d name=n{store};"))
            .server(&format!("rate_limit_redis_pass s{store}; try_files /index.html =404; }}"));
    }
    let blocks = Library::counted_blocks();
    let nginx = conf.env("LD_PRELOAD", blocks.path()).start();
    let worker = nginx.worker_pids()[0];
    let mut http = nginx.http();
    let mut reconnect = |times: usize| {
        for _ in 0..times {
            redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
            // Last those that are rejected: a response that passes has a file open for a moment.
            let paths = (0..STORES).map(|store| format!("/{store}"));
            for path in std::iter::once("/?k=a".to_owned()).chain(paths) {
                // One that was sent as the connection was lost is not decided.
                let decided = || http.get(&path).decision().ends_with(" redis");
                wait_until(PATIENCE, decided, "decisions by Redis");
            }
        }
    };
    // In the first rounds memory is taken that the worker keeps for later ones.
    reconnect(5);
    let before = Usage::of(worker);
    reconnect(10);
    let after = Usage::of(worker);
    assert_eq!(after.descriptors, before.descriptors);
    // There were 210 connections: each takes tens of kB, and its session more than one.
    assert!(after.bytes < before.bytes + 50_000, "{before:?} {after:?}");
}

#[test]
fn attempts_that_failed_leave_nothing_behind() {
    let (_authority, redis) = redis(&[]);
    let stranger = Authority::new();
    let lines = format!("{} {}", server("localhost", redis.tls_port()), trust(&stranger));
    let nginx = limited(&lines).start();
    let worker = nginx.worker_pids()[0];
    nginx.wait_for_error_log("SSL certificate verify error");
    let before = descriptors(worker);
    sleep(Duration::from_secs(4));
    // One attempt may be under way.
    assert!(descriptors(worker) <= before + 1);
    assert_eq!(nginx.logged("[error]").len(), 1);
}

#[test]
fn reloads_under_load_lose_nothing_over_tls() {
    let (authority, redis) = redis(&[]);
    let lines = format!("{} {}", server("localhost", redis.tls_port()), trust(&authority));
    let mut nginx = limited(&lines).workers(2).start();
    let master = nginx.pid();
    let load = Load::start(nginx.addr(), "/?k=a", 8);
    nginx.reload();
    let before = descriptors(master);
    for _ in 0..5 {
        sleep(Duration::from_millis(100));
        nginx.reload();
    }
    let tally = load.stop();
    assert_eq!(tally.failures, Vec::<String>::new());
    assert!(tally.total() > 100, "{tally:?}");
    // The master closes those to a worker a moment after it has ended.
    let closed = || descriptors(master) <= before;
    wait_until(PATIENCE, closed, "as many descriptors as before");
    wait_until(PATIENCE, || redis.clients().len() == 2, "one connection for each worker");
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// The clients of a fleet start at once, and so many handshakes take Redis longer than `connect_timeout`.
/// Connections that it has accepted are waited for: given up, they would be work for it all the same.
#[test]
fn many_clients_may_connect_at_once() {
    const WORKERS: usize = 4;
    const CONNECTIONS: usize = 64;
    let (authority, mut redis) = redis(&[]);
    let lines = format!(
        "{} {} connections {CONNECTIONS}; connect_timeout 50ms;",
        server("127.0.0.1", redis.tls_port()),
        trust(&authority)
    );
    let made = |redis: &Redis| -> usize {
        redis.info("total_connections_received").parse().expect("a number")
    };
    let before = made(&redis);
    let nginx = limited(&lines)
        .workers(WORKERS)
        .server("location = /metrics { rate_limit_redis_metrics prometheus; }")
        .start();
    let ready = format!("state=\"ready\"}} {}", WORKERS * CONNECTIONS);
    let are_ready = || nginx.get("/metrics").text().contains(&ready);
    // Some for the harness.
    let most = WORKERS * CONNECTIONS * 13 / 10 + 8;
    wait_until(PATIENCE, are_ready, "all connections");
    let first = made(&redis) - before;
    assert!(first <= most, "{first} connections at the start");
    redis.kill9();
    redis.restart();
    wait_until(PATIENCE, are_ready, "all connections again");
    let second = made(&redis);
    assert!(second <= most, "{second} connections after a restart");
}
