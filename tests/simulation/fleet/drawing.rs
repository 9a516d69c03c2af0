//! The drawing of a fleet's record, as SVG.

use std::fmt::Write as _;

use super::record::{SPAN, Sample};
use super::scenario::Phase;
use rate_limit_core::rate::SECOND;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const PANEL: f64 = 110.0;
const GAP: f64 = 40.0;

const STYLE: &str = "text{font:12px sans-serif;fill:#333}\
     @media(prefers-color-scheme:dark){text{fill:#ccc}}";

/// One of several drawings that share their time.
struct Panel {
    title: &'static str,
    unit: &'static str,
    lines: &'static [Line],
}

/// Its name and colour, and what is drawn.
type Line = (&'static str, &'static str, fn(&Sample) -> f64);

const PANELS: [Panel; 4] = [
    Panel {
        title: "undecided requests",
        unit: "%",
        lines: &[("", "#d9822b", |sample| {
            100.0 * sample.undecided as f64 / sample.requests.max(1) as f64
        })],
    },
    Panel {
        title: "Redis CPU",
        unit: "% of a core",
        lines: &[
            ("busiest", "#a854a8", |sample| 100.0 * sample.busiest),
            ("average", "#3b7dd8", |sample| 100.0 * sample.busy),
        ],
    },
    Panel {
        title: "connections",
        unit: "open",
        lines: &[("", "#3b7dd8", |sample| sample.open as f64)],
    },
    Panel {
        title: "attempts to connect, queries for the topology",
        unit: "a second",
        lines: &[
            ("attempts", "#d9822b", |sample| 10.0 * sample.attempts as f64),
            ("queries", "#3a9d5d", |sample| 10.0 * sample.queries as f64),
        ],
    },
];

/// Draws samples, with a mark where each phase begins.
pub fn draw(title: &str, samples: &[Sample], phases: &[Phase]) -> String {
    let height = TOP + PANELS.len() as f64 * (PANEL + GAP) + 10.0;
    let end = samples.len() as f64 * SPAN as f64 / SECOND as f64;
    let x = |seconds: f64| LEFT + (WIDTH - LEFT - RIGHT) * seconds / end.max(1.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\">\
         <title>{title}</title><style>{STYLE}</style>\n"
    );
    text(&mut out, LEFT, 18.0, "start", title);
    for (index, panel) in PANELS.iter().enumerate() {
        let top = TOP + 18.0 + index as f64 * (PANEL + GAP);
        draw_panel(&mut out, panel, samples, top, &x);
    }
    for phase in phases {
        let at = x(phase.start as f64 / SECOND as f64);
        let bottom = height - GAP - 10.0 + 18.0;
        let _ = writeln!(out, "<path d=\"M{at:.1} {TOP}V{bottom:.1}\" stroke=\"#8888\"/>");
        text(&mut out, at + 3.0, height - 8.0, "start", phase.event.name());
    }
    out + "</svg>\n"
}

fn draw_panel(
    out: &mut String,
    panel: &Panel,
    samples: &[Sample],
    top: f64,
    x: &impl Fn(f64) -> f64,
) {
    let values = panel.lines.iter().flat_map(|(.., value)| samples.iter().map(value));
    let most = nice(values.fold(0.0, f64::max));
    let y = |value: f64| top + PANEL * (1.0 - value / most);
    text(out, LEFT, top - 6.0, "start", &format!("{} ({})", panel.title, panel.unit));
    for value in [0.0, most / 2.0, most] {
        let at = y(value);
        let end = WIDTH - RIGHT;
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{end}\" stroke=\"#8884\"/>");
        text(out, LEFT - 6.0, at + 4.0, "end", &value.to_string());
    }
    for (number, (name, colour, value)) in panel.lines.iter().enumerate() {
        let point = |(index, sample): (usize, &Sample)| {
            let seconds = (index as f64 + 0.5) * SPAN as f64 / SECOND as f64;
            (format!("{:.1}", x(seconds)), format!("{:.1}", y(value(sample))))
        };
        let points = corners(samples.iter().enumerate().map(point).collect());
        let _ = writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\"/>");
        let at = WIDTH - RIGHT - 70.0 * (panel.lines.len() - 1 - number) as f64;
        let _ = writeln!(
            out,
            "<text x=\"{at}\" y=\"{:.1}\" text-anchor=\"end\" style=\"fill:{colour}\">{name}</text>",
            top - 6.0
        );
    }
}

/// The points of a line, without those in the middle of a level part.
fn corners(points: Vec<(String, String)>) -> String {
    let is_corner = |index: usize| {
        let level = |index: usize| points.get(index).map(|(_, y)| y);
        index == 0 || level(index - 1) != level(index) || level(index + 1) != level(index)
    };
    let corners = (0..points.len()).filter(|index| is_corner(*index));
    let written = corners.map(|index| format!("{},{}", points[index].0, points[index].1));
    written.collect::<Vec<_>>().join(" ")
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ =
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// The next number above that reads well.
fn nice(most: f64) -> f64 {
    let power = if most > 0.0 { 10.0_f64.powf(most.log10().floor()) } else { 1.0 };
    let steps = [1.0, 2.0, 4.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= most).unwrap_or(1.0)
}
