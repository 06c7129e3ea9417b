#!/usr/bin/env python3
"""Publishes an event to Windlass: once, however often it has to be sent.

    python3 publish.py TAGS TITLE [PAYLOAD] [KEY]
    python3 publish.py greeting 'Say hello' '{"to": "world"}' hello-1
"""

import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
import uuid

SERVER = os.environ.get("WINDLASS_SERVER", "http://127.0.0.1:7700")
TOKEN = os.environ.get("WINDLASS_TOKEN")
TRIES = 10


class Refused(Exception):
    """The server will not have it, now or later."""


def publish(event, key=None):
    """Publishes the event; returns it as it is stored.

    The key stands for what happened, as in "order-17-paid". One that is made up here protects this
    call only: if the program dies and starts over, it publishes a second event.
    """
    headers = {"Content-Type": "application/json", "Idempotency-Key": key or str(uuid.uuid4())}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    request = urllib.request.Request(f"{SERVER}/events", json.dumps(event).encode(), headers)
    for attempt in range(TRIES):
        try:
            with urllib.request.urlopen(request, timeout=40) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (408, 429, 503):
                raise Refused(f"{error.code}: {error.read().decode()}") from None
            problem, retry_after = error, error.headers.get("Retry-After", "")
        except (OSError, http.client.HTTPException) as error:
            # It may be stored or not. With the same key, sending it again is safe.
            problem, retry_after = error, ""
        least = int(retry_after) if retry_after.isdigit() else 0
        wait = least + random.random() * min(2**attempt, 30)
        print(f"{problem}; trying again in {wait:.1f} s", file=sys.stderr)
        time.sleep(wait)
    raise ConnectionError(f"not published after {TRIES} tries: {problem}")


def main(tags, title, payload="null", key=None):
    try:
        event = publish({"tags": tags, "title": title, "payload": json.loads(payload)}, key)
    except (Refused, ConnectionError) as error:
        sys.exit(f"error: {error}")
    print(f"event {event['id']} is {event['status']}")


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
