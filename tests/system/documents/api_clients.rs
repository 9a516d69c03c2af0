//! The programs of docs/api-clients.md: they repeat what comes too early, and slow down before that.

use std::fs;
use std::process::Command;
use std::thread;

use harness::{Conf, Nginx, Redis, run};

use crate::documents::examples::read;
use crate::seen::StartConnected as _;

/// The language of a block, its file, and the command that runs it.
const PROGRAMS: [(&str, &str, &[&str]); 3] = [
    ("python", "client.py", &["python3"]),
    ("javascript", "client.js", &["node"]),
    ("go", "client.go", &["go", "run"]),
];

fn program(language: &str) -> String {
    let page = read("../docs/api-clients.md");
    let (_, block) = page.split_once(&format!("```{language}\n")).expect("a block");
    block.split("```").next().expect("its end").to_owned()
}

/// Runs a program against a location, with its language as the key. In the end each of its ten requests
/// has passed; how many were rejected before.
fn rejections(nginx: &Nginx, language: &str, command: &[&str], path: &str) -> usize {
    let uri = format!("/{path}?a={language}");
    let url = nginx.url(&uri);
    let statuses = run("env", &[&["no_proxy=*"], command, &[&url]].concat());
    assert_eq!(statuses.split_whitespace().collect::<Vec<_>>(), ["200"; 10], "{command:?}");
    let is_rejection = |line: &&str| line.contains(&uri) && line.contains("\" 429 ");
    nginx.access_log().lines().filter(is_rejection).count()
}

fn is_there(program: &str) -> bool {
    let find = format!("command -v {program}");
    Command::new("sh").args(["-c", &find]).status().expect("run sh").success()
}

#[test]
fn they_pass_in_the_end() {
    let redis = Redis::start();
    let limit = |path: &str, forms: &str| {
        format!(
            "location /{path} {{ rate_limit_redis $arg_a name={path} rate=1r/s capacity=3; \
             rate_limit_redis_headers {forms}; try_files /index.html =404; }}"
        )
    };
    let conf = Conf::new()
        .redis(&redis)
        .server(&limit("early", "x-ratelimit"))
        .server(&limit("paced", "ietf"));
    let nginx = conf.start_connected(&redis);
    let test = |language: &str, file: &str, command: &[&str]| {
        let file = nginx.path(file);
        fs::write(&file, program(language)).expect("write the program");
        let file = file.display().to_string();
        let command = [command, &[&file]].concat();
        assert!(
            rejections(&nginx, language, &command, "early") > 0,
            "{language} never had to wait"
        );
        assert_eq!(rejections(&nginx, language, &command, "paced"), 0, "{language}");
    };
    // They wait most of the time.
    thread::scope(|scope| {
        for (language, file, command) in PROGRAMS {
            // Debian's packages of the other two are large.
            if language == "python" || is_there(command[0]) {
                scope.spawn(move || test(language, file, command));
            } else {
                println!("no {} here: the program in {language} is not tested", command[0]);
            }
        }
    });
}
