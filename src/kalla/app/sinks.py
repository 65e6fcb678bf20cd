"""The parts of sinks, where its packages are installed: `pip install 'kalla[sinks]'`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import APIRouter

from kalla.database import Database
from kalla.secrets import Vault
from kalla.settings import Settings
from kalla.web.layout import Place

if TYPE_CHECKING:
    from kalla.sinks.slots.reconciling import Slots


def slots(settings: Settings, database: Database, worker: str) -> Slots | None:
    """What a worker with the role `sinks` runs, and holds its slots by its name."""
    if not _installed() or "sinks" not in settings.worker.roles:
        return None
    from kalla.sinks.slots.reconciling import Slots

    return Slots(settings, database, worker, Vault(settings).resolve)


def routers() -> list[APIRouter]:
    if not _installed():
        return []
    from kalla.sinks import pages, record_routes, routes, sample_routes

    # Samples first: /api/pipelines/infer is not a pipeline's name.
    return [sample_routes.router, routes.router, record_routes.router, pages.router]


def places() -> list[Place]:
    return [Place("Sinks", "/sinks", below=("/sinks/",))] if _installed() else []


def _installed() -> bool:
    return find_spec("confluent_kafka") is not None and find_spec("orjson") is not None
