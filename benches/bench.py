"""Measures the module beside other ways to limit. scripts/bench runs this; its options are there."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import connections
import instructions
import machine
import publication
import report
from fleet import Fleet
from goals import CASES, Bench, Settings
from machine import Pinning
from progress import Progress
from results import Results
from scale import SCALES
from servers import Servers

INSTRUCTIONS = "instructions"
INSTRUCTIONS_SECONDS = 40
EVERYTHING = "goals,scale,instructions"
ALL = [*CASES, *SCALES, INSTRUCTIONS]
TOOLS = ("nginx", "redis-server", "redis-benchmark", "wrk")


def main() -> int:
    arguments = parse()
    if not os.environ["RATE_LIMIT_MODULE"]:
        return 0
    tools = {name: os.environ.get(name.upper().replace("-", "_")) or name for name in TOOLS}
    tools |= {"module": os.environ["RATE_LIMIT_MODULE"], "lua_modules": os.environ["LUA_MODULES"]}
    # The processes that were started also end if this is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    if arguments.fleet:
        pinning = Pinning.of_this_machine()
        with Servers(tools, pinning) as servers:
            print(connections.measure(servers, arguments.fleet))
        for name, what in machine.describe(tools, pinning).items():
            print(f"{name}: {what}")
        return 0
    if arguments.instructions:
        return check_instructions(tools, arguments.update)
    return measure(tools, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measures the module beside no limiter, limit_req and Lua, in rounds by turns.",
        epilog=f"cases: {', '.join(CASES)} (goals), {', '.join(SCALES)} (scale), {INSTRUCTIONS}")
    parser.add_argument("--cases", default=EVERYTHING, help="which, separated by commas (default: all)")
    parser.add_argument("--duration", type=int, default=5, metavar="S", help="of each measurement, in s (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--connections", type=int, default=64, help="of wrk (default: 64)")
    parser.add_argument("--keys", type=int, default=10 ** 7, help="the most to put into Redis (default: 10 million)")
    parser.add_argument("--waiting", type=int, default=10_000, help="the most that wait (default: 10000)")
    parser.add_argument("--with", dest="directives", default="", metavar="DIRECTIVES",
                        help="more configuration for the module, such as 'rate_limit_redis_headers off;'")
    parser.add_argument("--unpinned", action="store_true", help="leave it to the scheduler who runs where")
    parser.add_argument("--quick", action="store_true", help="one round of 1 s of fewer cases, to see that all works")
    parser.add_argument("--publish", action="store_true",
                        help="put the report into docs/performance/report, and its goals into the page beside it")
    parser.add_argument("--instructions", action="store_true",
                        help="only count instructions, and fail where they have grown by 5 %%")
    parser.add_argument("--fleet", type=int, nargs="+", metavar="WORKERS",
                        help="only measure what the connections of so many workers cost Redis")
    parser.add_argument("--update", action="store_true", help="with --instructions: write the figures down instead")
    arguments = parser.parse_args()
    groups = {"goals": list(CASES), "scale": list(SCALES)}
    if arguments.quick:
        arguments.duration, arguments.rounds = 1, 1
        arguments.keys, arguments.waiting = min(arguments.keys, 10 ** 6), min(arguments.waiting, 2000)
        groups["instructions"] = []
    arguments.names = [name for group in arguments.cases.split(",") for name in groups.get(group, [group])]
    unknown = [name for name in arguments.names if name not in ALL]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(ALL)}")
    if arguments.duration < 1 or arguments.rounds < 1 or arguments.connections < 1:
        parser.error("duration, rounds and connections are at least 1")
    if arguments.publish and (arguments.quick or arguments.cases != EVERYTHING):
        parser.error("--publish is for a whole run, without --quick or --cases")
    if arguments.update and not arguments.instructions:
        parser.error("--update goes with --instructions")
    return arguments


def measure(tools: dict[str, str], arguments: argparse.Namespace) -> int:
    settings = Settings(arguments.duration, arguments.rounds, arguments.connections, arguments.quick, arguments.keys,
                        arguments.waiting, arguments.directives)
    pinning = Pinning.none() if arguments.unpinned else Pinning.of_this_machine()
    about = machine.describe(tools, pinning) | {"flags": " ".join(sys.argv[1:]) or "none"}
    results = Results(about, settings, pinning)
    with Servers(tools, pinning) as servers:
        run(servers, arguments.names, results)

    directory = Path("build/bench") / time.strftime("%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    (directory / "results.json").write_text(json.dumps(results.as_json(), indent=1) + "\n")
    text = report.write(directory, results)
    (directory / "README.md").write_text(text)
    print(text)
    print(f"==> wrote {directory}/", file=sys.stderr)
    if results.wrong_answers():
        raise RuntimeError("what was measured is not what should have been: see the report")
    if arguments.publish:
        publication.publish(directory, report.goals_table(results.cases))
    return 0


def run(servers: Servers, names: list[str], results: Results) -> None:
    """Measures what these names stand for."""
    settings, progress = results.settings, Progress()
    cases, scales = [name for name in names if name in CASES], [name for name in names if name in SCALES]
    progress.plan(sum(CASES[name].seconds(settings) * settings.rounds for name in cases))
    progress.plan(sum(SCALES[name].seconds(settings) for name in scales))
    progress.plan(INSTRUCTIONS_SECONDS if INSTRUCTIONS in names else 0)
    bench = Bench(servers, settings, progress, Fleet(servers, settings.directives))
    results.command = bench.fleet.commands["free"]
    results.cases = {name: [] for name in cases}
    for name in cases:
        CASES[name].prepare(bench)
    for number in range(settings.rounds):
        for name in cases:
            results.cases[name].append(CASES[name].round(bench, number, name))
    for name in scales:
        results.scales[name] = SCALES[name].run(bench, name)
    bench.fleet.stop()
    if INSTRUCTIONS in names:
        progress.step(INSTRUCTIONS, INSTRUCTIONS_SECONDS)
        results.instructions = instructions.measure(servers)
    progress.end()


def check_instructions(tools: dict[str, str], update: bool) -> int:
    with Servers(tools, Pinning.none()) as servers:
        figures = instructions.measure(servers, instructions.VARIANTS if update else ("module",))
    committed = instructions.committed_figures()
    print(instructions.as_table(figures, committed))
    if update:
        instructions.commit(figures)
        return 0
    if not committed:
        print("no figures are committed: scripts/bench --instructions --update", file=sys.stderr)
        return 1
    worse = instructions.grown(figures, committed)
    for what in worse:
        print(f"more than 5 % worse: {what}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as problem:
        sys.exit(f"\nscripts/bench: {problem}")
