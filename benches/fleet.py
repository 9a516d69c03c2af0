"""One nginx for each way to limit, all up at once so that they can take turns, and one Redis."""

import resp
import trial
from servers import Nginx, Redis, Servers

VARIANTS = ("none", "limit_req", "lua", "module")
LEASE = "rate_limit_redis_lease on;"
# Header fields of the size of those that the module adds to a rejection, but constant.
FIELDS = " ".join(f"add_header {name} {value} always;" for name, value in trial.FLOOD[2].items())


class Fleet:
    """The variants, requested at one path, and the commands that the module sends."""

    def __init__(self, servers: Servers, directives: str, variants: tuple[str, ...] = VARIANTS) -> None:
        self.servers = servers
        self.redis: Redis = servers.redis()
        self.nginx: dict[str, Nginx] = {
            "module": servers.module(self.redis, directives=directives, errors="/dev/null error")}
        self.commands = {path: command_of(self.redis, self.nginx["module"], path)
                         for path in ("free", "gcra", "flood")}
        self.nginx["lease"] = servers.module(self.redis, directives=f"{directives} {LEASE}", errors="/dev/null error")
        self.nginx["fields"] = servers.nginx("limit_req", directives=FIELDS, errors="/dev/null error")
        for variant in variants:
            if variant == "lua":
                self.nginx[variant] = servers.nginx(
                    "lua", errors="/dev/null error", redis_port=str(self.redis.port),
                    lua_free=lua_limit(self.commands["free"], 100_000_000, 30_000_000),
                    lua_flood=lua_limit(self.commands["flood"], 1, 3_600_000_000))
            elif variant != "module":
                self.nginx[variant] = servers.nginx(variant, errors="/dev/null error")
        for variant, nginx in self.nginx.items():
            # The caller's directives may have switched the fields off.
            trial.check(variant, nginx, limits=variant != "none",
                        fields=variant == "lua" or variant in ("module", "lease") and not directives)

    def spend(self, path: str, keys: int) -> None:
        """Requests each key once from every server, so that they know it."""
        for nginx in self.nginx.values():
            nginx.get(*(f"{path}?k={key}" for key in range(1, keys + 1)))

    def stop(self) -> None:
        self.servers.stop(*self.nginx.values(), self.redis)


def command_of(redis: Redis, nginx: Nginx, path: str) -> list[str]:
    """What the module asks Redis for a request, with __key__ in the place of the client's key. Redis knows the script
    under the SHA in it, as the module has loaded it."""
    monitor = resp.Monitor(redis.port)
    try:
        nginx.get(f"/{path}?k=__key__")
        return monitor.next_script()
    finally:
        monitor.close()


def for_key(command: list[str], key: str) -> list[str]:
    """The command for another key."""
    return [word.replace("__key__", key) for word in command]


def lua_limit(command: list[str], capacity: int, interval: int) -> str:
    """What limit.lua wants to know: the words of the module's command, around the client's key, and what a token bucket
    is, with its interval in µs."""
    _, sha, _, key, *arguments = command
    if not key.endswith("__key__"):
        raise RuntimeError(f"the key is not at the end of {key!r}")
    words = ", ".join(f'"{word}"' for word in arguments)
    return (f'sha = "{sha}", prefix = "{key.removesuffix("__key__")}", arguments = {{ {words} }}, '
            f"capacity = {capacity}, interval = {interval}")
