// graphile-worker: jobs are added by WorkerUtils and run by run(), both over one pool.
import { readFileSync } from "node:fs";
import pg from "pg";
import { serve } from "./common.mjs";

// Read when the package is loaded; without it every finished job is logged.
process.env.NO_LOG_SUCCESS = "1";
const { Logger, makeWorkerUtils, run } = await import("graphile-worker");

const TASK = "event";
const CONNECTIONS = 20;
const ALWAYS = "woken by NOTIFY; a failed job runs again after 2.7 s; finished jobs are deleted";

const VARIANTS = {
  recommended: {
    worker: { concurrentJobs: 10 },
    about: `concurrentJobs 10, polls every 2 s, ${ALWAYS}`,
  },
  tuned: {
    worker: {
      concurrentJobs: 100,
      localQueue: { size: 2000 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      pollInterval: 200,
    },
    about: `concurrentJobs 100, local queue of 2,000, completions in batches, polls every 0.2 s, ${ALWAYS}`,
  },
};

/** Passes on what goes wrong, but not the failures of jobs that are meant to fail. */
const logger = new Logger(() => (level, message, meta) => {
  if (level === "error" && !meta?.failure) console.error(message);
});

class GraphileWorker {
  #runner = null;

  constructor(pgPool, utils, { worker, about }) {
    this.pgPool = pgPool;
    this.utils = utils;
    this.worker = worker;
    this.about = about;
    this.version = JSON.parse(
      readFileSync(new URL("node_modules/graphile-worker/package.json", import.meta.url)),
    ).version;
  }

  publish(payloads) {
    return payloads.length === 1
      ? this.utils.addJob(TASK, payloads[0])
      : this.utils.addJobs(payloads.map((payload) => ({ identifier: TASK, payload })));
  }

  async start(handle) {
    const task = (payload, { job }) => {
      if (!handle(payload, job.id)) throw new Error("this attempt is to fail");
    };
    this.#runner = await run({
      pgPool: this.pgPool,
      preset: { worker: this.worker },
      logger,
      noHandleSignals: true,
      taskList: { [TASK]: task },
      parsedCronItems: [],
    });
  }

  stop() {
    return this.#runner.stop();
  }

  // The worker tells of a success before it deletes the job, so the table is asked.
  async unfinished(ids) {
    const { rows } = await this.pgPool.query(
      "select count(*)::int as count from graphile_worker._private_jobs where id = any($1::bigint[])",
      [ids],
    );
    return rows[0].count;
  }

  async waiting() {
    const { rows } = await this.pgPool.query("select count(*)::int as count from graphile_worker._private_jobs");
    return rows[0].count;
  }

  async close() {
    await this.utils.release();
    await this.pgPool.end();
  }
}

await serve(async (url, variant) => {
  const pgPool = new pg.Pool({ connectionString: url, max: CONNECTIONS });
  pgPool.on("error", console.error);
  pgPool.on("connect", (client) => client.on("error", console.error));
  const utils = await makeWorkerUtils({ pgPool, logger });
  await utils.migrate();
  return new GraphileWorker(pgPool, utils, VARIANTS[variant]);
});
