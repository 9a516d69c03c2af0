"""The report of a run: Markdown and pictures."""

from pathlib import Path

import instructions
import paper
import plot
from goals import CASES, Settings
from load import Record
from results import GOALS, Goal, Round, disturbed, doubts, median_round, medians
from scale import SCALES, Scale


def method(settings: Settings) -> str:
    return f"""\
One NGINX for each way to limit, each with one worker, all up at the same time. `wrk -t1 -c{settings.connections}` asks
each in turn for {settings.seconds} s; rounds: {settings.rounds}, each begun by another one.
Figures are medians of the rounds; min and max are of the ratio in single rounds. NGINX answers with a picture from its
memory, its cheapest answer, so that a limiter weighs as much as it can. CPU is what the scheduler says that a process
has had (`/proc/PID/schedstat`), over the requests that wrk counted.

The worker has a core of its own. Where there are only two cores, Redis and wrk share the other: all variants that ask
Redis are slowed down by that, `limit_req` is not. Nothing leaves the machine. Redis is asked over TCP.

The module has its defaults, header fields included, only with a longer timeout and errors that close. Lua asks with the
same EVALSHA, over pooled connections, with a small client for any command, and sets the same header fields.

"Redis alone" is redis-benchmark on random keys: 64 commands in a packet, or, where it says "alone", one, from 64
connections. The points of a scale are measured one after the other, not by turns."""


def write(directory: Path, machine: dict[str, str], settings: Settings, cases: dict[str, list[Round]],
          scales: dict[str, dict[int, list[Record]]], figures: instructions.Figures, command: list[str]) -> str:
    """Writes the pictures, and returns the Markdown, which refers to them."""
    parts = ["# Performance", "", *(f"- {name}: {value}" for name, value in machine.items()), ""]
    wrong = [doubt for name, rounds in cases.items() for doubt in doubts(name, rounds)]
    wrong += [doubt for name, points in scales.items() for point, records in points.items()
              for doubt in doubts(f"{name} {point:,}", [{"module": record} for record in records])]
    records = [record for rounds in cases.values() for round_ in rounds for record in round_.values()]
    # In the scales there is more that is ours: proxies, and the other nodes of a cluster.
    wrong += filter(None, [disturbed(records)])
    if wrong:
        parts += ["**Not to be trusted:**", "", *(f"- {doubt}" for doubt in wrong), ""]
    if any(goal.case in cases for goal in GOALS):
        parts += ["## Goals", "", goals_table(cases), ""]
    parts += ["## Method", "", method(settings), ""]
    for name, rounds in cases.items():
        parts += [f"## {sentence(CASES[name].title)}", "", records_table(median_round(rounds), "variant"), ""]
    if figures:
        parts += ["## Instructions", "", instructions.as_table(figures, instructions.committed_figures()), ""]
    for name, points in scales.items():
        by_point = {f"{point:,}": medians(records) for point, records in points.items()}
        (directory / f"{name}.svg").write_text(picture(SCALES[name], points))
        parts += [f"## {sentence(SCALES[name].title)}", "", records_table(by_point, SCALES[name].title), "",
                  f"![{sentence(SCALES[name].title)}]({name}.svg)", ""]
    if {"distinct", "latency", "redis"} <= cases.keys() and "keys" in scales:
        per_key = medians(list(scales["keys"].values())[-1])["bytes_per_key"]
        parts += ["## A large fleet, on paper", "",
                  paper.calculate(median_round(cases["distinct"]), median_round(cases["latency"]),
                                  median_round(cases["redis"]), per_key, command)]
    return "\n".join(parts)


def goals_table(cases: dict[str, list[Round]]) -> str:
    lines = ["| case | goal | measured | min – max | verdict |", "|---|---|---|---|---|"]
    lines += [goal_line(goal, cases[goal.case]) for goal in GOALS if goal.case in cases]
    return "\n".join(lines)


def goal_line(goal: Goal, rounds: list[Round]) -> str:
    figure, single = goal.figure(median_round(rounds)), [goal.figure(round_) for round_ in rounds]
    relation = "at most" if goal.at_most else "at least"
    verdict = "met" if goal.met(figure) else "**missed**"
    return (f"| {goal.title} | {relation} {goal.bound:g} | {number(figure)} | "
            f"{number(min(single))} – {number(max(single))} | {verdict} |")


# What is shown of a record: its name, the heading, the factor, the digits.
COLUMNS = {
    "rps": ("requests/s", 1, 0), "nginx_us": ("nginx µs/request", 1, 2), "redis_us": ("redis µs/request", 1, 2),
    "load_us": ("load µs/request", 1, 2), "p50_us": ("median µs", 1, 0), "p99_us": ("p99 µs", 1, 0),
    "scripts_per_request": ("commands/request", 1, 3), "refused": ("rejected %", 100, 1),
    "bytes_per_key": ("bytes/key in Redis", 1, 0), "waiting": ("waiting", 1, 0), "bytes": ("bytes/request", 1, 0),
    "distinct": ("distinct keys", 1, 3), "hot": ("one hot key", 1, 3), "flood": ("rejected flood", 1, 3),
}


def records_table(records: dict[str, Record], first: str) -> str:
    """A line for each record, with the columns that any has."""
    columns = [name for name in COLUMNS if any(name in record for record in records.values())]
    headings = [first, *(COLUMNS[name][0] for name in columns)]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for title, record in records.items():
        cells = [cell(record, name) for name in columns]
        lines.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join(lines)


def cell(record: Record, name: str) -> str:
    _, factor, digits = COLUMNS[name]
    return f"{record[name] * factor:,.{digits}f}" if name in record else "—"


def picture(scale: Scale, points: dict[int, list[Record]]) -> str:
    by_point = {point: medians(records) for point, records in points.items()}
    lines = {name: [(point, record[field]) for point, record in by_point.items()]
             for name, field in (("nginx", "nginx_us"), ("redis", "redis_us"))}
    return plot.chart(f"CPU by {scale.title}", scale.title, "µs/request", lines, scale.logarithmic)


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


def sentence(title: str) -> str:
    return title[0].upper() + title[1:]
