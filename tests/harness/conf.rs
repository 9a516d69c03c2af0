//! The configuration of an nginx.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::nginx::Nginx;
use crate::port;
use crate::process::wrapped;
use crate::redis::{Redis, world_readable_dir};

const MODULE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../target/release/libngx_http_rate_limit_redis_module.so"
);

/// Where the distribution's nginx has its modules.
const DISTRIBUTION: &str = "/usr/lib/nginx/modules";

/// How many ports a configuration can name.
pub(crate) const PORTS: usize = 4;

/// A configuration that is being made, and nginx's opinion of it.
///
/// The snippets may hold placeholders: `{port}` (that of the server block made of
/// [`server`](Self::server)), `{port2}` to `{port4}` for more servers, `{h2}` (the port that
/// [`http2`](Self::http2) adds), `{prefix}` (nginx's own directory) and whatever was
/// [`set`](Self::set), such as `{redis}`.
///
/// The document root is `{prefix}/html`, in which `index.html` holds `hello`. Mind that `return`
/// answers before the access phase, in which limits are checked: serve a file, or proxy.
#[derive(Clone)]
pub struct Conf {
    pub(crate) workers: usize,
    master: bool,
    connections: usize,
    module: Load,
    daemon: bool,
    http2: bool,
    listen: String,
    log_level: &'static str,
    modules: String,
    events: String,
    main: String,
    http: String,
    server: String,
    values: Vec<(String, String)>,
    files: Vec<(String, String)>,
    env: Vec<(String, String)>,
    wrapper: Vec<String>,
}

impl Conf {
    /// A server with one worker, or as many as `RATE_LIMIT_WORKERS` says, the module loaded, and nothing configured.
    pub fn new() -> Self {
        Self {
            workers: number_of_workers(),
            master: true,
            connections: 4096,
            module: Load::Built,
            daemon: false,
            http2: false,
            listen: String::new(),
            log_level: "info",
            modules: String::new(),
            events: String::new(),
            main: String::new(),
            http: String::new(),
            server: String::new(),
            values: Vec::new(),
            files: Vec::new(),
            env: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    /// So many worker processes.
    pub fn workers(mut self, number: usize) -> Self {
        self.workers = number;
        self
    }

    /// No master: one process does everything, and counts as no worker.
    pub fn single(mut self) -> Self {
        self.master = false;
        self.workers(0)
    }

    /// So many connections a worker, those to Redis included.
    pub fn connections(mut self, number: usize) -> Self {
        self.connections = number;
        self
    }

    /// Does not load the module.
    pub fn plain(mut self) -> Self {
        self.module = Load::Nothing;
        self
    }

    /// Loads a copy of the module, which is made anew for each configuration: to the system it is another build.
    pub fn copied_module(mut self) -> Self {
        self.module = Load::Copy;
        self
    }

    /// Lets nginx leave its parent, as a service does: only then can its binary be upgraded. It needs
    /// [`has_pid_namespaces`](crate::has_pid_namespaces).
    pub fn daemon(mut self) -> Self {
        self.daemon = true;
        self
    }

    /// Adds parameters to the `listen` of the server block of [`server`](Self::server).
    pub fn listen(mut self, parameters: &str) -> Self {
        self.listen = parameters.to_owned();
        self
    }

    /// Listens for HTTP/2 without TLS too, on `{h2}`.
    pub fn http2(mut self) -> Self {
        self.http2 = true;
        self
    }

    /// Writes the error log at level `debug`.
    pub fn debug(mut self) -> Self {
        self.log_level = "debug";
        self
    }

    /// Writes no more than errors to the error log.
    pub fn errors_only(mut self) -> Self {
        self.log_level = "error";
        self
    }

    /// Loads another module of the distribution's nginx, before this one.
    pub fn load(mut self, name: &str) -> Self {
        append(&mut self.modules, &format!("load_module {DISTRIBUTION}/{name}.so;"));
        self
    }

    /// Adds to the `events` block.
    pub fn events(mut self, snippet: &str) -> Self {
        append(&mut self.events, snippet);
        self
    }

    /// Adds to the main context.
    pub fn main(mut self, snippet: &str) -> Self {
        append(&mut self.main, snippet);
        self
    }

    /// Adds to the `http` block.
    pub fn http(mut self, snippet: &str) -> Self {
        append(&mut self.http, snippet);
        self
    }

    /// Adds to the `server` block that listens on `{port}`.
    pub fn server(mut self, snippet: &str) -> Self {
        append(&mut self.server, snippet);
        self
    }

    /// Sets the placeholder `{name}`.
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.values.push((name.to_owned(), value.to_string()));
        self
    }

    /// Passes the limits to `redis` by TCP: see [`store`](Self::store).
    pub fn redis(self, redis: &Redis) -> Self {
        self.store(redis.url())
    }

    /// Passes the limits to the server at `url`, with times so generous that a busy machine does not
    /// reach them, and sets `{redis}` to that URL. A test of the time without Redis sets the timeout it
    /// needs in its `server` block.
    pub fn store(self, url: impl ToString) -> Self {
        self.set("redis", url)
            .http("rate_limit_redis_store redis { server {redis}; connect_timeout 30s; }")
            .http("rate_limit_redis_pass redis;\nrate_limit_redis_timeout 5s;")
    }

    /// Has nginx count its requests, on `{port4}`: see [`Nginx::wait_for_requests`].
    pub fn status(self) -> Self {
        self.http(
            "server { listen 127.0.0.1:{port4}; access_log off; location / { stub_status; } }",
        )
    }

    /// Adds a header field that shows how each request was decided: see
    /// [`Response::decision`](crate::Response).
    pub fn decisions(self) -> Self {
        self.http(
            "add_header X-Decision \"$rate_limit_redis_status $rate_limit_redis_source\" always;",
        )
    }

    /// Keeps a [`Journal`](crate::Journal): see [`Nginx::journal`].
    pub fn journal(self) -> Self {
        self.http(crate::journal::DIRECTIVES)
    }

    /// Adds a file, named from `{prefix}`, such as `html/a.txt`.
    pub fn file(mut self, path: &str, content: &str) -> Self {
        self.files.push((path.to_owned(), content.to_owned()));
        self
    }

    /// Sets a variable of nginx's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts nginx by this command, such as `taskset` or `valgrind` with their options, in whose place it is then.
    pub fn wrapper(mut self, words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.wrapper.extend(words.into_iter().map(Into::into));
        self
    }

    /// Starts an nginx of this configuration.
    pub fn start(&self) -> Nginx {
        for _ in 0..20 {
            match Nginx::try_start(self.site(), self.workers) {
                Ok(nginx) => return nginx,
                Err(log) if log.contains("Address already in use") => (),
                Err(log) => panic!("nginx does not start:\n{log}"),
            }
        }
        panic!("nginx finds no free port");
    }

    /// The errors of `nginx -t` about this configuration; panics if it is valid.
    pub fn config_error(&self) -> String {
        let (valid, output) = self.check();
        assert!(!valid, "nginx accepts this configuration:\n{}", self.http_and_server());
        output
    }

    /// Panics if `nginx -t` finds an error, or something to warn of.
    pub fn config_ok(&self) {
        self.config_notes();
    }

    /// The output of `nginx -t`; panics if it has an error or a warning.
    pub fn config_notes(&self) -> String {
        let (valid, output) = self.check();
        let clean = valid && !output.contains("[warn]");
        assert!(
            clean,
            "nginx does not like this configuration:\n{}\n{output}",
            self.http_and_server()
        );
        output
    }

    /// Whether `nginx -t` accepts this configuration, and its output.
    pub fn check(&self) -> (bool, String) {
        self.site().check()
    }

    /// The most memory that `nginx -t` takes at once, in bytes; panics if it finds an error.
    pub fn memory_of_check(&self) -> u64 {
        // Started by a small process: what the one that starts a program had taken counts as well.
        const MEASURE: &str = "import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
        let site = self.site();
        let check = site.command();
        let output = Command::new("python3")
            .args(["-c", MEASURE])
            .arg(check.get_program())
            .args(check.get_args())
            .args(["-t", "-q", "-e", "stderr"])
            .output()
            .expect("run python3");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().parse::<u64>().unwrap_or_else(|_| panic!("nginx -t: {output:?}")) * 1024
    }

    fn http_and_server(&self) -> String {
        format!("{}\nserver {{\n{}\n}}", self.http, self.server)
    }

    /// Lays out the files of an nginx of this configuration, on ports that are free.
    fn site(&self) -> Site {
        let ports = std::array::from_fn(|_| port::free());
        let site = Site {
            dir: world_readable_dir("nginx-"),
            ports,
            h2: port::free(),
            daemon: self.daemon,
            env: self.env.clone(),
            wrapper: self.wrapper.clone(),
        };
        site.lay_out(self);
        site
    }

    fn text(&self, site: &Site) -> String {
        let load = match self.module {
            Load::Nothing => String::new(),
            Load::Built => format!("load_module {};", module()),
            Load::Copy => format!("load_module {};", site.copy_module()),
        };
        let daemon = if self.daemon { "on" } else { "off" };
        let listen_h2 = if self.http2 { "listen 127.0.0.1:{h2} http2;" } else { "" };
        let Self { workers, connections, log_level, modules, events, main, http, .. } = self;
        let Self { listen, server, .. } = self;
        let master = if self.master { "on" } else { "off" };
        let template = format!(
            "{modules}{load}
daemon {daemon};
master_process {master};
worker_processes {workers};
pid {{prefix}}/nginx.pid;
error_log {{prefix}}/error.log {log_level};
events {{ worker_connections {connections}; {events} }}
{main}
http {{
access_log {{prefix}}/access.log;
client_body_temp_path {{prefix}}/client_body;
proxy_temp_path {{prefix}}/proxy;
fastcgi_temp_path {{prefix}}/fastcgi;
uwsgi_temp_path {{prefix}}/uwsgi;
scgi_temp_path {{prefix}}/scgi;
root {{prefix}}/html;
{http}
server {{
listen 127.0.0.1:{{port}} {listen};
{listen_h2}
{server}
}}
}}
"
        );
        self.fill_in(template, site)
    }

    fn fill_in(&self, mut text: String, site: &Site) -> String {
        for (name, value) in &self.values {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        for (index, port) in site.ports.iter().enumerate() {
            let name = if index == 0 { "{port}".into() } else { format!("{{port{}}}", index + 1) };
            text = text.replace(&name, &port.to_string());
        }
        text.replace("{h2}", &site.h2.to_string())
            .replace("{prefix}", &site.dir.path().display().to_string())
    }
}

impl Default for Conf {
    fn default() -> Self {
        Self::new()
    }
}

/// Which module nginx loads.
#[derive(Clone, Copy)]
enum Load {
    Nothing,
    Built,
    Copy,
}

/// Where one nginx lives.
pub(crate) struct Site {
    pub dir: TempDir,
    pub ports: [u16; PORTS],
    pub h2: u16,
    pub daemon: bool,
    env: Vec<(String, String)>,
    wrapper: Vec<String>,
}

impl Site {
    /// Writes the configuration and the files that it names.
    pub fn lay_out(&self, conf: &Conf) {
        self.write("html/index.html", "hello\n");
        for (path, content) in &conf.files {
            self.write(path, content);
        }
        self.write("nginx.conf", &conf.text(self));
    }

    /// The command `nginx`, with its prefix and configuration.
    pub fn command(&self) -> Command {
        let mut command = wrapped(&self.wrapper, nginx());
        command.envs(self.env.iter().cloned());
        command.arg("-p").arg(self.dir.path());
        command.arg("-c").arg(self.path("nginx.conf"));
        command
    }

    /// Copies the module, in the place of the copy before it, and returns where it is.
    fn copy_module(&self) -> String {
        let (copied, copy) = (self.path("module.new"), self.path("module.so"));
        fs::copy(module(), &copied).expect("copy the module");
        // Never written in place: it may be loaded.
        fs::rename(copied, &copy).expect("rename the copy");
        copy.display().to_string()
    }

    /// Whether the configuration is valid, and the output of nginx.
    fn check(&self) -> (bool, String) {
        let output = self.command().args(["-t", "-e", "stderr"]).output().expect("run nginx");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs::read(self.path(name)).map_or(String::new(), |b| String::from_utf8_lossy(&b).into())
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("inside the prefix")).expect("create a directory");
        // Never half a file: it may be served meanwhile.
        let written = path.with_extension("written");
        let result = fs::write(&written, content).and_then(|()| fs::rename(&written, &path));
        result.unwrap_or_else(|error| panic!("write {name}: {error}"));
    }
}

/// Panics unless nginx accepts the file as it stands, on a machine that has no network but itself.
pub fn check_file(file: &str) {
    let prefix = world_readable_dir("nginx-");
    let path = |name: &str| prefix.path().join(name);
    for directory in ["modules", "logs"] {
        fs::create_dir(path(directory)).expect("create a directory");
    }
    let name = "modules/ngx_http_rate_limit_redis_module.so";
    std::os::unix::fs::symlink(module(), path(name)).expect("link the module");
    // The pid file is looked for too: that of the machine's own nginx is left alone.
    let script = "ip link set lo up && mount -t tmpfs tmpfs /run && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-ec", script, "sh"]);
    command.args([&nginx(), "-t", "-e", "stderr", "-c", file, "-p"]).arg(prefix.path());
    let output = command.output().expect("run unshare");
    let text = String::from_utf8_lossy(&output.stderr);
    let clean = output.status.success() && !text.contains("[warn]");
    assert!(clean, "nginx does not like {file}:\n{text}");
}

/// The path of nginx, by `RATE_LIMIT_NGINX` or where Debian puts it.
fn nginx() -> String {
    std::env::var("RATE_LIMIT_NGINX").unwrap_or_else(|_| "/usr/sbin/nginx".to_owned())
}

/// How many workers an nginx has whose test does not say it.
fn number_of_workers() -> usize {
    std::env::var("RATE_LIMIT_WORKERS").map_or(1, |number| number.parse().expect("a number"))
}

/// Whether nginx was configured with this option.
pub fn is_configured(option: &str) -> bool {
    let output = Command::new(nginx()).arg("-V").output().expect("nginx -V");
    String::from_utf8_lossy(&output.stderr).split_ascii_whitespace().any(|word| word == option)
}

/// Whether this nginx was built by a distribution, the installed one or another.
pub fn is_of_distribution() -> bool {
    is_configured(&format!("--modules-path={DISTRIBUTION}"))
}

/// Whether this is the nginx for which the distribution's other modules are installed.
pub fn is_installed() -> bool {
    is_of_distribution() && nginx() == "/usr/sbin/nginx"
}

/// The path of the module, by `RATE_LIMIT_MODULE` or where a release build puts it.
fn module() -> String {
    let path = std::env::var("RATE_LIMIT_MODULE").unwrap_or_else(|_| MODULE.to_owned());
    match fs::canonicalize(&path) {
        Ok(path) => path.display().to_string(),
        Err(error) => panic!("no module at {path} ({error}): run scripts/build"),
    }
}

fn append(text: &mut String, snippet: &str) {
    text.push_str(snippet);
    text.push('\n');
}
