"""Puts the report of a run to where readers find it."""

import shutil
from pathlib import Path

from servers import HERE

ROOT = HERE.parent


def publish(report: Path, goals: str) -> None:
    """The whole report to docs/performance, in the place of the one before, and its table of goals into the README."""
    place = ROOT / "docs" / "performance"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(report, place)
    readme = ROOT / "README.md"
    readme.write_text(replaced(readme.read_text(), "bench:goals", goals))


def replaced(text: str, mark: str, new: str) -> str:
    """The text with something new between the two comments of this mark."""
    first, last = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, found_first, rest = text.partition(first)
    _, found_last, after = rest.partition(last)
    if not found_first or not found_last:
        raise RuntimeError(f"README.md does not have {first} and, behind it, {last}")
    return f"{before}{first}\n\n{new}\n\n{last}{after}"
