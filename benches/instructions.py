"""Instructions of the worker for each request of fixed loads, which callgrind counts without noise."""

import json
import re
from pathlib import Path

from servers import HERE, Servers, wait_until
from volley import LOADS, WIDTH, Volleys

COMMITTED = HERE / "instructions.json"
VARIANTS = ("none", "limit_req", "module")
# What a load is counted for, and then twice as many: the difference has no start in it, nor an end.
VOLLEYS = 24
# Each run is done so often, and the least is taken.
RUNS = 2
# By how much a figure may grow.
TOLERANCE = 1.05

Figures = dict[str, dict[str, int]]


def measure(servers: Servers, variants: tuple[str, ...] = VARIANTS) -> Figures:
    """For each load and variant, the instructions of one request."""
    return {load: {variant: of_one_request(servers, variant, load) for variant in variants} for load in LOADS}


def of_one_request(servers: Servers, variant: str, load: str) -> int:
    def least(volleys: int) -> int:
        # What disturbs a run, such as a piece of an answer that comes late, only adds to it.
        return min(total(servers, variant, load, volleys) for _ in range(RUNS))
    return round((least(2 * VOLLEYS) - least(VOLLEYS)) / (VOLLEYS * WIDTH))


def total(servers: Servers, variant: str, load: str, volleys: int) -> int:
    """All instructions of a run with so many volleys."""
    out = servers.room() / "callgrind.out"
    wrapper = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}"]
    redis = servers.redis()
    if variant == "module":
        nginx = servers.module(redis, single=True, wrapper=wrapper)
    else:
        nginx = servers.nginx(variant, single=True, wrapper=wrapper)
    client = Volleys(nginx)
    client.fire(load, volleys, limits=variant != "none")
    client.close()
    servers.stop(nginx, redis)
    wait_until(out.exists, "callgrind's figures")
    return int(re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE).group(1))


def as_table(figures: Figures, committed: Figures) -> str:
    """Figures in Markdown."""
    variants = list(next(iter(figures.values())))
    lines = [f"| instructions a request | {' | '.join(variants)} | module, committed |"]
    lines.append("|---" * (len(variants) + 2) + "|")
    for load, by_variant in figures.items():
        before = committed.get(load, {}).get("module", "—")
        lines.append(f"| {load} | {' | '.join(map(str, by_variant.values()))} | {before} |")
    return "\n".join(lines)


def grown(figures: Figures, committed: Figures) -> list[str]:
    """What the module has become worse in, as sentences."""
    return [f"{load}: {figures[load]['module']} instructions a request, {by_variant['module']} are committed"
            for load, by_variant in committed.items()
            if figures[load]["module"] > by_variant["module"] * TOLERANCE]


def committed_figures(path: Path = COMMITTED) -> Figures:
    return json.loads(path.read_text()) if path.exists() else {}


def commit(figures: Figures) -> None:
    COMMITTED.write_text(json.dumps(figures, indent=2) + "\n")
