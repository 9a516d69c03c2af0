//! Certificates, and servers to show them to, made with the openssl command.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::{Process, mortal};
use crate::redis::world_readable_dir;
use crate::{PATIENCE, port, run, wait_until};

/// The settings of `openssl ca`; the paths are relative to where it runs.
const SETTINGS: &str = "\
[ca]
default_ca = authority
[authority]
database = index
new_certs_dir = .
certificate = ca.pem
private_key = ca.key
rand_serial = yes
unique_subject = no
default_md = sha256
default_days = 2
default_crl_days = 2
copy_extensions = copy
policy = policy
[policy]
commonName = supplied
";

/// A certificate authority of the test's own.
pub struct Authority {
    dir: TempDir,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The path of the certificate.
    pub certificate: String,
    /// The path of its key.
    pub key: String,
}

impl Authority {
    /// A new authority, which is not trusted yet.
    pub fn new() -> Self {
        let authority = Self::unsigned();
        authority.request("ca", &["-x509", "-days", "2", "-out", &authority.certificate()]);
        authority
    }

    /// An authority whose certificate this one has signed.
    pub fn subordinate(&self) -> Self {
        let authority = Self::unsigned();
        let (name, request) = (format!("/CN={}", unused_name()), authority.path("ca.csr"));
        let may_sign = "basicConstraints=critical,CA:TRUE";
        authority.request("ca", &["-subj", &name, "-addext", may_sign, "-out", &request]);
        self.ca(&["-notext", "-in", &request, "-out", &authority.certificate()]);
        authority
    }

    fn unsigned() -> Self {
        let authority = Self { dir: world_readable_dir("ca-") };
        fs::write(authority.path("settings"), SETTINGS).expect("write the settings");
        fs::write(authority.path("index"), "").expect("write an index");
        authority
    }

    /// The path of its own certificate.
    pub fn certificate(&self) -> String {
        self.path("ca.pem")
    }

    /// A certificate for `names`, such as `DNS:localhost,IP:127.0.0.1`.
    pub fn issue(&self, names: &str) -> Identity {
        self.sign(names, &[])
    }

    /// A certificate for these names that has expired.
    pub fn issue_expired(&self, names: &str) -> Identity {
        self.sign(names, &["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"])
    }

    /// A certificate for these names that expires after so many seconds.
    pub fn issue_for(&self, names: &str, seconds: u64) -> Identity {
        let after = format!("-d{seconds} seconds");
        let end = run("date", &["-u", &after, "+%Y%m%d%H%M%SZ"]);
        self.sign(names, &["-enddate", end.trim()])
    }

    /// A certificate that no authority has signed.
    pub fn self_signed(&self, names: &str) -> Identity {
        let names = format!("subjectAltName={names}");
        let file = unused_name();
        let certificate = self.path(&format!("{file}.pem"));
        self.request(&file, &["-x509", "-days", "2", "-addext", &names, "-out", &certificate]);
        Identity { certificate, key: self.path(&format!("{file}.key")) }
    }

    /// Revokes a certificate.
    pub fn revoke(&self, identity: &Identity) {
        self.ca(&["-revoke", &identity.certificate]);
    }

    /// The path of a list of what is revoked by now.
    pub fn revoked(&self) -> String {
        let list = self.path(&format!("{}.crl", unused_name()));
        self.ca(&["-gencrl", "-out", &list]);
        list
    }

    fn sign(&self, names: &str, options: &[&str]) -> Identity {
        let names = format!("subjectAltName={names}");
        let file = unused_name();
        let [request, certificate] =
            ["csr", "pem"].map(|suffix| self.path(&format!("{file}.{suffix}")));
        self.request(&file, &["-addext", &names, "-out", &request]);
        self.ca(&[&["-notext", "-in", &request, "-out", &certificate], options].concat());
        Identity { certificate, key: self.path(&format!("{file}.key")) }
    }

    /// Makes a key, and a request or a certificate for it.
    fn request(&self, file: &str, options: &[&str]) {
        let key = self.path(&format!("{file}.key"));
        let common = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
        let common = [&common[..], &["-nodes", "-subj", "/CN=a test", "-keyout", &key]].concat();
        run("openssl", &[&common[..], options].concat());
    }

    fn ca(&self, options: &[&str]) {
        let (dir, settings) = (self.dir.path().display().to_string(), self.path("settings"));
        let script = "cd \"$0\" && exec openssl ca -batch -config \"$@\"";
        run("sh", &[&["-c", script, &dir, &settings], options].concat());
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

fn unused_name() -> String {
    fastrand::u64(..).to_string()
}

/// A TLS server that writes down what it is sent, and answers nothing.
pub struct Recorder {
    port: u16,
    record: PathBuf,
    _dir: TempDir,
    _process: Process,
}

impl Recorder {
    /// Starts a server that shows a certificate.
    pub fn start(identity: &Identity) -> Self {
        Self::start_with(&["-cert", &identity.certificate, "-key", &identity.key])
    }

    /// Starts a server that shows none, to clients that take ciphers which need none.
    pub fn start_anonymous() -> Self {
        Self::start_with(&["-nocert", "-tls1_2", "-cipher", "aNULL:@SECLEVEL=0"])
    }

    fn start_with(options: &[&str]) -> Self {
        let dir = world_readable_dir("recorder-");
        let (record, errors) = (dir.path().join("record"), dir.path().join("errors"));
        for _ in 0..10 {
            let port = port::free();
            let mut command = Command::new("openssl");
            command.args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}")]);
            command.args(options);
            let mut command = mortal(&command, "KILL");
            // It ends with its input.
            command.stdin(Stdio::piped());
            command.stdout(File::create(&record).expect("create the record"));
            command.stderr(File::create(&errors).expect("create a log"));
            let mut process = Process::spawn(command).expect("run openssl");
            let mut ended = false;
            let settled = || {
                ended = process.ended().is_some();
                ended || listens(port)
            };
            wait_until(PATIENCE, settled, "start of a TLS server");
            if !ended {
                return Self { port, record, _dir: dir, _process: process };
            }
        }
        panic!("openssl s_server does not start:\n{}", text(&errors));
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// All that it was sent over TLS so far.
    pub fn record(&self) -> String {
        text(&self.record)
    }
}

fn text(path: &Path) -> String {
    fs::read(path).map_or(String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether something listens on a port, found out without connecting. The kernel lists the sockets that listen first; to read
/// on takes long where there are thousands of others.
fn listens(port: u16) -> bool {
    let sockets = File::open("/proc/net/tcp").expect("list the sockets");
    let lines = BufReader::new(sockets).lines().skip(1).map(|line| line.expect("a socket"));
    let listener = format!(" 0100007F:{port:04X} 00000000:0000 0A ");
    lines.take_while(|line| line.contains(" 0A ")).any(|line| line.contains(&listener))
}
