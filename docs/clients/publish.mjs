// Publishes an event to Windlass: once, however often it has to be sent.
//
//     node publish.mjs TAGS TITLE [PAYLOAD] [KEY]
//     node publish.mjs greeting 'Say hello' '{"to": "world"}' hello-1

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const SERVER = process.env.WINDLASS_SERVER ?? "http://127.0.0.1:7700";
const TOKEN = process.env.WINDLASS_TOKEN;
const TRIES = 10;

/**
 * Publishes the event; returns it as it is stored.
 *
 * The key stands for what happened, as in "order-17-paid". One that is made up here protects this
 * call only: if the program dies and starts over, it publishes a second event.
 */
export async function publish(event, key = randomUUID()) {
  const headers = { "content-type": "application/json", "idempotency-key": key };
  if (TOKEN) headers.authorization = `Bearer ${TOKEN}`;
  let problem;
  for (let attempt = 0; attempt < TRIES; attempt++) {
    let retryAfter = 0;
    try {
      const signal = AbortSignal.timeout(40_000);
      const response = await fetch(`${SERVER}/events`, { method: "POST", headers, body: JSON.stringify(event), signal });
      const text = await response.text();
      if (response.ok) return JSON.parse(text);
      problem = `${response.status}: ${text}`;
      if (![408, 429, 503].includes(response.status)) break;
      retryAfter = Number(response.headers.get("retry-after")) || 0;
    } catch (error) {
      // It may be stored or not. With the same key, sending it again is safe.
      problem = error.cause?.message ?? error.message;
    }
    const seconds = retryAfter + Math.random() * Math.min(2 ** attempt, 30);
    console.error(`${problem}; trying again in ${seconds.toFixed(1)} s`);
    await sleep(seconds * 1000);
  }
  throw new Error(`not published: ${problem}`);
}

if (process.argv.length < 4) {
  console.error("usage: node publish.mjs TAGS TITLE [PAYLOAD] [KEY]");
  process.exit(2);
}
const [tags, title, payload = "null", key] = process.argv.slice(2);
try {
  const event = await publish({ tags, title, payload: JSON.parse(payload) }, key);
  console.log(`event ${event.id} is ${event.status}`);
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exitCode = 1;
}
