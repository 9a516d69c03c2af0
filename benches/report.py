"""The report of a run: Markdown and pictures."""

from pathlib import Path

import instructions
import paper
import plot
from goals import BASELINE, CASES, CLIENT_RATE, CLIENTS, DISTINCT_KEYS, KNOWN_KEYS, Settings
from load import Record
from machine import Pinning
from prose import paragraph
from results import GOALS, Goal, Results, Round, median_round, medians
from scale import SCALES, Scale

# The cases that a picture compares.
COMPARED = ("distinct", "hot", "flood")


def method(settings: Settings, pinning: Pinning) -> str:
    directives = f"Its configuration also has `{settings.directives}`." if settings.directives else ""
    paragraphs = (f"""
        One NGINX for each way to limit, each with one worker, all up at the same time. `wrk -t1
        -c{settings.connections}` loads each in turn for {settings.seconds} s; rounds: {settings.rounds}, each begun by
        another one. Distinct keys are {DISTINCT_KEYS:,} random ones; the flood is for {KNOWN_KEYS:,} that have spent
        all. {CLIENTS:,} clients send about {CLIENTS * CLIENT_RATE:,} requests a second in all, with a limit
        of twice that for each; of the clients of a Zipf distribution the k-th makes requests in proportion to 1 / k.
        `lease` is the module with `rate_limit_redis_lease on`; `fields` is `limit_req` with four lines `add_header` that
        send what the module sends with a rejection. Figures are medians of the rounds; min and max are of
        the ratio in single rounds. NGINX answers with a picture from its memory, its cheapest answer, so that a limiter
        weighs as much as it can. CPU is what the scheduler says that a process has had (`/proc/PID/schedstat`), over
        the requests that wrk counted.""", f"""
        {pinning.in_words()} Nothing leaves the machine; Redis is reached over TCP.""", f"""
        The module has its defaults, header fields included, only with a longer timeout and errors that show.
        {directives} Lua sends the same EVALSHA, over pooled connections, with a small client for any command; it
        makes the verdict from what the script has found, as the module does, and sets the same header fields.""", """
        "Redis alone" is redis-benchmark on random keys: 64 commands in a packet, or, where it says "alone", one, from
        64 connections. `baseline` is the script below. The points of a scale are measured one after the other, not by
        turns. Where requests wait long, there are more commands than requests, as wrk does not wait for the last
        answers.""")
    code = f"```lua\n{BASELINE.read_text().strip()}\n```"
    return "\n\n".join([*map(paragraph, paragraphs), code])


def write(directory: Path, results: Results) -> str:
    """Writes the pictures, and returns the Markdown, which refers to them."""
    settings, cases, scales = results.settings, results.cases, results.scales
    parts = ["# Performance", "", *(f"- {name}: {value}" for name, value in results.machine.items()), ""]
    doubts = [*results.wrong_answers(), *filter(None, [results.disturbance()])]
    if doubts:
        parts += ["**Not to be trusted:**", "", *(f"- {doubt}" for doubt in doubts), ""]
    if any(goal.case in cases for goal in GOALS):
        parts += ["## Goals", "", goals_table(cases), ""]
    if set(COMPARED) <= cases.keys():
        (directory / "cpu.svg").write_text(comparison(cases))
        parts += ["![CPU of a request, by limiter](cpu.svg)", ""]
    parts += ["## Method", "", method(settings, results.pinning), ""]
    for name, rounds in cases.items():
        parts += [f"## {sentence(CASES[name].title)}", "", records_table(median_round(rounds), "variant"), ""]
    if results.instructions:
        table = instructions.as_table(results.instructions, instructions.committed_figures())
        parts += ["## Instructions", "", table, ""]
    for name, points in scales.items():
        by_point = {f"{point:,}": medians(records) for point, records in points.items()}
        (directory / f"{name}.svg").write_text(picture(SCALES[name], points))
        parts += [f"## {sentence(SCALES[name].title)}", "", records_table(by_point, SCALES[name].title), "",
                  f"![{sentence(SCALES[name].title)}]({name}.svg)", ""]
    most_keys = next(reversed(scales.get("keys", {0: [{}]}).values()))[0]
    if {"distinct", "latency", "redis"} <= cases.keys() and "bytes_per_key" in most_keys:
        parts += ["## A large fleet, on paper", "",
                  paper.calculate(median_round(cases["distinct"]), median_round(cases["latency"]),
                                  median_round(cases["redis"]), most_keys["bytes_per_key"], results.command)]
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


# The figures that are shown of a record: name, the heading, the factor, the digits.
COLUMNS = {
    "rps": ("requests/s", 1, 0), "nginx_us": ("nginx µs/request", 1, 2), "redis_us": ("redis µs/request", 1, 2),
    "load_us": ("wrk µs/request", 1, 2), "nginx_cores": ("cores for nginx", 1, 2),
    "other_cores": ("cores for redis, wrk", 1, 2), "p50_us": ("median µs", 1, 0), "p99_us": ("p99 µs", 1, 0),
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


def comparison(cases: dict[str, list[Round]]) -> str:
    bars = {CASES[name].title: {variant: (record["nginx_us"], record["redis_us"])
                                for variant, record in median_round(cases[name]).items()} for name in COMPARED}
    return plot.bars("CPU of a request, µs", ("nginx", "redis"), bars)


def number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}"


def sentence(title: str) -> str:
    return title[0].upper() + title[1:]
