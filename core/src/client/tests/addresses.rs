//! The addresses of a server.

use super::*;

fn address(host: u8) -> Target {
    Target::Ip(SocketAddr::from(([10, 0, 0, host], 6_379)))
}

impl Played {
    /// Where it connects to in this turn.
    fn dialed(&mut self) -> Vec<Target> {
        let target = |action| match action {
            Action::Connect(_, target) => Some(target),
            _ => None,
        };
        self.turn().into_iter().filter_map(target).collect()
    }

    /// The attempt to connect fails; where it connects to then, at once or later.
    fn refuse(&mut self) -> Target {
        let key = self.connection();
        self.client.on_lost(key, &Fault::Connect("refused".to_owned()), self.now);
        self.next_dialed()
    }

    fn next_dialed(&mut self) -> Target {
        for _ in 0..100 {
            if let [target] = &self.dialed()[..] {
                return target.clone();
            }
            self.now = self.client.timer().expect("a timer");
            self.client.on_timer(self.now);
        }
        panic!("it does not connect");
    }
}

/// The first address is that of a replica.
#[test]
fn an_address_that_serves_is_found() {
    let mut played = Played::with(|config| {
        config.servers[0].targets = vec![address(1), address(2)];
    });
    played.client.start(0);
    assert_eq!(played.dialed(), [address(1)]);
    played.accept_handshake();
    played.submit("a");
    played.turn();
    played.sent();
    played.receive("-READONLY You can't write against a read only replica.\r\n");
    assert_eq!(played.next_dialed(), address(2));
}

#[test]
fn the_announced_address_is_tried_beside_the_others() {
    let mut played = Played::new();
    let node = played.node();
    played.client.nodes.get_mut(node).unwrap().on_announced(None, Some([10, 0, 0, 9].into()));
    played.client.start(0);
    assert_eq!(played.dialed(), [address(1)]);
    assert_eq!(played.refuse(), address(9));
    assert_eq!(played.refuse(), address(1));
    // One that is no other is not tried twice.
    played.client.nodes.get_mut(node).unwrap().on_announced(None, Some([10, 0, 0, 1].into()));
    assert_eq!([(); 3].map(|()| played.refuse()), [(); 3].map(|()| address(1)));
}
