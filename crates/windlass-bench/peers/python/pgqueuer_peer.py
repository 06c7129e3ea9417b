"""pgqueuer: jobs are enqueued and dequeued in batches through asyncpg; a payload is bytes, so JSON is up to us."""

import asyncio
import importlib.metadata
import json
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.queries import Queries

from common import serve

ENTRYPOINT = "event"
CONNECTIONS = 20

BATCH_SIZES = {"recommended": 10, "tuned": 1000}


class Pgqueuer:
    version = importlib.metadata.version("pgqueuer")

    def __init__(self, pool, queries, batch_size):
        self.pool = pool
        self.queries = queries
        self.batch_size = batch_size
        self.about = (
            f"batch_size {batch_size}, completions in batches, woken by NOTIFY; "
            "finished jobs are deleted and each leaves rows in a log table"
        )
        self.manager = None
        self.running = None

    async def publish(self, payloads):
        bodies = [json.dumps(payload).encode() for payload in payloads]
        if len(bodies) == 1:
            await self.queries.enqueue(ENTRYPOINT, bodies[0])
        else:
            await self.queries.enqueue([ENTRYPOINT] * len(bodies), bodies, [0] * len(bodies))

    async def start(self, handle):
        self.manager = PgQueuer(AsyncpgPoolDriver(self.pool))

        @self.manager.entrypoint(ENTRYPOINT)
        async def run(job):
            if not handle(json.loads(job.payload), job.id):
                raise RetryRequested(delay=timedelta(0), reason="this attempt is to fail")

        self.running = asyncio.create_task(self.manager.run(batch_size=self.batch_size))

    async def stop(self):
        self.manager.shutdown.set()
        await self.running

    async def unfinished(self, ids):
        return await self.pool.fetchval("SELECT count(*) FROM pgqueuer WHERE id = ANY($1)", ids)

    async def waiting(self):
        return await self.pool.fetchval("SELECT count(*) FROM pgqueuer")

    async def close(self):
        await self.pool.close()


async def open_peer(url, variant):
    pool = await asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    queries = Queries(AsyncpgPoolDriver(pool))
    await queries.install()
    return Pgqueuer(pool, queries, BATCH_SIZES[variant])


# As pgqueuer's own command does.
uvloop.run(serve(open_peer))
