"""How often a request takes memory from the heap."""

import os
import struct
import subprocess

from load import Record
from servers import HERE, Servers
from volley import LOADS, Volleys

# Until buffers and tables have their size; and so many volleys are counted.
WARM_UP, COUNTED = 64, 64


def allocations(servers: Servers, variant: str, directives: str) -> Record:
    """Calls of malloc and its kin, for each request of each load, once it is warm."""
    room = servers.room()
    counter, library = room / "counter", room / "count_malloc.so"
    counter.write_bytes(bytes(8))
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "count_malloc.c"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), "HEAP_COUNTER": str(counter)}
    redis = servers.redis()
    if variant == "module":
        nginx = servers.module(redis, single=True, environment=environment, directives=directives)
    else:
        nginx = servers.nginx(variant, single=True, environment=environment)

    def count() -> int:
        return struct.unpack("Q", counter.read_bytes())[0]

    volleys = Volleys(nginx)
    record = {}
    for load in LOADS:
        volleys.fire(load, WARM_UP, limits=variant != "none")
        before = count()
        requests = volleys.fire(load, COUNTED, limits=variant != "none")
        record[load] = (count() - before) / requests
    volleys.close()
    servers.stop(nginx, redis)
    return record
