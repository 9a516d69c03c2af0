"""What has been measured, and what it amounts to."""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Callable

from goals import Settings
from instructions import Figures
from load import Record
from machine import Pinning

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
    Goal("flood", "rejected flood: throughput, over `limit_req` with four constant fields", 0.98, False,
         ratio("rps", "fields")),
    Goal("clients", "1,000 clients with leases: commands to Redis per request", 0.15, True,
         lambda round_: round_["lease"]["scripts_per_request"]),
    Goal("clients", "1,000 clients with leases: CPU of the worker per request beyond `limit_req`, µs", 0.4, True,
         lambda round_: round_["lease"]["nginx_us"] - round_["limit_req"]["nginx_us"]),
    Goal("zipf", "Zipf with leases: throughput, over the module without", 1, False, ratio("rps", "module", "lease")),
    Goal("latency", "one connection: median latency added, over a round trip to Redis", 1.2, True, added_latency),
    Goal("redis", "CPU of Redis per decision, `token_bucket`, over TIME, GET and SET", 1.3, True,
         ratio("redis_us", "baseline", "token_bucket")),
    Goal("redis", "CPU of Redis per decision, `gcra`, over TIME, GET and SET", 1.3, True,
         ratio("redis_us", "baseline", "gcra")),
    Goal("memory", "memory per waiting request beyond NGINX's own, bytes", 512, True,
         lambda round_: round_["module"]["bytes"] - round_["limit_req"]["bytes"]),
    Goal("heap", "heap allocations per request beyond NGINX's own", 0, True, heap),
)


# How many of the machine's cores other processes may use during a measurement.
OTHERS = 0.1


@dataclass
class Results:
    """A run, and all that it has found."""

    machine: dict[str, str]
    settings: Settings
    pinning: Pinning
    # The rounds of each case.
    cases: dict[str, list[Round]] = field(default_factory=dict)
    # The records of each scale and point.
    scales: dict[str, dict[int, list[Record]]] = field(default_factory=dict)
    instructions: Figures = field(default_factory=dict)
    # The words of a command of the module.
    command: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def wrong_answers(self) -> list[str]:
        """What makes figures worthless: requests that failed, passed or were rejected as they should not."""
        found = [wrong for name, rounds in self.cases.items() for number, round_ in enumerate(rounds, 1)
                 for wrong in wrong_in(f"{name}, round {number}", round_, rejects=name in ("flood", "logged"))]
        return found + [wrong for name, points in self.scales.items() for point, records in points.items()
                        for record in records for wrong in wrong_in(f"{name} {point:,}", {"module": record})]

    def disturbance(self) -> str:
        """Whether other processes used the machine, in words."""
        records = [record for rounds in self.cases.values() for round_ in rounds for record in round_.values()]
        records += [record for points in self.scales.values() for at_point in points.values() for record in at_point]
        asked = [record["cores_of_others"] for record in records if "cores_of_others" in record]
        found = [cores for cores in asked if cores > OTHERS]
        return f"in {len(found)} of {len(asked)} measurements others used up to {max(found):.1f} cores" if found else ""


def wrong_in(where: str, round_: Round, rejects: bool = False) -> list[str]:
    """Whose answers are wrong in a round that rejects all, or passes all."""
    found = []
    for variant, record in round_.items():
        if "refused" not in record:
            continue
        share = record["refused"]
        if record["broken"] or (share < 0.95 if rejects and variant != "none" else share > 0):
            rejected = f"{share * record['requests']:,.0f} of {record['requests']:,} were rejected"
            found.append(f"{where}, {variant}: {rejected}, {record['broken']:,} connections failed")
    return found
