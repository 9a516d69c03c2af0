"""The servers of a run, in a directory of their own. They end with it, however it ends."""

import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Callable, TypeVar

import machine
import resp
from machine import Pinning

HERE = Path(__file__).parent
CONFIGURATIONS = HERE / "conf"

T = TypeVar("T")


def wait_until(result: Callable[[], T], what: str, seconds: float = 20) -> T:
    """Waits until a result is true, and returns it; the error names it if it never is."""
    deadline = time.monotonic() + seconds
    while not (value := result()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)
    return value


def answers(port: int) -> bool:
    """Whether a server listens there."""
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A free port, where the one 10,000 above is free too, which a node of a cluster takes as well. Both are below those
    that the kernel gives to clients."""
    while True:
        port = random.randrange(10000, 22000)
        if not answers(port) and not answers(port + 10000):
            return port


class Server:
    """A process of ours."""

    def __init__(self, command: list[str], log: Path, cores: str, environment: dict[str, str] | None = None) -> None:
        self.log = log
        # Should this script be killed, the kernel ends the server.
        command = ["setpriv", "--pdeathsig", "TERM", "taskset", "-c", cores, *command]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            env=environment, start_new_session=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, port: int) -> None:
        def up() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"a server did not start: {self.log.read_text()}")
            return answers(port)
        wait_until(up, f"{self.log.stem} at port {port}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            # Under callgrind it writes its figures before it ends.
            for _ in range(60):
                # An nginx without a master misses a signal that comes right before it waits for events, until the next.
                self.process.terminate()
                try:
                    self.process.wait(1)
                    return
                except subprocess.TimeoutExpired:
                    pass
            self.process.kill()
            self.process.wait()


class Redis(Server):
    """A Redis that keeps nothing."""

    def __init__(self, binary: str, directory: Path, cores: str, *options: str) -> None:
        self.port = free_port()
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "",
                   "--appendonly", "no", "--maxclients", "20000", *options]
        super().__init__(command, directory / f"redis-{self.port}.log", cores)
        self.wait_for(self.port)
        self.client = resp.Client(self.port)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.client.close()
        super().stop()


class Nginx(Server):
    """An nginx with one of the configurations in conf/. `single` has no master: this process is the worker."""

    def __init__(self, binary: str, directory: Path, cores: str, variant: str, values: dict[str, str], *,
                 wrapper: list[str], environment: dict[str, str] | None, single: bool, workers: int) -> None:
        self.port = free_port()
        values = {"port": str(self.port), "master": "off" if single else "on", "workers": str(workers),
                  "errors": "stderr error", "store": "", "locations": "", "directives": ""} | values
        for template in CONFIGURATIONS.glob("*.conf"):
            text = template.read_text()
            for name, value in values.items():
                text = text.replace(f"@{name}@", value)
            (directory / template.name).write_text(text)
        for script in ("limit.lua", "redis_client.lua"):
            shutil.copy(HERE / script, directory)
        super().__init__([*wrapper, binary, "-p", f"{directory}/", "-e", "stderr", "-c", f"{variant}.conf"],
                         directory / "nginx.log", cores, environment)
        # Under valgrind this takes a while.
        self.wait_for(self.port)
        self.workers = [self.pid]
        if not single:
            wait_until(lambda: len(machine.children(self.pid)) == workers, "the workers of nginx")
            self.workers = machine.children(self.pid)

    def get(self, *paths: str) -> HTTPResponse:
        """Asks for these, one after the other, and returns the last answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        for path in paths:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
        connection.close()
        return answer


class Servers:
    """Starts servers, and ends those that still run when it is left."""

    def __init__(self, tools: dict[str, str], pinning: Pinning) -> None:
        self.tools, self.pinning = tools, pinning
        self.files = machine.allow_many_files()
        # Not below TMPDIR, and open to others: nginx's workers must get there.
        self.directory = Path(tempfile.mkdtemp(prefix="rate-limit-redis-bench.", dir="/tmp"))
        self.directory.chmod(0o755)
        self.running: list[Server] = []

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self.running):
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self, *servers: Server) -> None:
        for server in servers:
            server.stop()
            self.running.remove(server)

    def room(self) -> Path:
        """A directory for one server."""
        return Path(tempfile.mkdtemp(dir=self.directory))

    def redis(self, *options: str) -> Redis:
        server = Redis(self.tools["redis-server"], self.room(), self.pinning.redis, *options)
        self.running.append(server)
        return server

    def nginx(self, variant: str, *, wrapper: list[str] | None = None, environment: dict[str, str] | None = None,
              single: bool = False, workers: int = 1, cores: str | None = None, **values: str) -> Nginx:
        values = {"module": self.tools["module"], "lua_modules": self.tools["lua_modules"], "files": str(self.files),
                  # One for each client and, in some variants, one to Redis for each.
                  "connections": str(min(self.files, 24000))} | values
        server = Nginx(self.tools["nginx"], self.room(), cores or self.pinning.nginx, variant, values,
                       wrapper=wrapper or [], environment=environment, single=single, workers=workers)
        self.running.append(server)
        return server

    def module(self, redis: Redis, **options: object) -> Nginx:
        """An nginx with the module, connected to Redis."""
        nginx = self.nginx("module", **({"store": f"rate_limit_redis_pass {redis.url};"} | options))
        # Workers connect on their own, and requests may come before.
        wait_until(lambda: nginx.get("/free?k=first").status == 200, "the module's first decision")
        return nginx
