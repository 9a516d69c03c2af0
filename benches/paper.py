"""What a large fleet carries, calculated from what one worker and one Redis were measured to take."""

import textwrap
from math import ceil

from resp import encode
from results import Round

NGINX_NODES, WORKERS, REDIS_NODES = 1000, 8, 100
# Nobody runs a core to its end.
BUSY = 0.7
CLIENTS = 100_000_000
# Redis's default, without the few that it keeps for itself.
MAXCLIENTS = 10_000 - 32


def calculate(distinct: Round, latency: Round, redis: Round, bytes_per_key: float, command: list[str]) -> str:
    """The calculation in Markdown."""
    own = distinct["none"]["nginx_us"]
    added = distinct["module"]["nginx_us"] - own
    quiet = latency["module"]["nginx_us"] - latency["none"]["nginx_us"]
    piped, alone = redis["token_bucket"]["redis_us"], redis["token_bucket alone"]["redis_us"]
    node = BUSY * 1e6 / alone
    total = node * REDIS_NODES
    share = total / NGINX_NODES
    worker = BUSY * 1e6 / (own + added)
    too_many = ceil(MAXCLIENTS / NGINX_NODES)
    connections = NGINX_NODES * WORKERS
    each = node / connections
    sent = len(encode(command))
    enough = total / (worker * WORKERS)
    taken = f"""
        Taken: {NGINX_NODES:,} NGINX nodes of {WORKERS} workers, {REDIS_NODES} Redis masters in one Cluster, one
        `token_bucket` per request, keys spread evenly, each core busy for at most {BUSY:.0%}. Measured on the machine
        above: NGINX itself {own:.2f} µs a request; the module {added:.2f} µs more, or {quiet:.2f} µs where requests
        come one by one; Redis {piped:.2f} µs a decision where commands come in long pipelines, and {alone:.2f} µs where
        each comes alone."""
    points = (f"""
        **How commands arrive.** Every worker has one connection to every master: {connections:,} at each master, and
        {connections * REDIS_NODES:,} in all. At the rates below one connection carries {each:,.0f} commands a second,
        so that two rarely share a packet: the figure for commands that come alone is the one that counts.""", f"""
        **Redis** then decides {BUSY:.0%} / {alone:.2f} µs = {node:,.0f} times a second at each master,
        **{total / 1e6:.1f} million a second** in all. Long pipelines would make it
        {BUSY * REDIS_NODES / piped:.1f} million.""", f"""
        **NGINX.** That is {share:,.0f} requests a second for each NGINX node. Spread over {WORKERS} workers they come
        nearly one by one, and the module takes {share * quiet / 1e4:.1f} % of one core for them. The node could serve
        {worker * WORKERS:,.0f} cheap requests a second: {enough:,.0f} nodes would be enough to keep these masters
        busy.""", f"""
        **So the first bottleneck is Redis's CPU,** and the second the number of its connections: {connections:,} of
        {MAXCLIENTS:,} that it accepts by default; from {too_many} workers a node on it is the first.""", f"""
        **Memory.** {CLIENTS:,} clients at {bytes_per_key:.0f} bytes are {CLIENTS * bytes_per_key / 1e9:.1f} GB,
        {CLIENTS / REDIS_NODES * bytes_per_key / 1e6:,.0f} MB at each master.""", f"""
        **Network.** A command is {sent} bytes, to which each packet adds some 70: to each master
        {node * (sent + 70) * 8 / 1e6:,.0f} Mbit/s.""", f"""
        **One hot key** lives on one master: {node:,.0f} decisions a second at most, whatever the number of masters.
        Merging lowers the number of commands only for requests that meet in one worker. A key that is rejected costs
        Redis next to nothing, as each machine remembers until when it is.""")
    configure = f"""
        What to configure: `maxclients` above {connections * 1.25:,.0f} at each Redis, with as many file descriptors;
        `connections 1`; Redis's `io-threads`, as reading and writing are in the {alone - piped:.2f} µs that a command
        costs more when it comes alone; fewer and busier workers, which fill longer pipelines over fewer
        connections; and, for a limit that all share, several keys with a part of the rate each."""
    items = [wrapped(f"{i}. {unfolded(point)}", "   ") for i, point in enumerate(points, 1)]
    return "\n".join([wrapped(unfolded(taken)), "", *items, "", wrapped(unfolded(configure)), ""])


def unfolded(text: str) -> str:
    return " ".join(text.split())


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
