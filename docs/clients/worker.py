#!/usr/bin/env python3
"""Works on Windlass's events with any of the given tags, one at a time, until SIGTERM or Ctrl-C.

    python3 worker.py greeting,farewell"""

import json
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

SERVER = os.environ.get("WINDLASS_SERVER", "http://127.0.0.1:7700")
TOKEN = os.environ.get("WINDLASS_TOKEN")
WORKER = f"{socket.gethostname()}:{os.getpid()}"
LEASE_MS, WAIT_MS = 30_000, 5_000
stopping = threading.Event()


def handle(event):
    """Your work. If it raises, the event is tried again later. It may see an event twice."""
    print(f"Hello, {event['payload']['to']}!", flush=True)


def call(method, path, body=None, tries=10):
    """Sends a request, again where that may help. Returns the status, 0 if there is none, and the answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {TOKEN}"} if TOKEN else {})
    request = urllib.request.Request(SERVER + path, body and json.dumps(body).encode(), headers, method=method)
    for attempt in range(tries):
        try:
            with urllib.request.urlopen(request, timeout=40) as response:
                return response.status, json.loads(response.read() or "{}")
        except urllib.error.HTTPError as error:
            if error.code not in (408, 429, 503):
                return error.code, json.load(error)
            problem, retry_after = error, error.headers.get("Retry-After", "")
        except Exception as error:  # no connection, or it broke
            problem, retry_after = error, ""
        time.sleep((int(retry_after) if retry_after.isdigit() else 0) + random.random() * min(2**attempt, 10))
    print(f"{method} {path}: {problem}", file=sys.stderr, flush=True)
    return 0, {"code": "no_answer"}


def work(event):
    path, lease, done = f"/events/{event['id']}", {"lease": event["lease"]}, threading.Event()
    def hold():
        while not done.wait(LEASE_MS / 3000):
            call("POST", f"{path}/heartbeat", lease | {"lease_ms": LEASE_MS}, tries=1)
    threading.Thread(target=hold, daemon=True).start()
    try:
        handle(event)
        report, body = "complete", lease
    except Exception as error:
        report, body = "fail", lease | {"error_message": repr(error)}
    _, answer = call("POST", f"{path}/{report}", body)
    done.set()
    # With "lost" somebody else has it; with "max_retries_exceeded" the report has arrived, and was the last.
    print(f"event {event['id']}: {answer.get('action') or answer['code']}", flush=True)


def main(tags):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    query = {"tags": tags, "worker_id": WORKER, "wait_ms": WAIT_MS, "lease_ms": LEASE_MS}
    while not stopping.is_set():
        status, answer = call("GET", "/events/subscribe?" + urllib.parse.urlencode(query), tries=1)
        if status == 200:
            work(answer)
        elif status >= 400:
            sys.exit(f"{status}: {answer['error']}")


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
