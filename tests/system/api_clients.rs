//! The programs of docs/api-clients.md: they repeat what comes too early, and slow down before that.

use std::fs;
use std::process::Command;

use harness::{Conf, Nginx, Redis, run};

use crate::examples::read;
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

/// How many requests of a program were rejected. In the end each of the ten has passed.
fn rejected(nginx: &Nginx, command: &[&str], file: &str, path: &str) -> usize {
    let before = nginx.access_log().lines().count();
    let url = nginx.url(path);
    let arguments = [&["no_proxy=*"], command, &[file, &url]].concat();
    let statuses = run("env", &arguments);
    assert_eq!(statuses.split_whitespace().collect::<Vec<_>>(), ["200"; 10], "{command:?}");
    nginx.access_log().lines().skip(before).filter(|line| line.contains("\" 429 ")).count()
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
            "location /{path} {{ rate_limit_redis $arg_a name={path} rate=2r/s capacity=3; \
             rate_limit_redis_headers {forms}; try_files /index.html =404; }}"
        )
    };
    let conf = Conf::new()
        .redis(&redis)
        .server(&limit("early", "x-ratelimit"))
        .server(&limit("paced", "ietf"));
    let nginx = conf.start_connected(&redis);
    for (language, file, command) in PROGRAMS {
        // Debian's packages of the other two are large.
        if language != "python" && !is_there(command[0]) {
            println!("no {} here: the program in {language} is not tested", command[0]);
            continue;
        }
        let file = nginx.path(file);
        fs::write(&file, program(language)).expect("write the program");
        let file = file.display().to_string();
        let rejections =
            |path: &str| rejected(&nginx, command, &file, &format!("/{path}?a={language}"));
        assert!(rejections("early") > 0, "{language} never had to wait");
        assert_eq!(rejections("paced"), 0, "{language}");
    }
}
