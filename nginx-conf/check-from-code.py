#!/usr/bin/env python3
"""Waits until a mail to a customer may be sent: check-from-code.py URL CUSTOMER [COUNT]

    check-from-code.py http://127.0.0.1:8080/may/mail acme && send-the-mail
"""

import sys
import time
import urllib.error
import urllib.parse
import urllib.request


class CannotCheck(Exception):
    """The limit was not checked, or no wait would help. The text says why."""


def seconds_to_wait(url, customer, count=1):
    """Checks once: 0 means go on, and the mails are charged."""
    query = urllib.parse.urlencode({"customer": customer, "count": count})
    try:
        with urllib.request.urlopen(f"{url}?{query}", data=b"", timeout=1):
            return 0
    except urllib.error.HTTPError as answer:
        # 429, or 503 while Redis is away.
        if answer.code in (429, 503) and "Retry-After" in answer.headers:
            return int(answer.headers["Retry-After"])
        raise CannotCheck(reason(answer.code)) from answer
    # A timeout is an OSError, and so is a refused connection.
    except (OSError, ValueError) as error:
        raise CannotCheck(f"cannot reach {url}: {getattr(error, 'reason', error)}") from error


def reason(status):
    """What an answer means that no wait would change."""
    return {
        400: "the customer is empty, or the count is no number from 1 on",
        404: "the URL leads to no limit",
        429: "the count is more than the limit can ever hold",
    }.get(status, f"the answer was {status}, and not 204")


def main(arguments):
    if len(arguments) not in (2, 3):
        sys.exit(__doc__)
    try:
        while seconds := seconds_to_wait(*arguments):
            print(f"waiting {seconds} s", file=sys.stderr)
            time.sleep(seconds)
    except CannotCheck as error:
        sys.exit(f"check-from-code.py: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
