"""Registry benchmark on an empty registry: its figures match their names."""

from pathlib import Path

import pytest

from app.database.migrate import upgrade
from app.lab.bench.registry import measure


async def test_each_step_is_timed_on_a_registry_of_the_asked_size(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'bench.db'}"
    upgrade(url)
    report = await measure(url, tenants=3, adapters_each=2, rounds=10)
    assert (report.tenants, report.adapters) == (3, 6)
    assert len(report.timings) == 4
    assert all(0 < timing.p50 <= timing.p99 for timing in report.timings)
    assert report.start_empty_ms > 0
    assert report.start_full_ms > 0
    with pytest.raises(ValueError, match=r"The database at database_url has 3 tenants\. Use an empty database"):
        await measure(url, tenants=3, adapters_each=2, rounds=10)
