"""How the module's cost grows with what surrounds it. Each scale has points; each point is set up, and then measured a
few times."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, ContextManager, Iterator

import load
import machine
from fleet import for_key
from goals import Bench, Settings
from load import Record
from servers import HERE, Redis, Server, free_port, wait_until

# Measures once; the argument is the number of the round.
Measure = Callable[[int], Record]

SLOTS = 16384
# The bytes that each key in Redis takes at most, to see whether they will fit.
BYTES_PER_KEY = 150
FAR_AWAY_MS = 100


@dataclass(frozen=True)
class Scale:
    """What grows, and how it is measured at a point."""

    title: str
    points: tuple[int, ...]
    # The points of a quick run.
    quick: tuple[int, ...]
    at: Callable[[Bench, int], ContextManager[Measure]]
    # The time that setting a point up takes, in s, and how much more each unit of it takes.
    overhead: float
    each: float = 0
    logarithmic: bool = False

    def points_of(self, settings: Settings) -> list[int]:
        return [point for point in (self.quick if settings.quick else self.points) if self.fits(point, settings)]

    def fits(self, point: int, settings: Settings) -> bool:
        if self.at is keys_in_redis:
            return point <= settings.most_keys and point * BYTES_PER_KEY < machine.available_memory()
        return self.at is not waiting_requests or point <= settings.most_waiting

    def seconds(self, settings: Settings) -> float:
        """What all points take, about."""
        return sum(self.seconds_at(point, settings) for point in self.points_of(settings))

    def seconds_at(self, point: int, settings: Settings) -> float:
        return self.overhead + self.each * point + settings.rounds * settings.seconds

    def run(self, bench: Bench, name: str) -> dict[int, list[Record]]:
        settings, results = bench.settings, {}
        for point in self.points_of(settings):
            bench.progress.step(f"{name}: {self.title}, {point:,}", self.seconds_at(point, settings))
            with self.at(bench, point) as measure:
                results[point] = [measure(number) for number in range(settings.rounds)]
        return results


@contextmanager
def keys_in_redis(bench: Bench, number: int) -> Iterator[Measure]:
    """Random ones of so many keys that Redis holds already. Their state is one with 1000 spent, so that they stay."""
    fleet = bench.fleet
    client = fleet.redis.client
    client.call("FLUSHALL")
    command = for_key(fleet.commands["free"], "model")
    for _ in range(1000):
        client.call(*command)
    model = command[3]
    fill = """
        local value, ttl = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
        for i = ARGV[2], ARGV[3] do
            redis.call('SET', ARGV[1] .. string.format('%d', i), value, 'PX', ttl)
        end
    """

    def put(first: int, last: int) -> None:
        client.call("EVAL", fill, 1, model, model.removesuffix("model"), first, last)

    # Nothing, so that the script is there when the memory is looked at.
    put(1, 0)
    empty = int(client.info("memory")["used_memory"])
    for first in range(1, number + 1, 100_000):
        put(first, min(first + 99_999, number))
    used = int(client.info("memory")["used_memory"]) - empty
    # With few keys the difference is what Redis takes and gives back for itself.
    memory = {"bytes_per_key": used / number} if number >= 1000 else {}
    finish_growing(fleet.redis)
    yield lambda round_: memory | load.wrk(
        bench.servers, fleet.nginx["module"], "/free", keys=number, seconds=bench.settings.seconds,
        connections=bench.settings.connections, seed=round_, redis=[fleet.redis])
    client.call("FLUSHALL")


def finish_growing(redis: Redis) -> None:
    """Redis moves its keys to a larger table bit by bit, for minutes: this does it at once."""
    redis.client.call("CONFIG", "SET", "hz", 500)
    machine.wait_until_idle(redis.pid, 0.05)
    redis.client.call("CONFIG", "SET", "hz", 10)


@contextmanager
def limits_per_request(bench: Bench, number: int) -> Iterator[Measure]:
    lines = "\n".join(f"rate_limit_redis $arg_k name=n{i} rate=120r/h capacity=100000000;" for i in range(number))
    with one_nginx(bench, path="/limits", locations=f"location /limits {{ {lines} empty_gif; }}") as measure:
        yield measure


@contextmanager
def one_nginx(bench: Bench, *, path: str = "/free", connections: int = 0, cores: str | None = None,
              redis: list[Redis] | None = None, proxy: Server | None = None, **options: object) -> Iterator[Measure]:
    """An nginx for this point alone."""
    redis = redis or [bench.fleet.redis]
    nginx = bench.servers.module(redis[0], cores=cores, directives=bench.settings.directives, **options)
    yield lambda round_: load.wrk(
        bench.servers, nginx, path, keys=100_000, seconds=bench.settings.seconds, seed=round_, redis=redis, proxy=proxy,
        cores=cores, connections=connections or bench.settings.connections)
    bench.servers.stop(nginx)


@contextmanager
def workers(bench: Bench, number: int) -> Iterator[Measure]:
    """Nobody but Redis is pinned."""
    with one_nginx(bench, workers=number, cores=load.cores_of_all()) as measure:
        yield measure


@contextmanager
def waiting_requests(bench: Bench, number: int) -> Iterator[Measure]:
    """So many connections, all of which wait for a Redis that is far away."""
    port, room = free_port(), bench.servers.room()
    arguments = [str(number) for number in (port, bench.fleet.redis.port, FAR_AWAY_MS)]
    command = [sys.executable, str(HERE / "delay.py"), *arguments]
    proxy = Server(command, room / "delay.log", bench.servers.pinning.load)
    bench.servers.running.append(proxy)
    proxy.wait_for(port)
    store = f"rate_limit_redis_pass redis://127.0.0.1:{port};"
    connections = min(number, bench.servers.files - 1000)
    with one_nginx(bench, connections=connections, proxy=proxy, store=store) as measure:
        yield measure
    bench.servers.stop(proxy)


@contextmanager
def cluster_nodes(bench: Bench, number: int) -> Iterator[Measure]:
    nodes = start_cluster(bench, number)
    addresses = " ".join(f"server {node.url};" for node in nodes)
    store = f"rate_limit_redis_store cluster {{ {addresses} cluster on; }} rate_limit_redis_pass cluster;"
    with one_nginx(bench, redis=nodes, store=store) as measure:
        yield measure
    bench.servers.stop(*nodes)


def start_cluster(bench: Bench, number: int) -> list[Redis]:
    """Masters that share the slots evenly."""
    nodes = [bench.servers.redis("--cluster-enabled", "yes") for _ in range(number)]
    for i, node in enumerate(nodes):
        node.client.call("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        node.client.call("CLUSTER", "ADDSLOTS", *range(i * SLOTS // number, (i + 1) * SLOTS // number))
        for other in nodes[:i]:
            node.client.call("CLUSTER", "MEET", "127.0.0.1", other.port)

    def settled() -> bool:
        infos = [node.client.call("CLUSTER", "INFO") for node in nodes]
        return all("cluster_state:ok" in info and f"cluster_known_nodes:{number}\r" in info for info in infos)
    wait_until(settled, "the cluster")
    return nodes


SCALES = {
    "keys": Scale("keys in Redis", tuple(10 ** i for i in range(8)), (1, 10 ** 6), keys_in_redis, 1, 4e-6,
                  logarithmic=True),
    "limits": Scale("limits per request", (1, 2, 3, 4, 6, 8), (1, 8), limits_per_request, 0.3),
    "workers": Scale("workers", (1, 2, 3, 4), (1, 4), workers, 0.3),
    "waiting": Scale(f"requests waiting for a Redis {FAR_AWAY_MS} ms away", (10, 100, 1000, 10_000), (100, 1000),
                     waiting_requests, 1, logarithmic=True),
    "cluster": Scale("nodes of a Cluster", (1, 2, 3, 4, 5, 6), (3,), cluster_nodes, 4),
}
