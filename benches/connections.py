"""What the connections of a fleet's workers cost Redis: scripts/bench --fleet runs this.

An nginx with many workers stands for the fleet: each has one connection, as each worker of a fleet has. Redis has
a core of its own, which it shares with this script; the workers share the other one."""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import machine
import resp
from servers import Nginx, Server, Servers, free_port

# How long a phase may take, in s.
PATIENCE = 180
# By then Redis has given back what a connection takes at first.
SETTLED = 10
# How long workers are watched for which Redis has no room.
REFUSED = 30
COLUMNS = ("phase", "workers", "connections made", "refused", "seconds", "CPU of Redis each, µs", "most at once",
           "KB each, at most", "KB each, later", "resident KB each, later")


@dataclass
class Phase:
    """What Redis has done from one moment to another. Memory is in bytes, and beyond that without connections."""

    name: str
    workers: int
    made: int
    refused: int
    seconds: float
    # Without what it takes when nothing happens.
    cpu: float
    # The most connections, and the most memory, at one moment.
    most: int
    peak: int = 0
    # When the connections are not new any more.
    later: int = 0
    resident: int = 0

    def row(self) -> str:
        each = 1e6 * self.cpu / max(1, self.made + self.refused)
        memory = [self.peak / self.most, self.later / self.workers, self.resident / self.workers]
        counts = [f"{number:,}" for number in (self.workers, self.made, self.refused)]
        sizes = [f"{size / 1024:.1f}" if size else "" for size in memory]
        return line(self.name, *counts, f"{self.seconds:.1f}", f"{each:,.0f}", f"{self.most:,}", *sizes)


def line(*cells: str) -> str:
    """A line of the table."""
    return "| " + " | ".join(cells) + " |"


class Store(Server):
    """A Redis that can be killed and started again."""

    def __init__(self, servers: Servers, is_secure: bool) -> None:
        self.port, self.room, self.cores = free_port(), servers.room(), servers.pinning.redis
        self.url = f"redis://127.0.0.1:{self.port}"
        self.command = [servers.tools["redis-server"], "--port", str(self.port), "--bind", "127.0.0.1", "--dir",
                        str(self.room), "--save", "", "--maxclients", "20000"]
        if is_secure:
            make_certificate(self.room)
            secure, files = free_port(), [str(self.room / name) for name in ("cert.pem", "key.pem")]
            self.url = f"rediss://127.0.0.1:{secure}"
            self.command += ["--tls-port", str(secure), "--tls-cert-file", files[0], "--tls-key-file", files[1],
                             "--tls-ca-cert-file", files[0], "--tls-auth-clients", "no"]
        self.start()
        # Processor time and memory without workers.
        self.boot, self.empty, self.empty_resident = self.cpu(), self.memory(), machine.private_memory(self.pid)

    def start(self) -> None:
        self.began = time.monotonic()
        super().__init__(self.command, self.room / "redis.log", self.cores)
        self.wait_for(self.port)
        self.client = resp.Client(self.port)

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def clients(self) -> int:
        """Those that are no client of ours."""
        return int(self.client.info("clients")["connected_clients"]) - 1

    def cpu(self) -> float:
        """In s."""
        return machine.cpu_seconds([self.pid])

    def accepted(self) -> list[int]:
        """How many connections were accepted, and how many refused."""
        stats = self.client.info("stats")
        return [int(stats[name]) for name in ("total_connections_received", "rejected_connections")]

    def ready(self) -> int:
        """How many connections have been given their names, which comes last but for the scripts."""
        return self.client.call("CLIENT", "LIST").count("name=nginx_rate_limit_redis:")


def make_certificate(room: Path) -> None:
    """Of RSA-2048, as most are."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=redis",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(room / "key.pem"), "-out",
                    str(room / "cert.pem")], check=True, capture_output=True)


class Fleet:
    """So many workers and a Redis."""

    def __init__(self, servers: Servers, workers: int, is_secure: bool) -> None:
        self.servers, self.workers, self.suffix = servers, workers, ", TLS" if is_secure else ""
        self.store = Store(servers, is_secure)
        servers.running.append(self.store)
        trust = f"ssl_trusted_certificate {self.store.room}/cert.pem;" if is_secure else ""
        server = f"server {self.store.url}; {trust}"
        self.configuration = f"rate_limit_redis_store edge {{ {server} }} rate_limit_redis_pass edge;"

    def phases(self) -> list[Phase]:
        """One after the other; the last workers stay."""
        started: list[Nginx] = []
        phases = [
            self.watch("start", lambda: started.append(self.nginx())),
            self.watch("reload", lambda: started[0].process.send_signal(1)),
            self.watch("restart", self.restart),
            self.watch_refused(),
        ]
        self.servers.stop(*started, self.store)
        return phases

    def nginx(self) -> Nginx:
        return self.servers.nginx("module", workers=self.workers, store=self.configuration, connections="64")

    def restart(self) -> None:
        self.store.kill()
        time.sleep(2)
        self.store.start()
        # Workers may be there already.
        self.store.used = self.store.boot

    def watch(self, name: str, begin: Callable[[], None]) -> Phase:
        """From the beginning until each worker has its connection, and no other one is left."""
        store, before = self.store, self.store.accepted()
        store.began, store.used = time.monotonic(), store.cpu()
        begin()
        if begin == self.restart:
            # Two of them are ours.
            before = [2, 0]
        most, peak = 1, 0
        while not (most >= self.workers == store.clients() == store.ready()):
            if time.monotonic() > store.began + PATIENCE:
                raise RuntimeError(f"{name}: {store.ready()} of {self.workers} connections after {PATIENCE} s")
            clients, memory = self.look()
            most, peak = max(most, clients), max(peak, memory)
        seconds, cpu = time.monotonic() - store.began, store.cpu() - store.used
        made, refused = (now - then for now, then in zip(store.accepted(), before))
        time.sleep(SETTLED)
        return Phase(name + self.suffix, self.workers, made, refused, seconds, cpu - seconds * self.idle(), most, peak,
                     store.memory() - store.empty, machine.private_memory(store.pid) - store.empty_resident)

    def look(self) -> tuple[int, int]:
        """The connections, and the memory that they take, now and then."""
        time.sleep(0.1)
        return self.store.clients(), self.store.memory() - self.store.empty

    def idle(self) -> float:
        """The share of its core that Redis takes when nothing happens but that it is watched."""
        before, began = self.store.cpu(), time.monotonic()
        while time.monotonic() < began + SETTLED:
            self.look()
        return (self.store.cpu() - before) / SETTLED

    def watch_refused(self) -> Phase:
        """A while in which Redis has room for half of the workers."""
        store, idle, before = self.store, self.idle(), self.store.accepted()
        store.client.call("CONFIG", "SET", "maxclients", self.workers // 2)
        store.client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        began, used = time.monotonic(), store.cpu()
        time.sleep(REFUSED)
        seconds, cpu = time.monotonic() - began, store.cpu() - used
        made, refused = (now - then for now, then in zip(store.accepted(), before))
        return Phase("room for half" + self.suffix, self.workers, made, refused, seconds, cpu - seconds * idle,
                     store.clients())


def measure(servers: Servers, workers: list[int]) -> str:
    """A table of what happens without TLS and with it."""
    rows = [phase.row() for number in workers for is_secure in (False, True)
            for phase in Fleet(servers, number, is_secure).phases()]
    return "\n".join([line(*COLUMNS), line(*["---"] * len(COLUMNS)), *rows])
