"""What a large fleet carries, calculated from what one worker and one Redis were measured to take."""

from resp import encode
from results import Round

NGINX_NODES, WORKERS, REDIS_NODES = 1000, 8, 100
# Nobody runs a core to its end.
BUSY = 0.7
CLIENTS = 100_000_000
# Redis's default, without the few that it keeps for itself.
MAXCLIENTS = 10_000 - 32


def calculate(distinct: Round, redis: Round, bytes_per_key: float, command: list[str], reply_bytes: int = 40) -> str:
    """The calculation in Markdown."""
    own = distinct["none"]["nginx_us"]
    added = distinct["module"]["nginx_us"] - own
    piped, alone = redis["token_bucket"]["redis_us"], redis["token_bucket alone"]["redis_us"]
    node = BUSY * 1e6 / alone
    total = node * REDIS_NODES
    share = total / NGINX_NODES
    worker = BUSY * 1e6 / (own + added)
    connections = NGINX_NODES * WORKERS
    each = node / connections
    sent = len(encode(command))
    keys = CLIENTS / REDIS_NODES
    enough = total / (worker * WORKERS)
    return f"""\
Taken: {NGINX_NODES:,} NGINX nodes of {WORKERS} workers, {REDIS_NODES} Redis masters in one Cluster, one `token_bucket` per
request, keys spread evenly, each core busy for at most {BUSY:.0%}. Measured on the machine above: NGINX itself {own:.2f} µs a
request, the module {added:.2f} µs more, Redis {piped:.2f} µs a decision where commands come in long pipelines and {alone:.2f} µs
where each comes alone.

1. **How commands arrive.** Every worker has one connection to every master: {connections:,} connections at each, and
   {connections * REDIS_NODES:,} in all. At the rates below one connection carries {each:,.0f} commands a second, so that two
   rarely share a packet: the figure for commands that come alone is the one that counts.
2. **Redis** then decides {BUSY:.0%} / {alone:.2f} µs = {node:,.0f} times a second at each master, **{total / 1e6:.1f} million a second**
   in all. Long pipelines would make it {BUSY * REDIS_NODES / piped:.1f} million.
3. **NGINX.** That is {share:,.0f} requests a second for each NGINX node. The module takes {share * added / 1e4:.1f} % of one core for it,
   NGINX itself {share * own / 1e4:.1f} %. The node could serve {worker * WORKERS:,.0f} cheap requests a second: {enough:,.0f} nodes would be enough to
   keep these masters busy.
4. **So the first bottleneck is Redis's CPU,** and the second the number of its connections: {connections:,} of
   {MAXCLIENTS:,} that it accepts by default; with {MAXCLIENTS * 1.0 / NGINX_NODES:.0f} workers a node or more it is the first.
5. **Memory.** {CLIENTS:,} clients at {bytes_per_key:.0f} bytes are {CLIENTS * bytes_per_key / 1e9:.1f} GB, {keys * bytes_per_key / 1e6:,.0f} MB at each master.
6. **Network.** A command is {sent} bytes, a reply about {reply_bytes}: {node * sent * 8 / 1e6:,.0f} Mbit/s to each master, without the headers of
   packets; with them, at some 70 bytes a packet each way, {node * (sent + 70) * 8 / 1e6:,.0f}.
7. **One hot key** lives on one master: {node:,.0f} decisions a second at most, whatever the number of masters. Merging lowers
   the number of commands only for requests that meet in one worker. A key that is rejected costs Redis next to nothing, as
   each machine remembers until when it is.

What to configure: `maxclients` above {connections * 1.25:,.0f} at each Redis, with as many file descriptors; `connections 1`; Redis's
`io-threads`, as a command that comes alone costs {alone - piped:.2f} µs more than one in a pipeline, mostly for reading and writing;
fewer and busier workers, which fill longer pipelines over fewer connections; and, for a limit that all share, several
keys with a part of the rate each.
"""
