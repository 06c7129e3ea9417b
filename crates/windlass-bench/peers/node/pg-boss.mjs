// pg-boss: jobs are sent one by one or inserted in batches, and fetched in batches by polling workers.
import { readFileSync } from "node:fs";
import { PgBoss } from "pg-boss";
import { serve } from "./common.mjs";

const QUEUE = "event";
// One more is held by the listener.
const CONNECTIONS = 19;
// A call waits this long for a connection; with many callers on few connections the default of 10 s is short.
const CONNECT_TIMEOUT_MS = 120_000;
// By default a worker takes one job every 2 s; its documentation offers these for more.
const POLLING = { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5, burstWhenBatchFull: true };

const VARIANTS = {
  recommended: { batchSize: 10, localConcurrency: 10 },
  tuned: { batchSize: 1000, localConcurrency: 4 },
};

function about({ batchSize, localConcurrency }) {
  return (
    `localConcurrency ${localConcurrency}, batchSize ${batchSize}, burstWhenBatchFull (by default 1 job every 2 s), ` +
    "woken by NOTIFY, polls every 0.5 s; completed jobs are kept for 7 days"
  );
}

class Boss {
  constructor(boss, work) {
    this.boss = boss;
    this.work = work;
    this.about = about(work);
    this.version = JSON.parse(readFileSync(new URL("node_modules/pg-boss/package.json", import.meta.url))).version;
  }

  publish(payloads) {
    return payloads.length === 1
      ? this.boss.send(QUEUE, payloads[0])
      : this.boss.insert(
          QUEUE,
          payloads.map((data) => ({ data })),
        );
  }

  // A batch is completed as a whole, which is cheapest; only jobs that may fail need a result each.
  start(handle, failing) {
    const whole = async (jobs) => {
      for (const { id, data } of jobs) handle(data, id);
    };
    const each = async (jobs) =>
      jobs.map(({ id, data }) => ({ id, status: handle(data, id) ? "completed" : "failed" }));
    const options = { ...POLLING, ...this.work, perJobResults: failing };
    return this.boss.work(QUEUE, options, failing ? each : whole);
  }

  stop() {
    return this.boss.offWork(QUEUE);
  }

  async #count(where, values) {
    const sql = `select count(*)::int as count from pgboss.job where name = $1 and state < 'completed' ${where}`;
    const { rows } = await this.boss.getDb().executeSql(sql, [QUEUE, ...values]);
    return rows[0].count;
  }

  unfinished(ids) {
    return this.#count("and id = any($2::uuid[])", [ids]);
  }

  waiting() {
    return this.#count("", []);
  }

  close() {
    return this.boss.stop();
  }
}

await serve(async (url, variant) => {
  const boss = new PgBoss({
    connectionString: url,
    max: CONNECTIONS,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    useListenNotify: true,
  });
  boss.on("error", console.error);
  await boss.start();
  await boss.createQueue(QUEUE, { notify: true });
  return new Boss(boss, VARIANTS[variant]);
});
