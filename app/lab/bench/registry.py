"""Cost of the registry: resolving a key and an adapter name among many, and starting up.

python -m app.lab.bench.registry
python -m app.lab.bench.registry --database-url postgresql+psycopg://USER@HOST/EMPTY_DATABASE
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sqlalchemy import func, insert, select

from adapters.identity import DEFAULT_ALIAS, ModelName, content_digest
from app.database import tables
from app.database.migrate import downgrade, upgrade
from app.database.session import Database
from app.domain.access import Caller, Scope
from app.domain.adapters import VersionState
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KeyHasher, MintedKey, mint_key
from app.services.access.keys import KeyService
from app.services.access.peppers import Peppers
from app.services.catalog.adapters import AdapterService

_PEPPERS = Peppers(b"only of this benchmark, whose registry is thrown away")
_BASE_DIGEST = "b" * 64
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Timing:
    """Percentiles of one step, in milliseconds."""

    step: str
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Report:
    """Results of the benchmark.

    Attributes:
        start_empty_ms, start_full_ms: milliseconds from the construction of ``Database`` to its first successful check.
    """

    tenants: int
    adapters: int
    timings: tuple[Timing, ...]
    start_empty_ms: float
    start_full_ms: float


async def measure(url: str, *, tenants: int = 1000, adapters_each: int = 10, rounds: int = 2000) -> Report:
    """Fill the registry and time single look-ups. The registry must be at the head revision and empty.

    Raises:
        ValueError: the registry holds tenants.
        RegistryUnavailable
    """
    start_empty = await _start_ms(url)
    database = Database(url)
    try:
        await _refuse_unless_empty(database)
        minted = [mint_key() for _ in range(tenants)]
        await fill(database, minted, adapters_each)
        timings = await _time_steps(database, minted, adapters_each, rounds)
    finally:
        await database.close()
    return Report(tenants, tenants * adapters_each, timings, start_empty, await _start_ms(url))


async def _start_ms(url: str) -> float:
    samples = []
    for _ in range(5):
        begun = time.perf_counter()
        database = Database(url)
        await database.check()
        samples.append(1000 * (time.perf_counter() - begun))
        await database.close()
    return statistics.median(samples)


async def _refuse_unless_empty(database: Database) -> None:
    async with database.read() as connection:
        count = await connection.scalar(select(func.count()).select_from(tables.tenants))
    if count:
        raise ValueError(f"The database at database_url has {count} tenants. Use an empty database.")


async def fill(
    database: Database,
    minted: list[MintedKey],
    adapters_each: int,
    *,
    peppers: Peppers = _PEPPERS,
    tenants_before: int = 0,
    adapters_before: int = 0,
) -> None:
    """Add a tenant for each key, with adapters that have one version and the alias ``default``.

    Args:
        tenants_before, adapters_before: numbers of tenants and adapters that the registry has.
    """
    hasher = KeyHasher(peppers)
    tenant_ids = range(tenants_before + 1, tenants_before + len(minted) + 1)
    places = range(len(minted) * adapters_each)
    adapter_ids = [adapters_before + place + 1 for place in places]
    owned = [
        _adapter(number, tenant_ids[place // adapters_each], place % adapters_each)
        for number, place in zip(adapter_ids, places, strict=True)
    ]
    async with database.write() as connection:
        await connection.execute(insert(tables.tenants), [_tenant(number) for number in tenant_ids])
        hashes = [(number, key.id, hasher.hash(key.text)) for number, key in zip(tenant_ids, minted, strict=True)]
        await connection.execute(insert(tables.keys), [_key(*row) for row in hashes])
        await connection.execute(insert(tables.adapters), owned)
        await connection.execute(insert(tables.versions), [_version(number) for number in adapter_ids])
        await connection.execute(insert(tables.aliases), [_alias(number) for number in adapter_ids])
        await connection.execute(insert(tables.alias_targets), [_target(number) for number in adapter_ids])


def _tenant(number: int) -> dict[str, object]:
    slug = f"tenant-{number}"
    return {"id": number, "slug": slug, "name": slug, "disabled": False, "salt": "0" * 64, "created_at": _START}


def _key(tenant_id: int, key_id: str, hmac: str) -> dict[str, object]:
    scopes = [Scope.INFERENCE.value]
    return {
        "id": key_id,
        "tenant_id": tenant_id,
        "name": "bench",
        "scopes": scopes,
        "hmac": hmac,
        "created_at": _START,
    }


def _adapter(number: int, tenant_id: int, place: int) -> dict[str, object]:
    return {"id": number, "tenant_id": tenant_id, "slug": f"adapter-{place}", "created_at": _START}


def _version(number: int) -> dict[str, object]:
    config, weights = f"{number:064x}", f"{2**128 + number:064x}"
    return {
        "id": number,
        "adapter_id": number,
        "number": 1,
        "state": VersionState.READY.value,
        "digest": content_digest(config, weights),
        "config_digest": config,
        "weights_digest": weights,
        "config_bytes": 700,
        "weights_bytes": 2**20,
        "rank": 16,
        "manifest": {"r": 16},
        "created_at": _START,
        "created_by": "cli",
        "base_digest": _BASE_DIGEST,
    }


def _alias(number: int) -> dict[str, object]:
    return {"adapter_id": number, "name": DEFAULT_ALIAS, "revision": number, "updated_at": _START}


def _target(number: int) -> dict[str, object]:
    return {"adapter_id": number, "alias": DEFAULT_ALIAS, "version_id": number, "weight": 100}


async def _time_steps(
    database: Database, minted: list[MintedKey], adapters_each: int, rounds: int
) -> tuple[Timing, ...]:
    draw = random.Random(0)  # noqa: S311 - which rows are asked for, not a secret
    look_ups = [(draw.choice(minted).text, f"adapter-{draw.randrange(adapters_each)}") for _ in range(rounds)]
    hasher = KeyHasher(_PEPPERS)
    uncached = KeyService(database, hasher, CallerCache(ttl_s=0))
    cached = KeyService(database, hasher, CallerCache(ttl_s=3600))
    callers = {text: await cached.authenticate(text) for text, _ in look_ups}

    async def resolve(caller: Caller, name: str) -> None:
        # Use a new service each time, since a service caches names.
        adapters = AdapterService(database, base_name="base", base_digest=_BASE_DIGEST)
        await adapters.resolve(caller.tenant_id or 0, ModelName(name))

    async def only_key(text: str, _name: str) -> None:
        await uncached.authenticate(text)

    async def only_name(text: str, name: str) -> None:
        await resolve(callers[text], name)

    async def both(text: str, name: str) -> None:
        await resolve(await uncached.authenticate(text), name)

    async def both_cached(text: str, name: str) -> None:
        await resolve(await cached.authenticate(text), name)

    return (
        await _timed("key", only_key, look_ups),
        await _timed("adapter name", only_name, look_ups),
        await _timed("key and adapter name", both, look_ups),
        await _timed("key (remembered) and adapter name", both_cached, look_ups),
    )


async def _timed(step: str, call: Callable[[str, str], Awaitable[None]], look_ups: list[tuple[str, str]]) -> Timing:
    samples = []
    for text, name in look_ups:
        begun = time.perf_counter()
        await call(text, name)
        samples.append(1000 * (time.perf_counter() - begun))
    percentiles = statistics.quantiles(samples, n=100)
    return Timing(step, percentiles[49], percentiles[98])


def _show(report: Report) -> None:
    table = Table("step", "p50 ms", "p99 ms", title=f"{report.tenants} tenants, {report.adapters} adapters")
    for timing in report.timings:
        table.add_row(timing.step, f"{timing.p50:.3f}", f"{timing.p99:.3f}")
    console = Console()
    console.print(table)
    console.print(f"start-up: {report.start_empty_ms:.1f} ms empty, {report.start_full_ms:.1f} ms filled")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the registry's look-ups.")
    parser.add_argument(
        "--database-url", help="URL of an empty PostgreSQL database; default: SQLite in a temporary folder"
    )
    url = parser.parse_args().database_url
    if url is None:
        with tempfile.TemporaryDirectory() as folder:
            file = f"sqlite+aiosqlite:///{Path(folder) / 'bench.db'}"
            upgrade(file)
            _show(asyncio.run(measure(file)))
        return
    upgrade(url)
    _show(asyncio.run(measure(url)))
    downgrade(url)


if __name__ == "__main__":
    main()
