// What the Node peers have in common: the request loop, the load, and the checks. A peer brings
// { version, about, publish(payloads), start(handle, failing), stop(), unfinished(ids), waiting(), close() }, where
// handle(payload, id) is called as the handler starts and answers whether that attempt is to succeed.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const BACKLOG_MAX = 20_000;
const STALL_MS = 60_000;
const SETTLE_MS = 5_000;
const RECORD_POLL_MS = 5;
// Well above what any peer keeps in flight: once these are recorded as finished, the others are as well.
const LAST_IDS = 5_000;

const nowMicros = () => Math.round(performance.now() * 1000);

let nextN = 0;

/** Makes payloads of about `bytes` bytes, numbered through the life of the process. */
function payloads(bytes) {
  const bare = JSON.stringify({ at: nowMicros(), n: nextN, fill: "" }).length;
  const fill = "x".repeat(Math.max(1, bytes - bare));
  return (count) => {
    const at = nowMicros();
    return Array.from({ length: count }, () => ({ at, n: nextN++, fill }));
  };
}

/** Counts the events that succeeded, lets some fail at their first attempt, and tells when `target` is reached. */
class Tally {
  done = 0;
  lastIds = [];
  #failed = new Set();

  constructor(target, failPercent = 0) {
    this.target = target;
    this.failPercent = failPercent;
    this.reached = new Promise((resolve) => (this.reach = resolve));
  }

  handle = (payload, id) => {
    if (payload.n % 100 < this.failPercent && !this.#failed.has(payload.n)) {
      this.#failed.add(payload.n);
      return false;
    }
    this.done += 1;
    if (this.done > this.target - LAST_IDS && this.done <= this.target) this.lastIds.push(id);
    if (this.done === this.target) this.reach();
    return true;
  };
}

/** Waits for `promise` as long as `progress()` changes at least once a minute. */
async function withProgress(promise, progress) {
  for (let last = -1; ; ) {
    const timer = new AbortController();
    const tick = sleep(STALL_MS, "stalled", { signal: timer.signal }).catch(() => undefined);
    const outcome = await Promise.race([promise, tick]);
    timer.abort();
    if (outcome !== "stalled") return;
    if (progress() === last) throw new Error(`no progress within ${STALL_MS / 1000} s, at ${last}`);
    last = progress();
  }
}

/** A worker may stop with its last completions still on their way, so they get some time to arrive. */
async function checkWaiting(peer, expected) {
  const deadline = performance.now() + SETTLE_MS;
  for (;;) {
    const waiting = await peer.waiting();
    if (waiting === expected) return;
    if (performance.now() > deadline) throw new Error(`${waiting} jobs are left where ${expected} should be`);
    await sleep(RECORD_POLL_MS);
  }
}

/** Runs `body` while the workers run, and stops them whatever becomes of it. */
async function working(peer, handle, failing, body) {
  await peer.start(handle, failing);
  try {
    return await body();
  } finally {
    await peer.stop();
  }
}

async function publish(peer, { events, callers, batch, bytes }) {
  const make = payloads(bytes);
  let left = events;
  const caller = async () => {
    while (left > 0) {
      const size = Math.min(batch, left);
      left -= size;
      await peer.publish(make(size));
    }
  };
  const before = await peer.waiting();
  const started = performance.now();
  await Promise.all(Array.from({ length: callers }, caller));
  const seconds = (performance.now() - started) / 1000;
  await checkWaiting(peer, before + events);
  return { seconds };
}

async function drain(peer, { events, fail_percent: failPercent = 0 }) {
  const before = await peer.waiting();
  if (before < events) throw new Error(`only ${before} jobs are waiting`);
  const tally = new Tally(events, failPercent);
  const started = performance.now();
  const seconds = await working(peer, tally.handle, failPercent > 0, async () => {
    await withProgress(tally.reached, () => tally.done);
    while ((await peer.unfinished(tally.lastIds)) > 0) await sleep(RECORD_POLL_MS);
    return (performance.now() - started) / 1000;
  });
  await checkWaiting(peer, before - tally.done);
  return { seconds };
}

async function latency(peer, { per_second: rate, seconds, bytes }) {
  const make = payloads(bytes);
  const total = Math.round(rate * seconds);
  const first = nextN;
  const micros = [];
  // One event more, ahead of the schedule, shows that the workers listen.
  const tally = new Tally(total + 1);
  let warmed;
  const warm = new Promise((resolve) => (warmed = resolve));
  const handle = (payload, id) => {
    if (payload.n > first) micros.push(nowMicros() - payload.at);
    else if (payload.n === first) warmed();
    return tally.handle(payload, id);
  };
  await checkWaiting(peer, 0);
  await working(peer, handle, false, async () => {
    await peer.publish(make(1));
    await withProgress(warm, () => tally.done);
    await schedule(total, rate, () => peer.publish(make(1)));
    await withProgress(tally.reached, () => tally.done);
  });
  await checkWaiting(peer, 0);
  return { micros };
}

/** Calls `call` `total` times, `rate` times a second, whether or not earlier calls have returned. */
async function schedule(total, rate, call) {
  const started = performance.now();
  const calls = [];
  while (calls.length < total) {
    const due = Math.min(total, Math.floor(((performance.now() - started) * rate) / 1000) + 1);
    while (calls.length < due) calls.push(call());
    await sleep(Math.max(1, started + (calls.length * 1000) / rate - performance.now()));
  }
  await Promise.all(calls);
}

async function steady(peer, { seconds, batch, publishers, bytes }) {
  const make = payloads(bytes);
  const tally = new Tally(Infinity);
  let sent = 0;
  const publishUntil = async (end) => {
    while (performance.now() < end) {
      if (sent - tally.done >= BACKLOG_MAX) {
        await sleep(1);
        continue;
      }
      await peer.publish(make(batch));
      sent += batch;
    }
  };
  const before = await peer.waiting();
  const counts = await working(peer, tally.handle, false, async () => {
    const started = performance.now();
    const publishing = Array.from({ length: publishers }, () => publishUntil(started + seconds * 1000));
    const counting = perSecond(started, seconds, () => ({ finished: tally.done, published: sent }));
    return (await Promise.all([counting, ...publishing]))[0];
  });
  await checkWaiting(peer, before + sent - tally.done);
  return counts;
}

async function perSecond(started, seconds, read) {
  const counts = { finished: [], published: [] };
  let last = { finished: 0, published: 0 };
  for (let second = 1; second <= seconds; second++) {
    await sleep(Math.max(0, started + second * 1000 - performance.now()));
    const now = read();
    counts.finished.push(now.finished - last.finished);
    counts.published.push(now.published - last.published);
    last = now;
  }
  return counts;
}

const LOADS = { publish, drain, latency, steady };

/** Answers the requests on stdin, one JSON object a line; `open(url, variant)` makes the peer. */
export async function serve(open) {
  let peer = null;
  const close = async () => {
    const closing = peer;
    peer = null;
    await closing?.close();
    return {};
  };
  const answer = async (line) => {
    const request = JSON.parse(line);
    if (request.do === "open") {
      await close();
      peer = await open(request.url, request.variant);
      return { version: peer.version, about: `${peer.about}; on Node ${process.versions.node}` };
    }
    if (request.do === "close") return close();
    if (!Object.hasOwn(LOADS, request.do)) throw new Error(`unknown request ${request.do}`);
    if (!peer) throw new Error("not open");
    return LOADS[request.do](peer, request);
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const reply = await answer(line).then(
      (ok) => ({ ok }),
      (error) => ({ error: String(error?.message || error) }),
    );
    process.stdout.write(`${JSON.stringify(reply)}\n`);
  }
  await close();
}
