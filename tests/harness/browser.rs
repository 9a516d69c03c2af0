//! Chromium without a window, by the WebDriver protocol.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, RwLockReadGuard, TryLockError};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::Http;
use crate::netns;
use crate::process::{Process, mortal};
use crate::wait_until;

/// How long anything may take: a browser on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(300);

/// Held by the browsers that run: more at once are too much for a small machine.
static TURNS: [Mutex<()>; 4] = [const { Mutex::new(()) }; 4];

/// Waits for a turn. A test that failed has ended its browser, too.
fn turn() -> MutexGuard<'static, ()> {
    loop {
        for turn in &TURNS {
            match turn.try_lock() {
                Ok(turn) => return turn,
                Err(TryLockError::Poisoned(turn)) => return turn.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The key under which WebDriver names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The number of texts, and those without contrast.
const FAINT_TEXTS: &str = r#"
    const channels = (color) => color.match(/[\d.]+/g).map(Number);
    const linear = (value) => (value <= 10 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = (element) => {
        const color = channels(getComputedStyle(element).backgroundColor);
        return color[3] === 0 ? behind(element.parentElement) : color;
    };
    const contrast = (element) => {
        const both = [channels(getComputedStyle(element).color), behind(element)].map(luminance);
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    };
    const hasText = (element) => [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    const texts = [...document.querySelectorAll("body *")]
        .filter((element) => element.getClientRects().length > 0)
        .filter((element) => hasText(element) || element.matches("input, select"));
    const faint = texts.filter((element) => contrast(element) < 4.5);
    return [texts.length, faint.map((element) => `${element.outerHTML} ${contrast(element)}`)];
"#;

/// A browser with one window and a profile of its own. It ends with this value.
pub struct Browser {
    addr: SocketAddr,
    session: String,
    driver: Process,
    // Removed when the browser has ended.
    profile: TempDir,
    // Released last.
    _turn: MutexGuard<'static, ()>,
    _network: RwLockReadGuard<'static, ()>,
}

impl Browser {
    /// Starts Chromium, once fewer than four other browsers of these tests run.
    pub fn start() -> Self {
        let (turn, network) = (turn(), netns::unchanged());
        let profile = TempDir::with_prefix("chromium-").expect("a directory");
        let (driver, port) = start_driver(&profile);
        let addr = (Ipv4Addr::LOCALHOST, port).into();
        let session = String::new();
        let mut browser = Self { addr, session, driver, profile, _turn: turn, _network: network };
        let session = browser.command("POST", "/session", &browser.capabilities());
        let id = session["sessionId"].as_str().expect("the id of a session");
        browser.session = format!("/session/{id}");
        browser
    }

    /// Opens a page and waits until it has loaded.
    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// The value that the body of a function in JavaScript returns.
    #[track_caller]
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// The text of the only element that `selector` finds.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let value = self.run(&format!("return document.querySelector({selector:?}).textContent"));
        value.as_str().expect("a text").to_owned()
    }

    /// Waits until an expression in JavaScript is true.
    #[track_caller]
    pub fn wait_for(&self, expression: &str) {
        let script = format!("return Boolean({expression})");
        wait_until(PATIENCE, || self.run(&script) == true, expression);
    }

    /// Clicks on an element, away from what sticks to the edges of the window.
    #[track_caller]
    pub fn click(&self, selector: &str) {
        let centred = "scrollIntoView({ block: 'center', behavior: 'instant' })";
        self.run(&format!("document.querySelector({selector:?}).{centred}"));
        self.element_post(selector, "click", &json!({}));
    }

    /// Replaces the content of a field by typing.
    #[track_caller]
    pub fn fill(&self, selector: &str, text: &str) {
        self.element_post(selector, "clear", &json!({}));
        self.element_post(selector, "value", &json!({ "text": text }));
    }

    /// Chooses an option of a list by its value. (WebDriver's click on an option does not tell the
    /// page so by an `input` event, as a user's does.)
    #[track_caller]
    pub fn choose(&self, selector: &str, value: &str) {
        self.run(&format!(
            "const list = document.querySelector({selector:?});
            list.value = {value:?};
            if (list.value !== {value:?}) throw new Error('no such option');
            list.dispatchEvent(new Event('input', {{ bubbles: true }}));"
        ));
    }

    /// Presses a key, wherever the focus is; a special one by its code in WebDriver.
    pub fn press(&self, key: &str) {
        let actions = json!([{ "type": "key", "id": "keyboard", "actions": [
            { "type": "keyDown", "value": key },
            { "type": "keyUp", "value": key },
        ] }]);
        self.post("/actions", &json!({ "actions": actions }));
    }

    /// The accessible names of all elements that `selector` finds.
    pub fn labels(&self, selector: &str) -> Vec<String> {
        let found = self.post("/elements", &by_css(selector));
        let ids = found.as_array().expect("elements").iter().map(|element| &element[ELEMENT]);
        let path = |id: &Value| format!("/element/{}/computedlabel", id.as_str().expect("an id"));
        ids.map(|id| self.get(&path(id)).as_str().expect("a label").to_owned()).collect()
    }

    /// Makes the window so wide, and a telephone's below 500 pixels.
    pub fn resize(&self, width: u32) {
        let metrics =
            json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Prefers a colour scheme: `light` or `dark`.
    pub fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// A picture of the only element that `selector` finds, as PNG.
    #[track_caller]
    pub fn picture(&self, selector: &str) -> Vec<u8> {
        let element = self.post("/element", &by_css(selector));
        let id = element[ELEMENT].as_str().expect("the id of an element");
        let picture = self.get(&format!("/element/{id}/screenshot"));
        decode(picture.as_str().expect("a picture"))
    }

    /// How many texts the page shows, and those of them that do not stand out from what is behind them: WCAG 2 wants a
    /// contrast of 4.5.
    pub fn faint_texts(&self) -> (u64, Vec<String>) {
        let found = self.run(FAINT_TEXTS);
        let faint = found[1].as_array().expect("texts").iter().map(ToString::to_string);
        (found[0].as_u64().expect("a number"), faint.collect())
    }

    /// The lines of the console since it was last looked at.
    pub fn console(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({ "type": "browser" }));
        let message = |entry: &Value| entry["message"].as_str().expect("a message").to_owned();
        entries.as_array().expect("a log").iter().map(message).collect()
    }

    /// The browser ends with its driver, as it is connected to it by a pipe. Root may not run it in
    /// a sandbox.
    fn capabilities(&self) -> Value {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/harness/chromium.sh");
        let profile = format!("--user-data-dir={}", self.profile.path().join("data").display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            &profile,
        ];
        json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments, "binary": program },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } })
    }

    #[track_caller]
    fn element_post(&self, selector: &str, action: &str, body: &Value) {
        let element = self.post("/element", &by_css(selector));
        let id = element[ELEMENT].as_str().expect("the id of an element");
        self.post(&format!("/element/{id}/{action}"), body);
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        self.command("POST", &format!("{}{path}", self.session), body)
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        self.command("GET", &format!("{}{path}", self.session), &Value::Null)
    }

    #[track_caller]
    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut http = Http::connect(self.addr).patience(PATIENCE);
        http.send(method, path, &[("Content-Length", &body.len().to_string())]);
        http.send_raw(body.as_bytes());
        let response = http.read_response();
        assert_eq!(response.status, 200, "{method} {path} {body}: {}", response.text());
        serde_json::from_slice::<Value>(&response.body).expect("an answer in JSON")["value"].take()
    }
}

impl Drop for Browser {
    /// Waits for the end of the browser, or its profile could not be removed.
    fn drop(&mut self) {
        let request = format!("DELETE {} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.session);
        // No answer, no browser: there is nothing to wait for.
        let _ = Http::try_connect(self.addr).map(|http| http.patience(PATIENCE)).and_then(
            |mut http| {
                http.try_send_raw(request.as_bytes())?;
                http.try_read_response()
            },
        );
        self.driver.kill();
    }
}

/// The bytes of a text in base64.
fn decode(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |digit: u8| DIGITS.iter().position(|it| *it == digit).expect("a digit of base64");
    let digits: Vec<_> = text.bytes().filter(|digit| *digit != b'=').map(value).collect();
    let bytes = |group: &[usize]| {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        [bits >> 16, bits >> 8, bits].map(|byte| byte as u8).into_iter().take(group.len() - 1)
    };
    digits.chunks(4).flat_map(bytes).collect()
}

fn by_css(selector: &str) -> Value {
    json!({ "using": "css selector", "value": selector })
}

/// Starts chromedriver on a port that it chooses and prints.
fn start_driver(dir: &TempDir) -> (Process, u16) {
    let log = dir.path().join("driver.log");
    let output = File::create(&log).expect("create a log");
    let mut command = Command::new("chromedriver");
    command.arg("--port=0");
    let mut command = mortal(&command, "KILL");
    command.stdout(output.try_clone().expect("a second handle")).stderr(output);
    let driver = Process::spawn(command).expect("run chromedriver");
    let mut port = None;
    let is_known = || {
        port = port_of(&fs::read_to_string(&log).expect("read a log"));
        port.is_some()
    };
    wait_until(PATIENCE, is_known, "the port of chromedriver");
    (driver, port.expect("a port"))
}

fn port_of(log: &str) -> Option<u16> {
    let (_, rest) = log.split_once("started successfully on port ")?;
    rest.split_once('.')?.0.parse().ok()
}
