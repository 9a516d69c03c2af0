//! Charts as SVG, as small as they can be. They take the colours of a light or a dark page.

use std::iter;

use crate::prose::{grouped, significant};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 48.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 44.0;
const STYLE: &str =
    "text{font:12px sans-serif;fill:#333}@media(prefers-color-scheme:dark){text{fill:#ccc}}";
const COLOURS: [&str; 4] = ["#3b7dd8", "#d9822b", "#3a9d5d", "#a854a8"];

/// The gap to the next line of a legend.
const LEGEND: f64 = 15.0;

/// The place of the names of bars.
const BAR_LEFT: f64 = 150.0;
const BAR_STEP: f64 = 18.0;
const GROUP_GAP: f64 = 14.0;

/// A line: its name and its points.
pub type Line = (&'static str, Vec<(u64, f64)>);

/// A group of bars: its name, and of each bar the name and the parts.
pub type Group = (&'static str, Vec<(&'static str, Vec<f64>)>);

/// A chart of lines. Its y begins at 0, so that no small change looks like a cliff.
pub fn lines(
    title: &str,
    [x_title, y_title]: [&str; 2],
    lines: &[Line],
    logarithmic: bool,
) -> String {
    let mut xs: Vec<u64> = lines.iter().flat_map(|(_, points)| points).map(|(x, _)| *x).collect();
    xs.sort_unstable();
    xs.dedup();
    let ys = lines.iter().flat_map(|(_, points)| points).map(|(_, y)| *y);
    let top = nice(ys.fold(0.0, f64::max));
    let place = |x: u64| LEFT + (WIDTH - LEFT - RIGHT) * share(x, &xs, logarithmic);
    let height = |y: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top;

    let mut parts = vec![
        heading(LEFT, title),
        text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0, x_title, "middle", ""),
        text(8.0, TOP - 10.0, y_title, "start", ""),
    ];
    for i in 0..=5 {
        let y = top * f64::from(i) / 5.0;
        let to = WIDTH - RIGHT;
        parts.push(format!(r##"<path d="M{LEFT} {:.1}H{to}" stroke="#8884"/>"##, height(y)));
        parts.push(text(LEFT - 6.0, height(y) + 4.0, &significant(y, 6).to_string(), "end", ""));
    }
    let below = HEIGHT - BOTTOM + 18.0;
    parts.extend(xs.iter().map(|x| text(place(*x), below, &grouped(x), "middle", "")));
    for (i, (name, points)) in lines.iter().enumerate() {
        let points = points.iter().map(|(x, y)| (place(*x), height(*y))).collect::<Vec<_>>();
        parts.extend(line(&points, colour(i)));
        parts.push(legend(i, name));
    }
    svg(title, HEIGHT, &parts)
}

/// How far right a point is, from 0 for the first one to 1 for the last.
fn share(x: u64, xs: &[u64], logarithmic: bool) -> f64 {
    let scaled = |x: u64| if logarithmic { (x as f64).log10() } else { x as f64 };
    let (low, high) = (scaled(xs[0]), scaled(xs[xs.len() - 1]));
    if high > low { (scaled(x) - low) / (high - low) } else { 0.5 }
}

/// A line through points, which are marked.
fn line(points: &[(f64, f64)], colour: &str) -> Vec<String> {
    let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    let path =
        format!(r#"<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>"#);
    let mark =
        |(x, y): &(f64, f64)| format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#);
    iter::once(path).chain(points.iter().map(mark)).collect()
}

/// Bars from left to right, each of parts one after the other, with the sum behind it.
pub fn bars(title: &str, parts: &[&str], groups: &[Group]) -> String {
    let bars = groups.iter().flat_map(|(_, group)| group);
    let longest = bars.map(|(_, bar)| bar.iter().sum()).fold(0.0, f64::max);
    let scale = if longest > 0.0 { (WIDTH - BAR_LEFT - RIGHT) / longest } else { 0.0 };
    let mut drawn = vec![heading(8.0, title)];
    drawn.extend(parts.iter().enumerate().map(|(i, name)| legend(i, name)));
    let mut y = TOP;
    for (name, group) in groups {
        drawn.push(text(8.0, y + 12.0, name, "start", ""));
        for (name, bar) in group {
            drawn.push(text(BAR_LEFT - 6.0, y + 12.0, name, "end", ""));
            drawn.extend(bar_at(y, bar, scale));
            y += BAR_STEP;
        }
        y += GROUP_GAP;
    }
    svg(title, y, &drawn)
}

/// A bar and its sum.
fn bar_at(y: f64, bar: &[f64], scale: f64) -> Vec<String> {
    let height = BAR_STEP - 4.0;
    let mut x = BAR_LEFT;
    let mut drawn = Vec::new();
    for (i, value) in bar.iter().enumerate() {
        let (width, colour) = (value * scale, colour(i));
        drawn.push(format!(
            r#"<rect x="{x:.1}" y="{y}" width="{width:.1}" height="{height}" fill="{colour}"/>"#
        ));
        x += width;
    }
    let sum = format!("{:.1}", bar.iter().sum::<f64>());
    drawn.push(text(x + 4.0, y + 12.0, &sum, "start", ""));
    drawn
}

fn svg(title: &str, height: f64, parts: &[String]) -> String {
    let (title, parts) = (escaped(title), parts.join("\n"));
    let start =
        format!(r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">"#);
    format!("{start}<title>{title}</title><style>{STYLE}</style>\n{parts}\n</svg>\n")
}

fn heading(x: f64, title: &str) -> String {
    text(x, 20.0, title, "start", "font-weight:600")
}

/// The name of what has the colour of this number.
fn legend(i: usize, name: &str) -> String {
    let style = format!("fill:{}", colour(i));
    text(WIDTH - RIGHT, 20.0 + LEGEND * i as f64, name, "end", &style)
}

fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()]
}

fn text(x: f64, y: f64, words: &str, anchor: &str, style: &str) -> String {
    let words = escaped(words);
    format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" style="{style}">{words}</text>"#)
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

/// The next number above that divides well by five.
fn nice(most: f64) -> f64 {
    let power = if most > 0.0 { 10_f64.powf(most.log10().floor()) } else { 1.0 };
    let steps = [1.0, 2.0, 2.5, 5.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= most).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_divides_well_by_five() {
        let tops = [0.0, 0.03, 1.0, 7.3, 20.0, 21.0, 26.0, 999.0].map(nice);
        assert_eq!(tops, [1.0, 0.05, 1.0, 10.0, 20.0, 25.0, 50.0, 1000.0]);
    }

    #[test]
    fn a_single_point_is_in_the_middle() {
        assert_eq!(share(7, &[7], true), 0.5);
        assert_eq!(share(10, &[1, 10, 100], true), 0.5);
        assert_eq!(share(1, &[1, 10, 100], false), 0.0);
    }
}
