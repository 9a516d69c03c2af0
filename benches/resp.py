"""A client of Redis, no more than is needed here."""

import re
import socket
from typing import Any


class Client:
    """A connection that sends a command and waits for the reply."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.file = self.socket.makefile("rb")

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def call(self, *words: Any) -> Any:
        """Sends a command and returns its reply. An error is raised."""
        self.socket.sendall(encode([str(word) for word in words]))
        return self.reply()

    def reply(self) -> Any:
        line = self.file.readline()
        if not line:
            raise RuntimeError("redis has closed the connection")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"-":
            raise RuntimeError(f"redis: {rest}")
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == "-1" else self.text(int(rest))
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return rest

    def text(self, length: int) -> str:
        """A string of so many bytes, which may be any in a script's answer."""
        return self.file.read(length + 2)[:-2].decode(errors="replace")

    def info(self, section: str) -> dict[str, str]:
        """The lines of INFO."""
        return dict(line.split(":", 1) for line in self.call("INFO", section).split("\r\n") if ":" in line)

    def scripts_run(self) -> int:
        """How many commands of clients have run a script since the start. What scripts call is not in it."""
        stats = self.info("commandstats")
        return sum(int(re.search(r"calls=(\d+)", stats[f"cmdstat_{name}"]).group(1))
                   for name in ("eval", "evalsha", "fcall") if f"cmdstat_{name}" in stats)


def encode(words: list[str]) -> bytes:
    """A command as Redis reads it."""
    return f"*{len(words)}\r\n".encode() + b"".join(
        f"${len(word.encode())}\r\n{word}\r\n".encode() for word in words)


class Monitor:
    """Reads the commands that others send to Redis (MONITOR)."""

    def __init__(self, port: int) -> None:
        self.client = Client(port)
        self.client.socket.settimeout(5)
        self.client.call("MONITOR")

    def next_script(self) -> list[str]:
        """The next EVALSHA of a client, as words."""
        while True:
            line = self.client.reply()
            words = [re.sub(r'\\(.)', r"\1", word) for word in re.findall(r'"((?:[^"\\]|\\.)*)"', line)]
            if words and words[0].upper() == "EVALSHA":
                return words

    def close(self) -> None:
        self.client.close()
