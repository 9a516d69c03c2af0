"""Instructions of the worker for each request of fixed loads, which callgrind counts without noise."""

import json
import re
from pathlib import Path

from servers import HERE, Servers, wait_until
from volley import LOADS, WIDTH, Volleys, commands_of

COMMITTED = HERE / "instructions.json"
VARIANTS = ("none", "limit_req", "module")
# The volleys that a load is counted for, and then twice as many: the difference has no start in it, nor an end. An entry of the
# deny cache lives for a second, in which a flood must fit.
VOLLEYS = {"distinct": 24, "hot": 24, "flood": 12}
# Each run is done so often, and the least is taken.
RUNS = 2
# How many runs may be disturbed before that is an error.
ATTEMPTS = 20
# By how much a figure may grow.
TOLERANCE = 1.05

Figures = dict[str, dict[str, int]]


def measure(servers: Servers, variants: tuple[str, ...] = VARIANTS) -> Figures:
    """For each load and variant, the instructions of one request."""
    return {load: {variant: of_one_request(servers, variant, load) for variant in variants} for load in LOADS}


def of_one_request(servers: Servers, variant: str, load: str) -> int:
    def least(volleys: int) -> int:
        # A disturbance, such as a piece of an answer that comes late, only adds to a run.
        return min(undisturbed(servers, variant, load, volleys) for _ in range(RUNS))
    volleys = VOLLEYS[load]
    return round((least(2 * volleys) - least(volleys)) / (volleys * WIDTH))


def undisturbed(servers: Servers, variant: str, load: str, volleys: int) -> int:
    """All instructions of a run in which Redis ran as many commands as the load needs. On a slow machine it may be
    more, as entries of the deny cache expire, or requests for one key come too late for its command."""
    expected = commands_of(load, volleys) if variant == "module" else 0
    for _ in range(ATTEMPTS):
        instructions, commands = total(servers, variant, load, volleys)
        if commands == expected:
            return instructions
    raise RuntimeError(f"{load}: Redis ran {commands} commands for {volleys} volleys, not {expected}, in the last of "
                       f"{ATTEMPTS} runs")


def total(servers: Servers, variant: str, load: str, volleys: int) -> tuple[int, int]:
    """All instructions of a run with so many volleys, and how many commands Redis ran for it."""
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
    commands = redis.client.scripts_run()
    servers.stop(nginx, redis)
    # The file may be there before they are.
    return wait_until(lambda: figure_in(out), "callgrind's figures"), commands


def figure_in(out: Path) -> int | None:
    """The sum that callgrind has written, if it has."""
    found = re.search(r"^(?:totals|summary): (\d+)\n", out.read_text(), re.MULTILINE) if out.exists() else None
    return int(found.group(1)) if found else None


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
