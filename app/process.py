"""What lives as long as the process. Everything here is safe to use by many requests at once.

What lives as long as one request is made where it is used: a database connection inside one service call, a
spool folder around one upload, an adapter's lease inside the engine.
"""

import asyncio
from dataclasses import dataclass

from adapters.cache import DiskCache
from adapters.stores import open_store
from adapters.stores.base import BlobStore
from app.base_model import BaseModel, open_base
from app.database.session import Database
from app.database.urls import database_url
from app.engine.base import Engine
from app.engine.runtime import VllmEngine
from app.metrics import Metrics
from app.secrets import load_pepper
from app.services.adapters import AdapterService
from app.services.caller_cache import CallerCache
from app.services.inference import InferenceService
from app.services.key_format import KeyHasher
from app.services.keys import KeyService
from app.services.publishing import PublishingService
from app.services.readiness import Readiness
from app.services.removal import RemovalService
from app.services.spool import Spool
from app.services.tenants import TenantService
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class Process:
    """The parts of one server, wired; ``app.main`` starts and ends those that need it."""

    settings: Settings
    base: BaseModel
    database: Database
    store: BlobStore
    spool: Spool
    engine: Engine
    metrics: Metrics
    readiness: Readiness
    keys: KeyService
    tenants: TenantService
    adapters: AdapterService
    publishing: PublishingService
    removal: RemovalService
    inference: InferenceService


def build_process(settings: Settings, *, engine: Engine | None = None) -> Process:
    """Wire a server. Reads and makes files in HOME, connects to nothing, starts nothing. Blocks.

    Args:
        engine: another implementation of the port; default: vLLM in this process.

    Raises:
        app.base_model.BaseNotFound, app.secrets.InvalidPepper
        adapters.errors.AdapterError: the base, the store's URL or HOME's disk is not usable.
        ValueError: the database's URL is not one that the registry supports.
    """
    base = open_base(settings)
    database = Database(database_url(settings))
    store = open_store(_store_url(settings), endpoint_url=settings.s3_endpoint_url, region=settings.s3_region)
    cache = DiskCache(settings.home / "cache", store, settings.cache_bytes)
    engine = engine or VllmEngine(settings, base=base.path, base_name=base.name, cache=cache)
    adapters, callers, blob_lock = AdapterService(database), CallerCache(), asyncio.Lock()
    limits = settings.limits
    return Process(
        settings=settings,
        base=base,
        database=database,
        store=store,
        spool=Spool(settings.home / "spool", places=limits.uploads, patience_s=limits.upload_idle_seconds),
        engine=engine,
        metrics=Metrics(engine, cache),
        readiness=Readiness(
            {
                "engine": engine.check,
                "database": database.check,
                "store": lambda: asyncio.to_thread(store.check),
            }
        ),
        keys=KeyService(database, KeyHasher(load_pepper(settings)), callers),
        tenants=TenantService(database, callers),
        adapters=adapters,
        publishing=PublishingService(database, store, base, settings, blob_lock),
        removal=RemovalService(adapters, database, store, cache, engine, blob_lock),
        inference=InferenceService(engine, adapters, settings, base_name=base.name),
    )


def _store_url(settings: Settings) -> str:
    return settings.store_url or (settings.home.resolve() / "blobs").as_uri()
