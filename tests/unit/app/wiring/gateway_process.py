"""Import the routes and build a gateway without an engine.

Usage: ``python -m tests.unit.app.wiring.gateway_process BASE HOME``.

Prints JSON: imported libraries that only an engine needs, and the largest resident memory so far in bytes.
"""

import asyncio
import importlib
import json
import pkgutil
import sys
from functools import cached_property
from pathlib import Path
from unittest.mock import create_autospec

import app.api
from adapters.cache import DiskCache
from app.engine.port import Engine
from app.services.common.in_flight import InFlightLookups
from app.services.operations.nodes import NodeService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.settings import Settings
from app.wiring.gateway import Gateway
from app.wiring.resources import Resources

ENGINE_LIBRARIES = ("peft", "torch", "transformers", "vllm")


def build(settings: Settings) -> tuple[Resources, Gateway]:
    resources, engine, in_flight = Resources(settings), create_autospec(Engine, instance=True), InFlightLookups()
    database, home = resources.database, settings.home
    gateway = Gateway(
        resources,
        engine=engine,
        cache=DiskCache(home / "cache", resources.store, settings.cache_bytes, fetch_s=settings.fetch_seconds),
        in_flight=in_flight,
        nodes=NodeService(database, resources.node_id, "gateway"),
        prefetcher=Prefetcher(
            database, engine, in_flight, home / "working-set.json", base_digest=resources.base.digest
        ),
        preloads=lambda: (),
        wake_deletions=lambda: None,
    )
    return resources, gateway


async def use_every_service(resources: Resources, gateway: Gateway) -> None:
    await resources.database.check()
    await gateway.open_peppers()
    for name, member in vars(Gateway).items():
        if isinstance(member, cached_property):
            getattr(gateway, name)
    await gateway.tenants.create("pricing", actor="cli")
    await gateway.keys.create("pricing", name="first", actor="cli")
    await gateway.prompts.close()
    await resources.database.close()


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    base, home = sys.argv[1:]
    for module in pkgutil.iter_modules(app.api.__path__):
        importlib.import_module(f"app.api.{module.name}")
    asyncio.run(use_every_service(*build(Settings(home=Path(home), base_model=base))))
    libraries = [name for name in ENGINE_LIBRARIES if name in sys.modules]
    print(json.dumps({"libraries": libraries, "peak_bytes": peak_bytes()}))  # noqa: T201


if __name__ == "__main__":
    main()
