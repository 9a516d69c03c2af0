"""What a large fleet carries, calculated from what one worker and one Redis were measured to take."""

from prose import paragraph
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
    master = BUSY * 1e6 / alone
    masters = master * REDIS_NODES
    share = masters / NGINX_NODES
    node = BUSY * 1e6 / (own + added) * WORKERS
    nodes = node * NGINX_NODES
    first, spare = ("Redis's", nodes / masters) if masters < nodes else ("NGINX's", masters / nodes)
    connections = NGINX_NODES * WORKERS
    too_many = MAXCLIENTS // NGINX_NODES + 1
    fits = "which it accepts by default" if connections <= MAXCLIENTS else "which is more than it accepts by default"
    sent = len(encode(command))
    taken = f"""
        Taken: {NGINX_NODES:,} NGINX nodes of {WORKERS} workers, {REDIS_NODES} Redis masters in one Cluster, one
        `token_bucket` per request, keys spread evenly, each core busy for at most {BUSY * 100:.0f} %. Measured on the
        machine above: NGINX itself {own:.2f} µs a request; the module {added:.2f} µs more, or {quiet:.2f} µs where
        requests come one by one; Redis {piped:.2f} µs a decision where commands come in long pipelines, and
        {alone:.2f} µs where each comes alone, from one of 64 connections."""
    points = (f"""
        **How commands arrive.** Every worker has one connection to every master: {connections:,} at each master, and
        {connections * REDIS_NODES:,} in all. When the masters are as busy as they may be, one connection carries a
        command every {connections / master * 1000:,.0f} ms, so that commands come alone.""", f"""
        **Redis** then decides {BUSY * 100:.0f} % / {alone:.2f} µs = {master:,.0f} times a second at each master,
        **{masters / 1e6:.1f} million a second** in all. In long pipelines it would be
        {BUSY * REDIS_NODES / piped:.1f} million.""", f"""
        **NGINX.** Of these, {share:,.0f} a second are for each node. Spread over {WORKERS} workers they come one every
        {WORKERS / share * 1000:.2g} ms, so that the module takes {share * quiet / 1e4:.1f} % of one core for them. The
        node's cores could serve {node:,.0f} cheap requests a second, and all nodes {nodes / 1e6:,.0f} million.""", f"""
        **The first bottleneck is {first} CPU:** the other side could do {spare:,.1f} times as much.""", f"""
        **Connections.** Each master has {connections:,}, {fits} ({MAXCLIENTS:,}); {too_many} workers a node or more
        are too many for that.""", f"""
        **Memory.** {CLIENTS:,} clients at {bytes_per_key:.0f} bytes are {CLIENTS * bytes_per_key / 1e9:.1f} GB,
        {CLIENTS / REDIS_NODES * bytes_per_key / 1e6:,.0f} MB at each master.""", f"""
        **Network.** A command is {sent} bytes, to which each packet adds some 70: to each master
        {master * (sent + 70) * 8 / 1e6:,.0f} Mbit/s.""", f"""
        **One hot key** lives on one master, which answers {master:,.0f} commands a second, however many masters there
        are. Coalescing lowers their number only for requests that meet in one worker. While the key is rejected, each
        machine sends a command about it once a second: that is {NGINX_NODES:,} commands,
        {NGINX_NODES / master * 100:.1f} % of what the master may do.""")
    configure = f"""
        What to configure: `maxclients` above {connections * 1.25:,.0f} at each Redis, with as many file descriptors;
        `connections 1`; Redis's `io-threads`, as reading and writing are in the {alone - piped:.2f} µs that a command
        costs more when it comes alone; no more workers than a node's other work needs, as each is a connection at each
        master; and, for a limit that all share, several keys with a part of the rate each."""
    items = [paragraph(f"{i}. {point}", "   ") for i, point in enumerate(points, 1)]
    return "\n".join([paragraph(taken), "", *items, "", paragraph(configure), ""])
