"""What a request costs in memory while it waits."""

import os
import signal
import socket

import machine
from load import Record
from servers import Nginx, Servers

LOCATION = """
    location /wait {
        rate_limit_redis $arg_wait name=wait rate=120r/h capacity=100000000;
        empty_gif;
    }
"""


def memory(servers: Servers, variant: str, number: int) -> Record:
    """The worker's own memory that each of so many waiting requests takes: in the module, each with a key of its own,
    on a Redis that is stopped; or in limit_req, delayed. The difference is what the module takes beyond NGINX."""
    # Each is a connection with two ends, here and in nginx.
    number = min(number, servers.files - 1000)
    redis = servers.redis() if variant == "module" else None
    if redis:
        nginx = servers.module(redis, locations=LOCATION)
        os.kill(redis.pid, signal.SIGSTOP)
    else:
        nginx = servers.nginx(variant)
        # The first of a key is not delayed.
        nginx.get(f"/wait?wait={1:06}")
    worker = nginx.workers[0]
    before = machine.private_memory(worker)
    connections = [ask(nginx, i if redis else 1) for i in range(number)]
    machine.wait_until_idle(worker, 0.01)
    used = machine.private_memory(worker) - before
    for connection in connections:
        connection.setblocking(False)
        try:
            answer = connection.recv(1)
            raise RuntimeError(f"a request did not wait: {answer!r}")
        except BlockingIOError:
            connection.close()
    servers.stop(nginx, *([redis] if redis else []))
    return {"waiting": number, "bytes": used / number}


def ask(nginx: Nginx, key: int) -> socket.socket:
    """Sends a request, as long as all others, and does not wait for the answer."""
    connection = socket.create_connection(("127.0.0.1", nginx.port), timeout=60)
    connection.sendall(f"GET /wait?wait={key:06} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
    return connection
