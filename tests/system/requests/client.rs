//! `$rate_limit_redis_client`: the client's address, made to be a key.

use std::net::{Ipv6Addr, SocketAddr};

use harness::{Conf, Http, Nginx, Redis, run};

use crate::seen::{StartConnected as _, keys, remaining, tokens};

/// A server that shows the client's address, and trusts the one that a client claims.
fn with_realip() -> Conf {
    Conf::new()
        .http("add_header X-Client \"$rate_limit_redis_client\" always;")
        .http("set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For;")
}

/// The key of a client that claims to come from `address`.
fn client(nginx: &Nginx, path: &str, address: &str) -> String {
    let mut http = nginx.http();
    http.send("GET", path, &[("X-Forwarded-For", address)]);
    http.read_response().header("X-Client").expect("the client").to_owned()
}

fn on_v6(nginx: &Nginx) -> Http {
    Http::connect(SocketAddr::from((Ipv6Addr::LOCALHOST, nginx.port())))
}

#[test]
fn addresses_are_whole_or_cut_to_64_bits() {
    let nginx = with_realip().start();
    let table = [
        ("192.0.2.1", "192.0.2.1"),
        ("254.255.255.255", "254.255.255.255"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:DB8:1:3::1", "2001:db8:1:3::/64"),
        ("2001:db8::1", "2001:db8::/64"),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff::/64"),
        ("fe80::1", "fe80::/64"),
        ("::1", "::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:c000:207", "192.0.2.7"),
        ("[2001:db8:1:4::1]:4711", "2001:db8:1:4::/64"),
        ("192.0.2.9:4711", "192.0.2.9"),
    ];
    for (address, expected) in table {
        assert_eq!(client(&nginx, "/", address), expected, "{address}");
    }
    // A text that is no address is not believed.
    assert_eq!(client(&nginx, "/", "nobody"), "127.0.0.1");
    assert_eq!(nginx.get("/").header("X-Client"), Some("127.0.0.1"));
}

#[test]
fn a_prefix_of_ipv6_has_any_length() {
    let location = |bits: u32| {
        format!(
            "location /{bits}/ {{ rate_limit_redis_ipv6_prefix {bits}; alias {{prefix}}/html/; }}"
        )
    };
    let all = [1, 47, 48, 56, 63, 64, 65, 127, 128];
    let nginx = with_realip().server(&all.map(location).concat()).start();
    let address = "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff";
    let table = [
        (1, "::/1"),
        (47, "2001:db8:fffe::/47"),
        (48, "2001:db8:ffff::/48"),
        (56, "2001:db8:ffff:ff00::/56"),
        (63, "2001:db8:ffff:fffe::/63"),
        (64, "2001:db8:ffff:ffff::/64"),
        (65, "2001:db8:ffff:ffff:8000::/65"),
        (127, "2001:db8:ffff:ffff:ffff:ffff:ffff:fffe/127"),
        (128, "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff/128"),
    ];
    assert_eq!(table.map(|(bits, _)| bits), all);
    for (bits, expected) in table {
        let path = format!("/{bits}/index.html");
        assert_eq!(client(&nginx, &path, address), expected);
        assert_eq!(client(&nginx, &path, "192.0.2.1"), "192.0.2.1");
        assert_eq!(client(&nginx, &path, "::ffff:192.0.2.1"), "192.0.2.1");
    }
}

#[test]
fn a_prefix_of_ipv4_has_any_length() {
    let location = |bits: u32| {
        format!(
            "location /{bits}/ {{ rate_limit_redis_ipv4_prefix {bits}; alias {{prefix}}/html/; }}"
        )
    };
    let table = [
        (1, "128.0.0.0/1"),
        (8, "198.0.0.0/8"),
        (23, "198.51.100.0/23"),
        (24, "198.51.101.0/24"),
        (25, "198.51.101.128/25"),
        (31, "198.51.101.254/31"),
        (32, "198.51.101.255"),
    ];
    let nginx = with_realip().server(&table.map(|(bits, _)| location(bits)).concat()).start();
    for (bits, expected) in table {
        let path = format!("/{bits}/index.html");
        assert_eq!(client(&nginx, &path, "198.51.101.255"), expected);
        assert_eq!(client(&nginx, &path, "::ffff:198.51.101.255"), expected);
        assert_eq!(client(&nginx, &path, "2001:db8:1:2::9"), "2001:db8:1:2::/64");
    }
}

#[test]
fn prefixes_are_inherited_and_overruled() {
    let nginx = with_realip()
        .http("rate_limit_redis_ipv6_prefix 32; rate_limit_redis_ipv4_prefix 16;")
        .server("location /a { rate_limit_redis_ipv6_prefix 48; rate_limit_redis_ipv4_prefix 24;")
        .server("  location /a/a { } location /a/b { rate_limit_redis_ipv6_prefix 56; } }")
        .start();
    let address = "2001:db8:1:2ff::1";
    let table = [
        ("/", "2001:db8::/32"),
        ("/a", "2001:db8:1::/48"),
        ("/a/a", "2001:db8:1::/48"),
        ("/a/b", "2001:db8:1:200::/56"),
    ];
    for (path, expected) in table {
        assert_eq!(client(&nginx, path, address), expected, "{path}");
        let expected = if path == "/" { "192.0.0.0/16" } else { "192.0.2.0/24" };
        assert_eq!(client(&nginx, path, "192.0.2.1"), expected, "{path}");
    }
}

#[test]
fn sockets_of_every_family_have_a_client() {
    let nginx = with_realip()
        .server("listen [::1]:{port}; listen unix:{prefix}/client.sock;")
        .server("location = /port2 { return 200 {port2}; }")
        .http("server { listen [::]:{port2} ipv6only=off; set_real_ip_from ::/0; }")
        .start();
    assert_eq!(nginx.get("/").header("X-Client"), Some("127.0.0.1"));
    assert_eq!(on_v6(&nginx).get("/").header("X-Client"), Some("::/64"));

    // An IPv4 client of an IPv6 socket.
    let port: u16 = nginx.get("/port2").text().parse().expect("a port");
    let response = Http::connect(([127, 0, 0, 1], port).into()).get("/");
    assert_eq!(response.header("X-Client"), Some("127.0.0.1"));

    let socket = nginx.path("client.sock").display().to_string();
    let output = run("curl", &["-sSi", "--unix-socket", &socket, "http://localhost/"]);
    assert!(output.contains("\r\nX-Client: unix:\r\n"), "{output}");
}

#[test]
fn a_trusted_unix_socket_tells_the_client() {
    let redis = Redis::start();
    let nginx = with_realip()
        .redis(&redis)
        .server("listen unix:{prefix}/client.sock; set_real_ip_from unix:;")
        .server("real_ip_header X-Forwarded-For;")
        .server("rate_limit_redis $rate_limit_redis_client rate=9r/d;")
        .start_connected(&redis);
    let socket = nginx.path("client.sock").display().to_string();
    let get = |arguments: &[&str]| {
        let mut all = vec!["-sSi", "--unix-socket", &socket, "http://localhost/"];
        all.extend(arguments);
        run("curl", &all)
    };
    let output = get(&["-H", "X-Forwarded-For: 2001:db8:1:2::9"]);
    assert!(output.contains("\r\nX-Client: 2001:db8:1:2::/64\r\n"), "{output}");
    assert!(get(&[]).contains("\r\nX-Client: unix:\r\n"));
    assert_eq!(keys(&redis), ["rl:default:2001:db8:1:2::/64", "rl:default:unix:"]);
}

#[test]
fn clients_of_a_network_share_a_budget() {
    let redis = Redis::start();
    let nginx = with_realip()
        .redis(&redis)
        .server("rate_limit_redis $rate_limit_redis_client rate=3r/d;")
        .server(
            "location /56 { rate_limit_redis_ipv6_prefix 56; rate_limit_redis_ipv4_prefix 24; }",
        )
        .file("html/56", "")
        .start_connected(&redis);
    let get = |path: &str, address: &str| {
        let mut http = nginx.http();
        http.send("GET", path, &[("X-Forwarded-For", address)]);
        let response = http.read_response();
        (response.status, remaining(&response))
    };
    assert_eq!(get("/", "2001:db8:1:1::1"), (200, 2));
    assert_eq!(get("/", "2001:db8:1:1::2"), (200, 1), "of the same /64");
    assert_eq!(get("/", "2001:db8:1:1:ffff::1"), (200, 0));
    assert_eq!(get("/", "2001:db8:1:1:dead::beef"), (429, 0));
    assert_eq!(get("/", "2001:db8:1:2::1"), (200, 2), "of another /64");
    assert_eq!(get("/56", "2001:db8:1:1::1"), (200, 2), "a prefix of another length");
    assert_eq!(get("/56", "2001:db8:1:2::1"), (200, 1), "of the same /56");
    assert_eq!(get("/", "192.0.2.1"), (200, 2));
    assert_eq!(get("/", "::ffff:192.0.2.1"), (200, 1), "the same host");
    assert_eq!(get("/", "192.0.2.2"), (200, 2), "another host");
    assert_eq!(get("/56", "192.0.2.1"), (200, 2), "a network");
    assert_eq!(get("/56", "192.0.2.254"), (200, 1), "of the same /24");
    let spent = |key: &str| 3 - tokens(&redis, &format!("rl:default:{key}")).expect("it is there");
    assert_eq!(spent("2001:db8:1:1::/64"), 3);
    assert_eq!(spent("2001:db8:1:2::/64"), 1);
    assert_eq!(spent("2001:db8:1::/56"), 2);
    assert_eq!((spent("192.0.2.1"), spent("192.0.2.2"), spent("192.0.2.0/24")), (2, 1, 2));
    assert_eq!(keys(&redis).len(), 6);
}

#[test]
fn a_location_may_trust_a_proxy_of_its_own() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("add_header X-Client \"$rate_limit_redis_client\" always;")
        .server("rate_limit_redis $rate_limit_redis_client rate=9r/d;")
        .server("location /behind { set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP; }")
        .start_connected(&redis);
    let client = |path: &str| {
        let mut http = nginx.http();
        http.send("GET", path, &[("X-Real-IP", "2001:db8:9:9::9")]);
        http.read_response().header("X-Client").map(str::to_owned)
    };
    assert_eq!(client("/behind").as_deref(), Some("2001:db8:9:9::/64"));
    assert_eq!(keys(&redis), ["rl:default:2001:db8:9:9::/64"]);
    assert_eq!(client("/").as_deref(), Some("127.0.0.1"));
    assert_eq!(keys(&redis), ["rl:default:127.0.0.1", "rl:default:2001:db8:9:9::/64"]);
}

#[test]
fn is_known_before_any_limit_and_in_the_log() {
    let nginx = with_realip()
        .http("log_format client '$rate_limit_redis_client';")
        .server("access_log {prefix}/client.log client;")
        .server("location /echo { return 200 $rate_limit_redis_client; }")
        .start();
    let mut http = nginx.http();
    http.send("GET", "/echo", &[("X-Forwarded-For", "2001:db8:1:2::3")]);
    assert_eq!(http.read_response().text(), "2001:db8:1:2::/64");
    // This connection, from another client.
    http.send("GET", "/echo", &[("X-Forwarded-For", "2001:db8:1:5::3")]);
    assert_eq!(http.read_response().text(), "2001:db8:1:5::/64");
    let logged = crate::seen::lines(&nginx, "client.log", 2);
    assert_eq!(logged, ["2001:db8:1:2::/64", "2001:db8:1:5::/64"]);
}
