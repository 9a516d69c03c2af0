"""What has been measured, and what it amounts to."""

import statistics
from dataclasses import dataclass
from typing import Callable

from load import Record

# One round of a case: the record of each variant.
Round = dict[str, Record]


def medians(records: list[Record]) -> Record:
    """Of several records, the median of each number."""
    return {name: statistics.median(record[name] for record in records) for name in records[0]}


def median_round(rounds: list[Round]) -> Round:
    """Of several rounds, the medians of each variant."""
    return {variant: medians([round_[variant] for round_ in rounds]) for variant in rounds[0]}


@dataclass(frozen=True)
class Goal:
    """A number that shall be at least or at most another."""

    case: str
    title: str
    bound: float
    at_most: bool
    figure: Callable[[Round], float]

    def met(self, figure: float) -> bool:
        return figure <= self.bound if self.at_most else figure >= self.bound


def ratio(field: str, over: str, of: str = "module") -> Callable[[Round], float]:
    return lambda round_: round_[of][field] / round_[over][field]


def added_latency(round_: Round) -> float:
    added = round_["module"]["p50_us"] - round_["none"]["p50_us"]
    return added / round_["redis-benchmark"]["p50_us"]


def heap(round_: Round) -> float:
    return max(calls - round_["none"][load] for load, calls in round_["module"].items())


GOALS = (
    Goal("distinct", "distinct keys: CPU of the worker per request, over `limit_req`", 1.15, True,
         ratio("nginx_us", "limit_req")),
    Goal("distinct", "distinct keys: throughput, over Lua", 3, False, ratio("rps", "lua")),
    Goal("hot", "one hot key: throughput, over `limit_req`", 0.8, False, ratio("rps", "limit_req")),
    Goal("hot", "one hot key: commands to Redis per request", 0.1, True,
         lambda round_: round_["module"]["scripts_per_request"]),
    Goal("flood", "rejected flood: throughput, over `limit_req`", 0.98, False, ratio("rps", "limit_req")),
    Goal("latency", "one connection: median latency added, over a round trip to Redis", 1.2, True, added_latency),
    Goal("redis", "CPU of Redis per decision, `token_bucket`, over TIME, GET and SET", 1.3, True,
         ratio("redis_us", "baseline", "token_bucket")),
    Goal("redis", "CPU of Redis per decision, `gcra`, over TIME, GET and SET", 1.3, True,
         ratio("redis_us", "baseline", "gcra")),
    Goal("memory", "memory per waiting request beyond NGINX's own, bytes", 512, True,
         lambda round_: round_["module"]["bytes"] - round_["limit_req"]["bytes"]),
    Goal("heap", "heap allocations per request beyond NGINX's own", 0, True, heap),
)


# Of the machine's cores, how much may work for somebody else while something is measured.
OTHERS = 0.1


def disturbed(records: list[Record]) -> str:
    """Whether somebody else used the machine, in words."""
    asked = [record for record in records if "cores_of_others" in record]
    found = [record["cores_of_others"] for record in asked if record["cores_of_others"] > OTHERS]
    return f"in {len(found)} of {len(asked)} measurements others used up to {max(found):.1f} cores" if found else ""


def doubts(case: str, rounds: list[Round]) -> list[str]:
    """What makes a case's figures worthless: requests that failed, passed or were rejected as they should not."""
    found = []
    for number, round_ in enumerate(rounds):
        for variant, record in round_.items():
            if "rps" not in record or "refused" not in record:
                continue
            rejects = case in ("flood", "logged") and variant != "none"
            share = record["refused"]
            if record["broken"] or (share < 0.95 if rejects else share > 0):
                found.append(f"{case}, round {number + 1}, {variant}: {share:.1%} were rejected, "
                             f"{record['broken']:.0f} connections failed")
    return found
