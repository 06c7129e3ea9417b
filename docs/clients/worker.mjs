// Works on Windlass's events with any of the given tags, one at a time, until SIGTERM or Ctrl-C.
//
//     node worker.mjs greeting,farewell

import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const SERVER = process.env.WINDLASS_SERVER ?? "http://127.0.0.1:7700";
const TOKEN = process.env.WINDLASS_TOKEN;
const WORKER = `${hostname()}:${process.pid}`;
const LEASE_MS = 30_000;
const WAIT_MS = 5_000;
let stopping = false;

/** Your work. If it throws, the event is tried again later. It may see an event twice. */
async function handle(event) {
  if (!event.payload?.to) throw new Error("nobody to greet");
  console.log(`Hello, ${event.payload.to}!`);
}

/** Sends a request, again where that may help. Returns the status, 0 if there is none, and the answer. */
async function call(method, path, body, tries = 10) {
  const headers = { "content-type": "application/json" };
  if (TOKEN) headers.authorization = `Bearer ${TOKEN}`;
  let problem;
  for (let attempt = 0; attempt < tries; attempt++) {
    let retryAfter = 0;
    try {
      const signal = AbortSignal.timeout(40_000);
      const response = await fetch(SERVER + path, { method, headers, body: body && JSON.stringify(body), signal });
      const text = await response.text();
      problem = `${response.status}: ${text}`;
      if (![408, 429, 503].includes(response.status)) return [response.status, JSON.parse(text || "{}")];
      retryAfter = Number(response.headers.get("retry-after")) || 0;
    } catch (error) {
      problem = error.cause?.message ?? error.message;
    }
    await sleep((retryAfter + Math.random() * Math.min(2 ** attempt, 10)) * 1000);
  }
  console.error(`${method} ${path}: ${problem}`);
  return [0, { code: "no_answer" }];
}

async function work(event) {
  const [path, lease] = [`/events/${event.id}`, event.lease];
  const hold = () => call("POST", `${path}/heartbeat`, { lease, lease_ms: LEASE_MS }, 1);
  const holding = setInterval(hold, LEASE_MS / 3);
  let [report, body] = ["complete", { lease }];
  try {
    await handle(event);
  } catch (error) {
    [report, body] = ["fail", { lease, error_message: String(error) }];
  }
  const [, answer] = await call("POST", `${path}/${report}`, body);
  clearInterval(holding);
  // With "lost" somebody else has it; with "max_retries_exceeded" the report has arrived, and was the last.
  console.log(`event ${event.id}: ${answer.action ?? answer.code}`);
}

const tags = process.argv[2];
if (!tags) {
  console.error("usage: node worker.mjs TAGS");
  process.exit(2);
}
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => (stopping = true));
const query = new URLSearchParams({ tags, worker_id: WORKER, wait_ms: WAIT_MS, lease_ms: LEASE_MS });
while (!stopping) {
  const [status, answer] = await call("GET", `/events/subscribe?${query}`, undefined, 1);
  if (status === 200) await work(answer);
  else if (status >= 400) {
    console.error(`${status}: ${answer.error}`);
    process.exit(1);
  }
}
