//! Passwords that change, and logging in again with them.

use super::*;

const INTERVAL: u64 = 10 * SECOND;

/// A client with a password, which is connected.
fn with_password() -> Played {
    let mut played = Played::with(|config| {
        config.account.password = Some("f1rst".to_owned());
        config.auth_interval = INTERVAL;
    });
    played.client.start(0);
    played.turn();
    played.accept_handshake();
    played.turn();
    played
}

impl Played {
    /// Lets time pass until connections are to log in again, and lets them do so.
    fn login(&mut self, password: &str) {
        while !self.wait(self.client.timer().expect("a timer") - self.now).contains(&Action::Login)
        {
        }
        self.client.set_password(password);
        self.client.login(self.now);
        self.turn();
    }

    #[track_caller]
    fn logs_in_no_more(&mut self) {
        while let Some(timer) = self.client.timer().filter(|at| *at < 3 * INTERVAL) {
            assert!(!self.wait(timer - self.now).contains(&Action::Login));
        }
    }

    /// The lines that are to be logged after this reply.
    fn logged(&mut self, reply: &str) -> Vec<String> {
        self.receive(reply);
        let line = |action| match action {
            Action::Log(Level::Error, line) => Some(line),
            _ => None,
        };
        self.turn().into_iter().filter_map(line).collect()
    }
}

fn auth(password: &str) -> String {
    format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{password}\r\n", password.len())
}

#[test]
fn connections_log_in_again_between_commands() {
    let mut played = with_password();
    let mut times = Vec::new();
    for password in ["f1rst", "sec0nd", "th1rd"] {
        played.login(password);
        times.push(played.now);
        let request = played.submit("a");
        played.turn();
        let sent = played.sent();
        assert!(sent.starts_with(&auth(password)) && sent.contains("rl:a:a"), "{sent}");
        played.receive("+OK\r\n");
        assert_eq!(played.client.outcome(request), None);
        played.receive(FOUND);
        assert_eq!(played.client.outcome(request), Some(Ok(())));
        played.client.release(request, false);
        played.turn();
    }
    let first = times[0];
    assert!(first <= INTERVAL, "the first time is within the interval");
    assert_eq!(times, [first, first + INTERVAL, first + 2 * INTERVAL]);
}

#[test]
fn a_refusal_is_logged_until_the_password_is_accepted_and_ends_nothing() {
    let mut played = with_password();
    let refusal = "-WRONGPASS not wr0ng, user is disabled.\r\n";
    let line = "redis 10.0.0.1:6379 refused the password, with which connections were to log in again: \
                \"WRONGPASS not ***, user is disabled.\"; they stay open";
    for (reply, expected) in
        [(refusal, &[line][..]), (refusal, &[]), ("+OK\r\n", &[]), (refusal, &[line])]
    {
        played.login("wr0ng");
        assert_eq!(played.sent(), auth("wr0ng"));
        assert_eq!(played.logged(reply), expected);
        played.exchange();
    }
    let counts = played.client.take_counts(played.node()).expect("counts");
    assert_eq!(counts.errors[ErrorKind::Auth as usize], 3);
    assert!(played.client.node(played.node()).expect("a node").serves());
}

/// A server may repeat them anywhere: that with which the connection was made, and those that it has been sent since.
#[test]
fn no_refusal_shows_a_password() {
    let mut played = with_password();
    for password in ["sec0nd", "th1rd"] {
        played.login(password);
        played.sent();
        played.receive("+OK\r\n");
    }
    let refused = |played: &mut Played, refusal: &str| {
        played.submit("a");
        played.turn();
        played.sent();
        played.receive(refusal);
        played.turn()
    };
    let actions = refused(&mut played, "-ERR f1rst, sec0nd, th1rd\r\n");
    let line = "refused to decide: \"ERR ***, ***, ***\"".to_owned();
    assert!(actions.contains(&Action::Warn(played.node(), line)), "{actions:?}");
    let actions = refused(&mut played, "-LOADING th1rd\r\n");
    let reason = "it cannot decide: \"LOADING ***\"".to_owned();
    assert!(actions.contains(&Action::Down(played.node(), reason)), "{actions:?}");
}

#[test]
fn a_new_connection_uses_the_new_password() {
    let mut played = with_password();
    played.exchange();
    played.client.set_password("sec0nd");
    assert!(Played::is_connecting(&played.lose()));
    played.client.on_connected(played.connection());
    assert!(played.sent().starts_with(&auth("sec0nd")));
    // One that is being made has its handshake already.
    played.client.set_password("th1rd");
    played.receive("-WRONGPASS not sec0nd\r\n");
    let reason = "AUTH was refused: \"WRONGPASS not ***\"".to_owned();
    let down = Action::Down(played.node(), reason);
    assert!(played.turn().contains(&down));
}

#[test]
fn no_connection_logs_in_while_it_is_made_or_the_worker_leaves() {
    let mut played = with_password();
    played.lose();
    played.client.login(played.now);
    played.turn();
    assert_eq!(played.sent(), "");
    played.client.leave(None, played.now);
    played.logs_in_no_more();
}

/// Without the interval there is nothing to be done, and without an account nothing to be sent.
#[test]
fn it_is_off_by_default() {
    let mut played = Played::ready();
    played.logs_in_no_more();
    played.client.login(played.now);
    played.turn();
    assert_eq!(played.sent(), "");
    played.exchange();
}
