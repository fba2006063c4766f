"""Time faults: the server's clock is set, and a newer release migrates its registry."""

import asyncio
import random
import shutil
import time
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine, make_url

from app.database.migrate import alembic_config, head_revision
from tests.support.faults.load import OK, Load
from tests.support.faults.report import Measured
from tests.support.faults.site import Site

HOUR_S = 3600
#: Possible migration of the next release: a table lock held for seconds, a column, a table.
NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "next", "{head}", None, None


def upgrade() -> None:
    op.add_column("versions", sa.Column("next_release", sa.Text))
    op.create_table("next_release", sa.Column("id", sa.Integer, primary_key=True))
    op.execute("SELECT pg_sleep({seconds})")


def downgrade() -> None:
    op.drop_table("next_release")
    op.drop_column("versions", "next_release")
"""


async def test_clock_jumped(site: Site, chance: random.Random, seed: int) -> None:
    async with Load(site.host.url, site.units) as load:
        began = time.monotonic()
        try:
            for offset_s in (HOUR_S, -HOUR_S):
                await asyncio.sleep(chance.uniform(0, 1))
                site.host.set_clock(offset_s)
                await load.settled(time.monotonic())
                assert await asyncio.to_thread(site.make_key) == OK
        finally:
            site.host.set_clock(0)
        recovery_s = await load.settled(began)
        results = load.seen(began)
    assert set(results) == {OK}, results
    site.check_promises(load.promises)
    Measured("clock jumped", results, recovery_s).write(seed)


@pytest.fixture
def next_release(site: Site, tmp_path: Path, chance: random.Random) -> "Release":
    shutil.copytree(Path(alembic_config().get_main_option("script_location") or ""), tmp_path / "migrations")
    text = NEXT.format(head=head_revision(), seconds=chance.uniform(1, 2))
    (tmp_path / "migrations" / "versions" / "next.py").write_text(text)
    return Release(site, tmp_path / "migrations")


class Release:
    """Another release's migrations on the site's registry."""

    def __init__(self, site: Site, scripts: Path) -> None:
        self._engine = create_engine(make_url(site.postgres.url).set(database="tenora"))
        self._scripts = scripts

    def migrate(self, *, up: bool) -> None:
        config = alembic_config()
        config.set_main_option("script_location", str(self._scripts))
        with self._engine.begin() as connection:
            config.attributes["connection"] = connection
            if up:
                command.upgrade(config, "head")
            else:
                command.downgrade(config, "-1")
        self._engine.dispose()


async def test_migration_while_serving(site: Site, chance: random.Random, seed: int, next_release: Release) -> None:
    async with Load(site.host.url, site.units) as load:
        await asyncio.sleep(chance.uniform(0, 1))
        began = time.monotonic()
        await asyncio.to_thread(next_release.migrate, up=True)
        recovery_s = await load.settled(time.monotonic())
        assert await asyncio.to_thread(site.make_key) == OK
        await asyncio.sleep(1.1)  # the readiness check may be cached for a second
        assert await asyncio.to_thread(site.host.server.is_ready), (
            "this release's servers serve until they are replaced"
        )
        await asyncio.to_thread(next_release.migrate, up=False)
        recovery_s = max(recovery_s, await load.settled(time.monotonic()))
        results = load.seen(began)
    assert set(results) == {OK}, results
    site.check_promises(load.promises)
    Measured("migration while serving", results, recovery_s).write(seed)
