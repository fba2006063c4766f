"""State machine test of the disk cache on a real folder."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from adapters.cache import DiskCache, Lease
from adapters.errors import DigestMismatch, DiskFull
from adapters.identity import VersionKey
from tests.support.watched_store import TAMPERINGS, Clock, WatchedStore, is_intact, kept, settle


class CacheMachine(RuleBasedStateMachine):
    """Random sequences of leases, drops, tampering and restarts on a real folder."""

    SIZES = (400, 800, 1200, 2000)
    BUDGET = 3000

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.store = WatchedStore(self.folder / "store")
        self.keys = [self.store.publish(number, size) for number, size in enumerate(self.SIZES, start=1)]
        self.leases: list[tuple[VersionKey, Lease]] = []
        self.tampered = False
        self.open()

    def open(self) -> None:
        self.clock = Clock()
        self.cache = DiskCache(self.folder / "cache", self.store, self.BUDGET, monotonic=self.clock, fetches=2)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def settled() -> Any:
            try:
                return await work
            finally:
                await settle()

        return self.runner.run(settled())

    @rule(
        numbers=st.lists(st.integers(0, 3), min_size=1, max_size=4),
        shares=st.lists(st.sampled_from(["a", "b", None]), min_size=4, max_size=4),
        wrong=st.none() | st.integers(0, 3),
    )
    def lease(self, numbers: list[int], shares: list[str | None], wrong: int | None) -> None:
        self.store.wrong = {self.keys[wrong].weights_digest} if wrong is not None else set()
        # All failed versions may be tried again.
        self.clock.now += 60

        async def together() -> list[Any]:
            return await asyncio.gather(
                *(
                    self.cache.lease(self.keys[number], share=share)
                    for number, share in zip(numbers, shares, strict=False)
                ),
                return_exceptions=True,
            )

        for number, result in zip(numbers, self.do(together()), strict=True):
            if isinstance(result, DigestMismatch):
                assert number == wrong
            elif isinstance(result, BaseException):
                assert isinstance(result, DiskFull), result
            else:
                self.leases.append((self.keys[number], result))

    # The drawn value must not depend on which of several leases found room, because fetches end in any order.
    @rule(number=st.integers(0, 99))
    def release(self, number: int) -> None:
        if not self.leases:
            return
        _, lease = self.leases.pop(number % len(self.leases))

        async def release() -> None:
            lease.release()

        self.do(release())

    @rule(number=st.integers(0, 3))
    def drop(self, number: int) -> None:
        self.do(self.cache.drop(self.keys[number]))

    @rule(tampered=st.none() | st.integers(0, 3), how=st.sampled_from(sorted(TAMPERINGS)))
    def restart(self, tampered: int | None, how: str) -> None:
        self.leases.clear()
        key = self.keys[tampered or 0]
        path = self.folder / "cache" / key.digest
        if tampered is not None and path.exists() and is_intact(path, key):
            TAMPERINGS[how](path)
            self.tampered = True
        self.open()

    @invariant()
    def leased_versions_are_whole(self) -> None:
        for key, lease in self.leases:
            assert is_intact(lease.path, key)

    @invariant()
    def the_disk_holds_what_the_cache_says_within_its_budget(self) -> None:
        root = self.folder / "cache"
        on_disk = sum(
            sum(file.lstat().st_size for file in (root / name).iterdir())
            for name in kept(root)
            if (root / name).is_dir()
        )
        assert on_disk == self.cache.used_bytes
        # Tampering may have enlarged a file; the next fetch restores the budget.
        assert on_disk <= self.BUDGET or (self.tampered and not self.cache.misses)
        assert {key.digest for key, _ in self.leases} <= kept(root)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()
            shutil.rmtree(self.folder)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
