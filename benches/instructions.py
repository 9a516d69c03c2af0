"""Instructions of the worker for each request of fixed loads, which callgrind counts without noise."""

import json
import re
from pathlib import Path

from servers import HERE, Servers, wait_until
from volley import LOADS, Volleys

COMMITTED = HERE / "instructions.json"
VARIANTS = ("none", "limit_req", "module")
# What a load is counted for, and then twice as many: the difference has no start in it, nor an end.
VOLLEYS = 24
# By how much a figure may grow.
TOLERANCE = 1.05

Figures = dict[str, dict[str, float]]


def measure(servers: Servers) -> Figures:
    """For each load and variant, the instructions of one request."""
    figures: Figures = {load: {} for load in LOADS}
    for load in LOADS:
        for variant in VARIANTS:
            once, twice = (total(servers, variant, load, volleys) for volleys in (VOLLEYS, 2 * VOLLEYS))
            requests = (twice[0] - once[0])
            figures[load][variant] = round((twice[1] - once[1]) / requests)
    return figures


def total(servers: Servers, variant: str, load: str, volleys: int) -> tuple[int, int]:
    """The requests of a run under callgrind, and all its instructions."""
    out = servers.room() / "callgrind.out"
    wrapper = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}"]
    redis = servers.redis()
    if variant == "module":
        nginx = servers.module(redis, single=True, wrapper=wrapper)
    else:
        nginx = servers.nginx(variant, single=True, wrapper=wrapper)
    client = Volleys(nginx)
    requests = client.fire(load, volleys, limits=variant != "none")
    client.close()
    servers.stop(nginx, redis)
    wait_until(out.exists, "callgrind's figures")
    return requests, int(re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE).group(1))


def as_table(figures: Figures, committed: Figures) -> str:
    """Figures in Markdown."""
    lines = ["| instructions a request | " + " | ".join(VARIANTS) + " | module, committed |", "|---|" + "---|" * 4]
    for load, by_variant in figures.items():
        before = committed.get(load, {}).get("module", "—")
        lines.append(f"| {load} | " + " | ".join(f"{by_variant[variant]:.0f}" for variant in VARIANTS) + f" | {before} |")
    return "\n".join(lines)


def grown(figures: Figures, committed: Figures) -> list[str]:
    """What the module has become worse in, as sentences."""
    return [f"{load}: {figures[load]['module']:.0f} instructions a request, {by_variant['module']:.0f} are committed"
            for load, by_variant in committed.items()
            if figures[load]["module"] > by_variant["module"] * TOLERANCE]


def committed_figures(path: Path = COMMITTED) -> Figures:
    return json.loads(path.read_text()) if path.exists() else {}


def commit(figures: Figures) -> None:
    COMMITTED.write_text(json.dumps(figures, indent=2) + "\n")
