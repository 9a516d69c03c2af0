"""The cases behind the goals: what is measured, for each variant in turn, once a round."""

from dataclasses import dataclass
from typing import Callable

import heap
import load
import waiting
from fleet import VARIANTS, Fleet, for_key
from load import Record
from progress import Progress
from servers import HERE, Servers

DISTINCT_KEYS = 100_000
KNOWN_KEYS = 1_000
# Half of what the limit of each of them allows.
CLIENTS, CLIENT_RATE = 1_000, 20
# The script that the module's are compared with.
BASELINE = HERE / "baseline.lua"


@dataclass(frozen=True)
class Settings:
    """What the caller has chosen."""

    seconds: int
    rounds: int
    connections: int
    quick: bool
    most_keys: int
    most_waiting: int
    directives: str


@dataclass
class Bench:
    """What a case needs."""

    servers: Servers
    settings: Settings
    progress: Progress
    fleet: Fleet


@dataclass(frozen=True)
class Case:
    """Measures some variants, one after the other."""

    title: str
    variants: tuple[str, ...]
    measure: Callable[[Bench, str, int], Record]
    # Done once before.
    prepare: Callable[[Bench], None] = lambda _: None
    # The time that one measurement of one variant takes, beside the duration that was set.
    overhead: float = 0.3
    # Whether it takes the duration at all, or a fixed work.
    timed: bool = True

    def seconds(self, settings: Settings) -> float:
        """What a round takes, about."""
        each = self.overhead + (settings.seconds if self.timed else 0)
        return each * len(self.variants)

    def round(self, bench: Bench, number: int, name: str) -> dict[str, Record]:
        """Measures each variant once. Who begins changes from round to round."""
        turn, results = number % len(self.variants), {}
        seconds = self.seconds(bench.settings) / len(self.variants)
        for variant in self.variants[turn:] + self.variants[:turn]:
            bench.progress.step(f"round {number + 1}: {name}, {variant}", seconds)
            results[variant] = self.measure(bench, variant, number)
        return results


def under_load(path: str, keys: int, connections: int | None = None, *, draw: str = "even",
               rate: int = 0) -> Callable[[Bench, str, int], Record]:
    """wrk sends requests to one variant."""
    def measure(bench: Bench, variant: str, number: int) -> Record:
        asks_redis = variant in ("lua", "module", "lease")
        return load.wrk(bench.servers, bench.fleet.nginx[variant], path, keys=keys, seconds=bench.settings.seconds,
                        connections=connections or bench.settings.connections, seed=number, draw=draw, rate=rate,
                        redis=[bench.fleet.redis] if asks_redis else None)
    return measure


def latency(bench: Bench, variant: str, number: int) -> Record:
    """One connection; and Redis alone, with the same command from nginx's core."""
    if variant != "redis-benchmark":
        return under_load("/free", 1, connections=1)(bench, variant, number)
    command = for_key(bench.fleet.commands["free"], "1")
    return load.redis_benchmark(bench.servers, bench.fleet.redis, command, number=bench.settings.seconds * 15_000)


def redis_cpu(bench: Bench, variant: str, _number: int) -> Record:
    """A script, on random keys, pipelined as the module does; or, as `… alone`, one command a packet."""
    script, _, alone = variant.partition(" ")
    redis = bench.fleet.redis
    if script == "baseline":
        sha = redis.client.call("SCRIPT", "LOAD", BASELINE.read_text())
        command = ["EVALSHA", sha, "1", "rl:baseline:__rand_int__", "1763683200123456", "3600000"]
    else:
        path = {"token_bucket": "free", "gcra": "gcra"}[script]
        command = for_key(bench.fleet.commands[path], "__rand_int__")
    pipeline = {"pipeline": 1, "clients": 64} if alone else {"pipeline": 64, "clients": 1}
    number = bench.settings.seconds * (40_000 if alone else 100_000)
    return load.redis_benchmark(bench.servers, redis, command, number=number, keys=DISTINCT_KEYS, **pipeline)


CASES = {
    "distinct": Case("distinct keys", VARIANTS, under_load("/free", DISTINCT_KEYS)),
    "hot": Case("one hot key", VARIANTS, under_load("/free", 1)),
    "flood": Case("rejected flood", (*VARIANTS, "fields"), under_load("/flood", KNOWN_KEYS),
                  lambda bench: bench.fleet.spend("/flood", KNOWN_KEYS)),
    "logged": Case("rejected flood, logged", ("none", "limit_req", "module"), under_load("/logged", KNOWN_KEYS),
                   lambda bench: bench.fleet.spend("/flood", KNOWN_KEYS)),
    "clients": Case(f"{CLIENTS:,} clients at {CLIENT_RATE} requests a second each", (*VARIANTS, "lease"),
                    under_load("/client", CLIENTS, rate=CLIENTS * CLIENT_RATE)),
    "zipf": Case(f"Zipf over {DISTINCT_KEYS:,} clients", (*VARIANTS, "lease"),
                 under_load("/free", DISTINCT_KEYS, draw="zipf")),
    "latency": Case("one connection", (*VARIANTS, "redis-benchmark"), latency),
    "redis": Case("Redis alone", ("baseline", "token_bucket", "gcra", "baseline alone", "token_bucket alone"),
                  redis_cpu),
    "memory": Case("waiting requests", ("limit_req", "module"),
                   lambda bench, variant, _: waiting.memory(bench.servers, variant, bench.settings.most_waiting),
                   overhead=4, timed=False),
    "heap": Case("heap allocations", ("none", "module"),
                 lambda bench, variant, _: heap.allocations(bench.servers, variant, bench.settings.directives),
                 overhead=2, timed=False),
}
