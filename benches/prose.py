"""Sentences as the lines of a file."""

import textwrap


def paragraph(text: str, indent: str = "") -> str:
    """The text in lines of the usual length, all but the first of them indented."""
    return textwrap.fill(" ".join(text.split()), 120, subsequent_indent=indent, break_long_words=False,
                         break_on_hyphens=False)
