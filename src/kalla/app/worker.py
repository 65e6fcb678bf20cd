"""The worker process: settings in, services and probes running, SIGTERM drains, exit 0."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from prometheus_client import Gauge

from kalla import logs
from kalla.app import sinks
from kalla.app.deletion_cost import DeletionCost, own_pod
from kalla.app.job_types import job_types as all_job_types
from kalla.app.probes import create_probes
from kalla.app.release_check import check_release
from kalla.app.serving import address_of, bind, serving
from kalla.database import Database
from kalla.query.store.maintenance.upkeep import Upkeep
from kalla.reconcile.runs.run_completion import Conclusions
from kalla.reconcile.schedules import schedule_store
from kalla.reconcile.schedules.run_scheduler import RunScheduler
from kalla.reconcile.uploads import upload_store
from kalla.settings import ROLES, Settings
from kalla.spark.session import SparkSessions
from kalla.tables import store as table_store
from kalla.tables.schedule.scheduler import TableScheduler
from kalla.web import commands
from kalla.web.tokens import login_links
from kalla.work.wake import open_channel
from kalla.work.worker import Worker, new_name


async def run_worker(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT, then drain."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    listener = bind(settings.worker.host, settings.worker.port, "worker.port")
    spark = SparkSessions(settings.spark)
    job_types = all_job_types(settings, spark)
    async with Database(settings.database, name="kalla worker") as database:
        wake = open_channel(settings, database, ROLES)
        name = new_name()
        sink_slots = sinks.slots(settings, database, name)
        worker = Worker(
            settings,
            job_types,
            database,
            wake,
            address_of(listener),
            [
                commands.sweep,
                login_links.sweep,
                upload_store.sweeper(settings),
                schedule_store.sweep,
                table_store.sweep,
            ],
            [
                Conclusions(database, job_types, wake),
                RunScheduler(settings, database, job_types, wake),
                Upkeep(settings, database, job_types, wake),
                *([sink_slots] if sink_slots else []),
                TableScheduler(settings, database, job_types, wake),
            ],
            name,
        )

        def carried() -> int:
            return sink_slots.carried if sink_slots else 0

        Gauge(
            "kalla_worker_sink_slots", "Slots of sinks held", registry=worker.metrics.registry
        ).set_function(carried)
        probes = create_probes(worker.metrics.registry, worker.problems, worker.absences)
        pod = own_pod()
        cost = DeletionCost(pod, lambda: len(worker.slots) + carried()) if pod else None
        async with serving(probes, listener):
            await check_release(database, "this worker", stopping)
            await worker.start()
            if cost:
                await cost.start()
            await stopping.wait()
            if cost:
                await cost.stop()
            await worker.drain()
    if len(worker.slots):
        # A thread that does not stop would keep the interpreter from ending. Its job is elsewhere.
        logs.get(__name__).warning("a thread is left behind", jobs=len(worker.slots))
        sys.stderr.flush()
        os._exit(0)
    await asyncio.to_thread(spark.close)
