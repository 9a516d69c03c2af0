//! Draws what each algorithm lets through under the same traffic, from a real run.
//!
//! `cargo run -p rate-limit-tests --example algorithms > docs/algorithms.svg`, or `scripts/plot`.

use std::fmt::Write as _;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use harness::{Conf, Nginx, Redis};

/// All have a rate of 20 in 4 s.
const ALGORITHMS: [(&str, &str); 7] = [
    ("token_bucket", "capacity=20"),
    ("token_bucket", "capacity=20 refill=interval"),
    ("gcra", "burst=4"),
    ("leaky_bucket", "burst=4"),
    ("sliding_window", ""),
    ("sliding_log", ""),
    ("fixed_window", ""),
];
const PERIOD: f64 = 4.0;
const COUNT: f64 = 20.0;

/// Requests a second until the given second: a client that behaves, a flood, silence, a flood.
const TRAFFIC: [(f64, f64); 4] = [(3.0, 4.0), (9.0, 30.0), (12.0, 0.0), (18.0, 30.0)];
const END: f64 = 19.0;

fn main() {
    let redis = Redis::start();
    let locations: String = (0..ALGORITHMS.len()).map(location).collect();
    let nginx = Conf::new().redis(&redis).server(&locations).start();
    wait_for_window();
    let start = Instant::now();
    let passed: Vec<Vec<f64>> = thread::scope(|scope| {
        let runs: Vec<_> = (0..ALGORITHMS.len())
            .map(|index| {
                let nginx = &nginx;
                scope.spawn(move || send(nginx, index, start))
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    print!("{}", draw(&passed));
}

fn location(index: usize) -> String {
    let (algorithm, parameters) = ALGORITHMS[index];
    format!(
        "location = /{index} {{ alias {{prefix}}/html/index.html; rate_limit_redis all name=n{index} \
         rate=20r/4s algorithm={algorithm} {parameters}; }}\n"
    )
}

/// The windows are aligned to the clock: the picture begins with one.
fn wait_for_window() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    thread::sleep(Duration::from_secs_f64(PERIOD - now % PERIOD));
}

/// When requests are sent, in seconds.
fn schedule() -> Vec<f64> {
    let (mut times, mut start) = (Vec::new(), 0.0);
    for (end, rate) in TRAFFIC {
        let number = ((end - start) * rate) as usize;
        times.extend((0..number).map(|i| start + i as f64 / rate));
        start = end;
    }
    times
}

/// Sends the traffic, each request on its own, as some are delayed; returns when requests passed.
fn send(nginx: &Nginx, index: usize, start: Instant) -> Vec<f64> {
    let (passed, times) = mpsc::channel();
    thread::scope(|scope| {
        for time in schedule() {
            thread::sleep((start + Duration::from_secs_f64(time)) - Instant::now());
            let passed = passed.clone();
            scope.spawn(move || {
                if nginx.get(&format!("/{index}")).status == 200 {
                    passed.send(start.elapsed().as_secs_f64()).unwrap();
                }
            });
        }
    });
    drop(passed);
    let mut times: Vec<f64> = times.into_iter().collect();
    times.sort_by(f64::total_cmp);
    times
}

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 150.0;
const MARGIN: f64 = 40.0;
const TOP: f64 = 120.0;

fn draw(passed: &[Vec<f64>]) -> String {
    let rows = passed.len().div_ceil(2) as f64;
    let (width, height) = (2.0 * (WIDTH + MARGIN) + MARGIN, rows * (HEIGHT + 60.0) + 40.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"20\">Requests that passed, in all, with a rate of 20 in 4 s. \
         Grey: what was sent. Dashed: the rate.</text>\n"
    );
    for (index, times) in passed.iter().enumerate() {
        let x = MARGIN + (index % 2) as f64 * (WIDTH + MARGIN);
        let y = 50.0 + (index / 2) as f64 * (HEIGHT + 60.0);
        let _ = writeln!(svg, "<g transform=\"translate({x},{y})\">");
        panel(&mut svg, index, times);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, index: usize, times: &[f64]) {
    let (algorithm, parameters) = ALGORITHMS[index];
    let _ = writeln!(
        svg,
        "<text y=\"-6\" font-weight=\"bold\">{}: {} passed</text>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#bbb\"/>",
        format!("{algorithm} {parameters}").trim_end(),
        times.len()
    );
    for second in (0..=END as usize).step_by(PERIOD as usize) {
        let (x, _) = place(second as f64, 0.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y2=\"{HEIGHT}\" stroke=\"#eee\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#777\">{second} s</text>",
            HEIGHT + 14.0
        );
    }
    for number in [50.0, 100.0] {
        let (_, y) = place(0.0, number);
        let _ = writeln!(
            svg,
            "<line x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/>\
             <text x=\"-4\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#777\">{number}</text>",
            y + 4.0
        );
    }
    let (x, y) = place(END, END * COUNT / PERIOD);
    let _ = writeln!(
        svg,
        "<line y1=\"{HEIGHT}\" x2=\"{x:.1}\" y2=\"{y:.1}\" stroke=\"#777\" \
         stroke-dasharray=\"4 3\"/>"
    );
    steps(svg, &schedule(), "#ccc", 1.0);
    steps(svg, times, "#1f6fb4", 2.0);
}

/// A line that goes up by one at each of `times`, as far as it fits into the panel.
fn steps(svg: &mut String, times: &[f64], colour: &str, width: f64) {
    let mut path = format!("M0 {HEIGHT}");
    for (number, time) in times.iter().enumerate() {
        let (x, y) = place(*time, (number + 1) as f64);
        if y < 0.0 {
            break;
        }
        let _ = write!(path, "H{x:.1}V{y:.1}");
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
    );
}

/// Where a number of requests at a time is in a panel.
fn place(time: f64, number: f64) -> (f64, f64) {
    (time / END * WIDTH, HEIGHT - number / TOP * HEIGHT)
}
