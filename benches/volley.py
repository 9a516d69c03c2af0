"""A client whose load is the same each time: volleys of requests, each of which the worker finds in one turn of its
event loop, as it is stopped while they are sent."""

import os
import signal
import socket

import machine
from servers import Nginx, wait_until

# The width: as many as wrk has connections.
WIDTH = 64


class Volleys:
    """Connections to an nginx of one process."""

    def __init__(self, nginx: Nginx) -> None:
        self.worker = nginx.workers[0]
        self.connections = [socket.create_connection(("127.0.0.1", nginx.port), timeout=60) for _ in range(WIDTH)]

    def fire(self, load: str, volleys: int, *, limits: bool = True) -> int:
        """Sends so many volleys of a load, and returns how many requests that were. `limits` is whether this nginx has
        any, or lets everything pass."""
        status = LOADS[load][2] if limits else 200
        for number in range(volleys):
            answers = self.volley(paths_of(load, number))
            # The first rejection of a key comes after the first that passes.
            if number > 0 and answers != {status}:
                raise RuntimeError(f"{load} was answered with {answers}, and not with {status}")
        return volleys * WIDTH

    def volley(self, paths: list[str]) -> set[int]:
        """Sends a request on each connection, and returns the statuses of the answers."""
        wait_until(lambda: machine.state(self.worker) == "S", "the worker to sleep")
        os.kill(self.worker, signal.SIGSTOP)
        # Until it has noticed: it could still take the first of the requests.
        wait_until(lambda: machine.state(self.worker) == "T", "the worker to stop")
        for connection, path in zip(self.connections, paths):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        os.kill(self.worker, signal.SIGCONT)
        return {read_answer(connection) for connection in self.connections}

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def read_answer(connection: socket.socket) -> int:
    """Reads one whole answer, and returns its status."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(connection)
    head, body = data.split(b"\r\n\r\n", 1)
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    missing = int(fields[b"content-length"]) - len(body)
    while missing > 0:
        missing -= len(receive(connection))
    return int(head.split()[1])


def receive(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise RuntimeError("nginx has closed the connection")
    return data


# Fixed loads: the path, the number of keys, and the status that is expected.
LOADS = {"distinct": ("/free", 16 * WIDTH, 200), "hot": ("/free", 1, 200), "flood": ("/flood", WIDTH, 429)}


def paths_of(load: str, number: int) -> list[str]:
    """The requests of a load's n-th volley. No two of distinct keys are for the same."""
    path, keys, _ = LOADS[load]
    return [f"{path}?k={(number * WIDTH + i) % keys + 1000000}" for i in range(WIDTH)]


def commands_of(load: str, volleys: int) -> int:
    """How many commands Redis runs for so many volleys. The first, which finds no script there, is sent twice."""
    # Requests of one volley for the same key share a command. A key of the flood passes, is rejected, and then its
    # rejection is cached.
    each = {"distinct": WIDTH * volleys, "hot": volleys, "flood": 2 * WIDTH}
    return each[load] + 1
