"""Metric cardinality: the number of series is bounded for any names."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.types import Message, Receive, Scope, Send

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore
from app.api.errors import error_response
from app.api.middleware import RequestMiddleware
from app.database.session import Database
from app.domain.access import Caller
from app.domain.errors import LimitExceeded, NotFound
from app.domain.limits.limits import Limits, TokenBound
from app.domain.load_phases import LoadPhases
from app.domain.usage import UsageRecord
from app.engine.port import Endpoint, EngineEvent, EngineRequest
from app.services.limits.memory import MemoryAccounts
from app.services.limits.prices import PriceService
from app.services.limits.service import LimitService
from app.services.operations.readiness import Readiness
from app.settings import BatchSettings, LimitSettings
from app.wiring.engine_metrics import Metrics
from tests.support.overviews import overview, queue, residency
from tests.support.samples import AT, Samples, samples
from tests.support.serving import NoEngine

NAMES = 10_000


class Everything:
    """All parts that record metrics, without the slow ones around them."""

    def __init__(self, folder: Path) -> None:
        self.engine = NoEngine()
        self.metrics = Metrics(self.engine, DiskCache(folder, LocalStore(folder / "blobs"), 2**20))
        database = Database(f"sqlite+aiosqlite:///{folder}/none.db")
        self.limits = LimitService(lambda _: TokenBound(0, 0), MemoryAccounts(database), PriceService(database))
        self._frame = RequestMiddleware(_refusing, LimitSettings(), BatchSettings())

    async def see(self, name: str, number: int) -> None:
        """Record events with this name or number as method, path, header, tenant, key, adapter and version."""
        state = {"gateway": SimpleNamespace(metrics=self.metrics, readiness=Readiness({}))}
        headers = [(b"x-request-id", name.encode()), (b"traceparent", name.encode())]
        await self._frame(
            {"type": "http", "method": name, "path": f"/v1/{name}", "headers": headers, "state": state}, _nothing, _drop
        )
        key = VersionKey(number, "c" * 64, "d" * 64, 1, 1)
        self.engine.tell(EngineEvent("load", number, 1.0, LoadPhases(0.5, 0.25, 0.125, 0.0625)))
        self.metrics.used(UsageRecord(name, AT, number, name, number, 5, 4, 2, 0.25, 1.0, None, name, 200))
        caller = Caller(name, number, name, frozenset(), name, limits=Limits(requests_per_minute=0))
        with pytest.raises(LimitExceeded):
            await self.limits.admit(caller, EngineRequest(name, Endpoint.CHAT, {}, name, key, name, tenant=name))

    async def series(self) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        found: Samples = await samples(self.metrics)
        return set(found) | {
            ("tenora_limit_refusals_total", frozenset({("limit", one)})) for one in self.limits.refused
        }


async def _refusing(scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(scope["path"], NotFound(f"there is no {scope['path']}"))(scope, receive, send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _drop(_: Message) -> None:
    pass


async def test_ten_thousand_names_add_no_series(tmp_path: Path) -> None:
    everything = Everything(tmp_path)
    names = [f"made-up-{number}" for number in range(NAMES)]
    everything.engine.shown = overview(residency(1), tenants=(queue("one"),))
    await everything.see("first", 1)
    before = await everything.series()
    for number, name in enumerate(names):
        await everything.see(name, number)
    everything.engine.shown = overview(
        *(residency(number) for number in range(NAMES)), tenants=tuple(queue(name) for name in names)
    )
    assert await everything.series() == before
    found = await samples(everything.metrics)
    assert found["tenora_errors_total", frozenset({("code", "not_found")})] == NAMES + 1
    assert not any(name.startswith("tenora_http_request") for name, labels in found if labels)
    assert everything.limits.refused["requests_per_minute"] == NAMES + 1
