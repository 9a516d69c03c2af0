//! Lua without what Redis does not need: comments, indentation and empty lines.

/// A program with fewer bytes. Strings, also those in long brackets, stay as they are.
pub(super) fn minify(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (token, after) = rest.split_at(token(rest, first));
        rest = after;
        match first {
            '\n' => end_line(&mut out),
            // Words that a comment separates are separate without it.
            _ if token.starts_with("--") => push_space(&mut out),
            ' ' | '\t' | '\r' => push_space(&mut out),
            _ => out.push_str(token),
        }
    }
    end_line(&mut out);
    out
}

/// How long the token at the start of `rest` is: a comment, a string, or else one character.
fn token(rest: &str, first: char) -> usize {
    if let Some(comment) = rest.strip_prefix("--") {
        let length = long_bracket(comment).or_else(|| comment.find('\n'));
        return length.map_or(rest.len(), |length| length.saturating_add(2));
    }
    match first {
        '"' | '\'' => quoted(rest, first),
        '[' => long_bracket(rest).unwrap_or(1),
        _ => first.len_utf8(),
    }
}

/// The length of a string in these quotes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let mut is_end = |character: char| {
        let was_escaped = is_escaped;
        is_escaped = character == '\\' && !was_escaped;
        character == quote && !was_escaped
    };
    let end = rest.char_indices().skip(1).find(|(_, character)| is_end(*character));
    end.map_or(rest.len(), |(index, _)| index.saturating_add(quote.len_utf8()))
}

/// The length of a string in long brackets, such as `[[a]]` or `[==[a]==]`, if there is one.
fn long_bracket(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('[')?;
    let level = inside.len().saturating_sub(inside.trim_start_matches('=').len());
    let content = inside.trim_start_matches('=').strip_prefix('[')?;
    let close = format!("]{}]", "=".repeat(level));
    let start = rest.len().saturating_sub(content.len());
    Some(
        content
            .find(&close)
            .map_or(rest.len(), |end| start.saturating_add(end).saturating_add(close.len())),
    )
}

/// A space, but not at the start of a line, and not behind another one.
fn push_space(out: &mut String) {
    if !out.is_empty() && !out.ends_with(['\n', ' ']) {
        out.push(' ');
    }
}

/// The end of a line, unless it is empty. No string ends with a space outside of its quotes.
fn end_line(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::minify;

    #[test]
    fn comments_and_indentation_go() {
        let source = "-- a comment\n\nlocal a = 1 -- one\n  if a then\t-- yes\n\tb()\n  end\n\n";
        assert_eq!(minify(source), "local a = 1\nif a then\nb()\nend\n");
        assert_eq!(minify("a--[[ b\n]]c --[==[ ]] \n d]==]\n  e"), "a c\ne\n");
        assert_eq!(minify("a = b - -c"), "a = b - -c\n");
        assert_eq!(minify("-- nothing"), "");
    }

    #[test]
    fn strings_stay() {
        for source in [
            "a = 'x  -- y' .. \"'--\"\n",
            "a = 'it\\'s -- \\\\' .. '  '\n",
            "a = [[ -- b\n\n   c ]] .. [=[ ]] -- ]=]\n",
            "a = 'é  --' .. b[c[1]]\n",
            "a = 'no end --  ",
        ] {
            let whole = if source.ends_with('\n') { source.to_owned() } else { minify(source) };
            assert_eq!(minify(source), whole);
            assert_eq!(minify(&minify(source)), minify(source));
        }
    }

    #[test]
    fn a_string_that_ends_with_a_space_or_a_line_keeps_it() {
        assert_eq!(minify("a = ' '\nb = [[\n]]\n"), "a = ' '\nb = [[\n]]\n");
    }
}
