"""Whether a variant does what it is measured for: it passes, it rejects, and it sends the header fields."""

from servers import Nginx

# Asked twice each: the path, the status of the second answer, and its fields.
FREE = ("/free", 200, {"X-RateLimit-Limit": 100_000_000, "X-RateLimit-Remaining": 99_999_998, "X-RateLimit-Reset": 60})
FLOOD = ("/flood", 429, {"X-RateLimit-Limit": 1, "X-RateLimit-Remaining": 0, "X-RateLimit-Reset": 3600,
                         "Retry-After": 3600})
# By how much a time may be less, as it has passed since.
LATE = 10


def check(variant: str, nginx: Nginx, *, limits: bool = True, fields: bool = True) -> None:
    """Raises what is wrong. `limits` is whether this nginx has any, `fields` whether it sends header fields."""
    for path, status, expected in (FREE, FLOOD):
        path = f"{path}?k=trial-{variant}"
        first, second = nginx.get(path).status, nginx.get(path)
        statuses = (200, status if limits else 200)
        if (first, second.status) != statuses:
            raise RuntimeError(f"{variant}: {path} was answered with {first} and {second.status}, and not with "
                               f"{statuses[0]} and {statuses[1]}")
        for name, value in expected.items() if fields else ():
            found = second.getheader(name, "nothing")
            least = value - LATE if name in ("X-RateLimit-Reset", "Retry-After") else value
            if not found.isdecimal() or not max(0, least) <= int(found) <= value:
                raise RuntimeError(f"{variant}: {path} was answered with {name}: {found}, and not with {value}")
