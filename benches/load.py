"""Load, and what it costs those who bear it."""

import csv
import json
import os
import resource
import subprocess
import time

import machine
from servers import HERE, Nginx, Redis, Server, Servers

# A measurement: numbers by name.
Record = dict[str, float]


def wrk(servers: Servers, nginx: Nginx, path: str, *, keys: int, seconds: int, connections: int, seed: int,
        redis: list[Redis] | None = None, proxy: Server | None = None, cores: str | None = None, draw: str = "even",
        rate: int = 0) -> Record:
    """Asks for path?k=KEY as fast as it goes, or at about so many requests a second. CPU is in µs for each request that
    wrk counted."""
    gap = connections / rate * 1000 if rate else 0
    stores, proxies = redis or [], [proxy.pid] if proxy else []
    load = ["taskset", "-c", cores or servers.pinning.load, servers.tools["wrk"], "-t1", f"-c{connections}",
            f"-d{seconds}s", "--timeout", "60s", "--latency", "-s", str(HERE / "wrk.lua"),
            f"http://127.0.0.1:{nginx.port}", "--", path, str(keys), str(seed), draw, str(gap)]

    def used() -> tuple[float, ...]:
        of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (machine.cpu_seconds(nginx.workers), machine.cpu_seconds([server.pid for server in stores]),
                of_children.ru_utime + of_children.ru_stime, machine.cpu_seconds(proxies), machine.busy_seconds(),
                time.monotonic())

    scripts_before = sum(server.client.scripts_run() for server in stores)
    before = used()
    done = subprocess.run(load, capture_output=True, text=True, check=False)
    after = used()
    if done.returncode or not done.stdout.strip().endswith("}"):
        raise RuntimeError(f"wrk failed: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    requests = max(1, said["requests"])
    by_nginx, by_redis, by_load, by_proxy, by_all, passed = (then - first for first, then in zip(before, after))
    others = by_all - by_nginx - by_redis - by_load - by_proxy
    # The time that wrk took to prepare was for no request.
    by_load -= said["preparation"]
    scripts = sum(server.client.scripts_run() for server in stores) - scripts_before
    return {
        "rps": said["requests"] / said["seconds"],
        "requests": said["requests"],
        "nginx_us": by_nginx / requests * 1e6, "redis_us": by_redis / requests * 1e6,
        "load_us": by_load / requests * 1e6, "cores_of_others": others / passed,
        "nginx_cores": by_nginx / said["seconds"], "other_cores": (by_redis + by_load) / said["seconds"],
        "p50_us": said["p50"], "p99_us": said["p99"], "mean_us": said["mean"],
        "refused": said["refused"] / requests, "broken": said["broken"],
        "scripts_per_request": scripts / requests,
    }


def redis_benchmark(servers: Servers, redis: Redis, command: list[str], *, number: int, clients: int = 1,
                    pipeline: int = 1, keys: int = 1) -> Record:
    """Sends one command so often, from nginx's place. In it __rand_int__ is one of so many keys."""
    # With a part of a packet left over, redis-benchmark may take its end for a lost connection.
    number -= number % pipeline
    load = ["taskset", "-c", servers.pinning.nginx, servers.tools["redis-benchmark"], "-p", str(redis.port),
            "-n", str(number), "-c", str(clients), "-P", str(pipeline), "-r", str(keys), "--csv", *command]
    before = machine.cpu_seconds([redis.pid])
    done = subprocess.run(load, capture_output=True, text=True, check=False)
    used = machine.cpu_seconds([redis.pid]) - before
    if done.returncode or "ERR" in done.stdout + done.stderr:
        raise RuntimeError(f"redis-benchmark failed: {done.stdout}{done.stderr}")
    names, values = list(csv.reader(done.stdout.strip().splitlines()))[-2:]
    said = dict(zip(names, values))
    return {"rps": float(said["rps"]), "redis_us": used / number * 1e6,
            "p50_us": float(said["p50_latency_ms"]) * 1000, "mean_us": float(said["avg_latency_ms"]) * 1000}


def cores_of_all() -> str:
    """Every core, for loads that one is not enough for."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))
