#!/usr/bin/env python3
"""Waits until a mail to a customer may be sent: check-from-code.py URL CUSTOMER [COUNT]

    check-from-code.py http://127.0.0.1:8080/may/mail acme && send-the-mail
"""

import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def seconds_to_wait(url, customer, count=1):
    """Checks once: 0 means go on, and the mails are charged."""
    query = urllib.parse.urlencode({"customer": customer, "count": count})
    try:
        with urllib.request.urlopen(f"{url}?{query}", data=b"", timeout=1):
            return 0
    except urllib.error.HTTPError as answer:
        # 429, or 503 while Redis is away. A count that the limit can never hold has no Retry-After.
        if answer.code not in (429, 503) or "Retry-After" not in answer.headers:
            raise
        return int(answer.headers["Retry-After"])


if __name__ == "__main__":
    while seconds := seconds_to_wait(*sys.argv[1:]):
        print(f"waiting {seconds} s", file=sys.stderr)
        time.sleep(seconds)
