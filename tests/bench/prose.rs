//! Sentences and numbers, as readers expect them in a file.

use std::fmt::Display;

/// The most characters of a line.
const WIDTH: usize = 120;

/// The words of a text in lines of the usual length, all but the first of them indented.
pub fn paragraph(text: &str, indent: &str) -> String {
    let mut words = text.split_whitespace();
    let mut filled = words.next().unwrap_or_default().to_owned();
    let mut length = filled.chars().count();
    for word in words {
        let more = word.chars().count();
        if length + 1 + more <= WIDTH {
            filled.push(' ');
            length += 1 + more;
        } else {
            filled.push('\n');
            filled += indent;
            length = indent.len() + more;
        }
        filled += word;
    }
    filled
}

/// A number with a comma before each three digits that follow others.
pub fn grouped(number: impl Display) -> String {
    let number = number.to_string();
    let point = number.find('.').unwrap_or(number.len());
    let mut grouped = String::new();
    for (i, c) in number.char_indices() {
        let is_boundary = i < point && (point - i).is_multiple_of(3);
        if is_boundary && grouped.ends_with(|before: char| before.is_ascii_digit()) {
            grouped.push(',');
        }
        grouped.push(c);
    }
    grouped
}

/// A number rounded to so many significant digits: no more are shown of it.
pub fn significant(number: f64, digits: usize) -> f64 {
    let rounded = format!("{number:.*e}", digits - 1);
    rounded.parse().unwrap_or_else(|_| panic!("{rounded} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_full_as_they_can_be() {
        let (short, long) = ("µ".repeat(59), "µ".repeat(60));
        let text = format!("{short}\n  {long} {short} {long}  next");
        assert_eq!(paragraph(&text, "   "), format!("{short} {long}\n   {short}\n   {long} next"));
    }

    #[test]
    fn a_word_longer_than_a_line_is_not_broken() {
        let long = "x".repeat(WIDTH + 1);
        assert_eq!(paragraph(&format!("a {long} b"), ""), format!("a\n{long}\nb"));
    }

    #[test]
    fn commas_separate_thousands() {
        let numbers = [0.0, -123.0, 999.9, 1_234.5, -123_456.0, 1_234_567.25];
        let grouped = numbers.map(grouped);
        assert_eq!(grouped, ["0", "-123", "999.9", "1,234.5", "-123,456", "1,234,567.25"]);
    }

    #[test]
    fn no_more_than_the_significant_digits_are_shown() {
        let shown =
            [0.1 * 3.0, 0.0, 7.5, 512.0, 123_456.7].map(|it| significant(it, 6).to_string());
        assert_eq!(shown, ["0.3", "0", "7.5", "512", "123457"]);
        assert_eq!([1.4659, 146.59].map(|it| significant(it, 2)), [1.5, 150.0]);
    }
}
