"""procrastinate: jobs are deferred through an async App on psycopg, and run by its workers."""

import asyncio
import importlib.metadata

import procrastinate

from common import serve

# Each worker holds one more, to listen.
CONNECTIONS = 20
# A call waits this long for a connection; with many callers on few connections the default of 30 s is short.
CONNECT_TIMEOUT_SECONDS = 120


async def autocommit(connection):
    """Saves a BEGIN and a COMMIT around each statement; all that procrastinate does is one statement each."""
    await connection.set_autocommit(True)


# Workers in this process, the options of each, and those of the pool.
VARIANTS = {
    "recommended": (1, {"concurrency": 10}, {}),
    "tuned": (6, {"concurrency": 10, "delete_jobs": "successful"}, {"configure": autocommit}),
}

ABOUT = {
    "recommended": "1 worker with concurrency 10, woken by NOTIFY, polls every 5 s; finished jobs are kept",
    "tuned": "6 workers with concurrency 10, autocommit, woken by NOTIFY, polls every 5 s; finished jobs are deleted",
}


class Procrastinate:
    version = importlib.metadata.version("procrastinate")

    def __init__(self, app, about, workers, options):
        self.app = app
        self.workers = workers
        self.options = options
        self.about = about
        self.running = []
        self.handle = None
        # retry=True: again at once, as often as needed.
        self.task = app.task(self.run, name="event", pass_context=True, retry=True)

    async def run(self, context, **payload):
        if not self.handle(payload, context.job.id):
            raise RuntimeError("this attempt is to fail")

    async def publish(self, payloads):
        if len(payloads) == 1:
            await self.task.defer_async(**payloads[0])
        else:
            await self.task.batch_defer_async(*payloads)

    async def start(self, handle):
        self.handle = handle
        self.running = [
            asyncio.create_task(self.app.run_worker_async(install_signal_handlers=False, **self.options))
            for _ in range(self.workers)
        ]

    async def stop(self):
        for worker in self.running:
            worker.cancel()
        for outcome in await asyncio.gather(*self.running, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError) and outcome is not None:
                raise outcome

    async def count(self, where, **arguments):
        row = await self.app.connector.execute_query_one_async(
            f"SELECT count(*) AS count FROM procrastinate_jobs WHERE status IN ('todo', 'doing') {where}", **arguments
        )
        return row["count"]

    async def unfinished(self, ids):
        return await self.count("AND id = ANY(%(ids)s)", ids=ids)

    async def waiting(self):
        return await self.count("")

    async def close(self):
        await self.app.close_async()


async def open_peer(url, variant):
    workers, options, pool = VARIANTS[variant]
    size = CONNECTIONS - workers
    connector = procrastinate.PsycopgConnector(
        conninfo=url, min_size=size, max_size=size, timeout=CONNECT_TIMEOUT_SECONDS, **pool
    )
    app = procrastinate.App(connector=connector)
    await app.open_async()
    await app.schema_manager.apply_schema_async()
    return Procrastinate(app, ABOUT[variant], workers, options)


asyncio.run(serve(open_peer))
