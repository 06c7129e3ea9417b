"""What the Python peers have in common: the request loop, the load, and the checks.

A peer brings version, about and the coroutines publish(payloads), start(handle), stop(), unfinished(ids), waiting() and
close(), where handle(payload, id) is called as the handler starts and answers whether that attempt is to succeed.
"""

import asyncio
import contextlib
import json
import math
import sys
import time

BACKLOG_MAX = 20_000
STALL_SECONDS = 60
SETTLE_SECONDS = 5
RECORD_POLL_SECONDS = 0.005
# Well above what any peer keeps in flight: once these are recorded as finished, the others are as well.
LAST_IDS = 5_000


def now_micros():
    return time.monotonic_ns() // 1000


class Payloads:
    """Makes payloads of about `size` bytes, numbered through the life of the process."""

    next_n = 0

    def __init__(self, size):
        bare = len(json.dumps({"at": now_micros(), "n": Payloads.next_n, "fill": ""}, separators=(",", ":")))
        self.fill = "x" * max(1, size - bare)

    def make(self, count):
        at, first = now_micros(), Payloads.next_n
        Payloads.next_n += count
        return [{"at": at, "n": n, "fill": self.fill} for n in range(first, first + count)]


class Tally:
    """Counts the events that succeeded, lets some fail at their first attempt, and tells when `target` is reached."""

    def __init__(self, target, fail_percent=0):
        self.target = target
        self.fail_percent = fail_percent
        self.done = 0
        self.last_ids = []
        self.failed = set()
        self.reached = asyncio.Event()

    def handle(self, payload, id):
        n = payload["n"]
        if n % 100 < self.fail_percent and n not in self.failed:
            self.failed.add(n)
            return False
        self.done += 1
        if self.target - LAST_IDS < self.done <= self.target:
            self.last_ids.append(id)
            if self.done == self.target:
                self.reached.set()
        return True


async def wait_with_progress(event, tally):
    """Waits for `event` as long as something is handled at least once a minute."""
    last = -1
    while True:
        try:
            return await asyncio.wait_for(event.wait(), STALL_SECONDS)
        except asyncio.TimeoutError:
            if tally.done == last:
                raise RuntimeError(f"no progress within {STALL_SECONDS} s, at {last}") from None
            last = tally.done


async def check_waiting(peer, expected):
    """A worker may stop with its last completions still on their way, so they get some time to arrive."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (waiting := await peer.waiting()) != expected:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{waiting} jobs are left where {expected} should be")
        await asyncio.sleep(RECORD_POLL_SECONDS)


@contextlib.asynccontextmanager
async def working(peer, handle):
    await peer.start(handle)
    try:
        yield
    finally:
        await peer.stop()


async def publish(peer, events, callers, batch, bytes, **_):
    payloads = Payloads(bytes)
    left = events

    async def caller():
        nonlocal left
        while left > 0:
            size = min(batch, left)
            left -= size
            await peer.publish(payloads.make(size))

    before = await peer.waiting()
    started = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(callers)))
    seconds = time.monotonic() - started
    await check_waiting(peer, before + events)
    return {"seconds": seconds}


async def drain(peer, events, fail_percent=0, **_):
    before = await peer.waiting()
    if before < events:
        raise RuntimeError(f"only {before} jobs are waiting")
    tally = Tally(events, fail_percent)
    started = time.monotonic()
    async with working(peer, tally.handle):
        await wait_with_progress(tally.reached, tally)
        while await peer.unfinished(tally.last_ids) > 0:
            await asyncio.sleep(RECORD_POLL_SECONDS)
        seconds = time.monotonic() - started
    await check_waiting(peer, before - tally.done)
    return {"seconds": seconds}


async def latency(peer, per_second, seconds, bytes, **_):
    payloads = Payloads(bytes)
    total = round(per_second * seconds)
    first = Payloads.next_n
    micros = []
    # One event more, ahead of the schedule, shows that the workers listen.
    tally = Tally(total + 1)
    warm = asyncio.Event()

    def handle(payload, id):
        if payload["n"] > first:
            micros.append(now_micros() - payload["at"])
        elif payload["n"] == first:
            warm.set()
        return tally.handle(payload, id)

    await check_waiting(peer, 0)
    async with working(peer, handle):
        await peer.publish(payloads.make(1))
        await wait_with_progress(warm, tally)
        await schedule(total, per_second, lambda: peer.publish(payloads.make(1)))
        await wait_with_progress(tally.reached, tally)
    await check_waiting(peer, 0)
    return {"micros": micros}


async def schedule(total, rate, call):
    """Calls `call` `total` times, `rate` times a second, whether or not earlier calls have returned."""
    started = time.monotonic()
    calls = []
    while len(calls) < total:
        due = min(total, math.floor((time.monotonic() - started) * rate) + 1)
        while len(calls) < due:
            calls.append(asyncio.ensure_future(call()))
        await asyncio.sleep(max(0.001, started + len(calls) / rate - time.monotonic()))
    await asyncio.gather(*calls)


async def steady(peer, seconds, batch, publishers, bytes, **_):
    payloads = Payloads(bytes)
    tally = Tally(math.inf)
    sent = 0

    async def publish_until(end):
        nonlocal sent
        while time.monotonic() < end:
            if sent - tally.done >= BACKLOG_MAX:
                await asyncio.sleep(0.001)
                continue
            await peer.publish(payloads.make(batch))
            sent += batch

    before = await peer.waiting()
    async with working(peer, tally.handle):
        started = time.monotonic()
        counting = per_second_counts(started, seconds, lambda: (tally.done, sent))
        publishing = (publish_until(started + seconds) for _ in range(publishers))
        finished, published = (await asyncio.gather(counting, *publishing))[0]
    await check_waiting(peer, before + sent - tally.done)
    return {"finished": finished, "published": published}


async def per_second_counts(started, seconds, read):
    counts = [(0, 0)]
    for second in range(1, seconds + 1):
        await asyncio.sleep(max(0, started + second - time.monotonic()))
        counts.append(read())
    return [[now - last for last, now in zip(column, column[1:])] for column in zip(*counts)]


# A request may carry more than concerns a peer; each load takes what it knows.
LOADS = {"publish": publish, "drain": drain, "latency": latency, "steady": steady}


async def answer(peers, open_peer, request):
    """Does one request; `peers` holds the open peer, if any."""
    verb = request.pop("do")
    if verb in ("open", "close"):
        while peers:
            await peers.pop().close()
    if verb == "close":
        return {}
    if verb == "open":
        peers.append(await open_peer(request["url"], request["variant"]))
        return {"version": peers[0].version, "about": peers[0].about}
    if verb not in LOADS:
        raise RuntimeError(f"unknown request {verb}")
    if not peers:
        raise RuntimeError("not open")
    return await LOADS[verb](peers[0], **request)


async def serve(open_peer):
    """Answers the requests on stdin, one JSON object a line; `open_peer(url, variant)` makes the peer."""
    peers = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            reply = {"ok": await answer(peers, open_peer, json.loads(line))}
        except Exception as error:
            reply = {"error": str(error) or repr(error)}
        print(json.dumps(reply), flush=True)
    for peer in peers:
        await peer.close()
