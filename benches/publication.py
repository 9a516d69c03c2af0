"""Puts the report of a run to where readers find it."""

import shutil
from pathlib import Path

from servers import HERE

PLACE = HERE.parent / "docs" / "performance"


def publish(report: Path, goals: str) -> None:
    """The whole report to docs/performance/report, in the place of the one before, and its goals into the page above."""
    shutil.rmtree(PLACE / "report", ignore_errors=True)
    shutil.copytree(report, PLACE / "report")
    page = PLACE / "README.md"
    page.write_text(replaced(page.read_text(), "bench:goals", goals))


def replaced(text: str, mark: str, new: str) -> str:
    """The text with something new between the two comments of this mark."""
    first, last = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, found_first, rest = text.partition(first)
    _, found_last, after = rest.partition(last)
    if not found_first or not found_last:
        raise RuntimeError(f"docs/performance/README.md does not have {first} and, behind it, {last}")
    return f"{before}{first}\n\n{new}\n\n{last}{after}"
