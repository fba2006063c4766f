"""Nodes that run deletions, on both databases.

Each node has a fake engine without inference and a separate disk.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from adapters.cache import DiskCache
from adapters.stores.base import BlobStore
from app.database.session import Database
from app.domain.adapters import Version
from app.domain.deletions import Deletion, NodeView
from app.services.common.in_flight import InFlightLookups
from app.services.deletion.deletions import DeletionService
from app.services.deletion.worker import DeletionWorker
from app.services.files.contents import FileContents
from app.services.operations.nodes import NodeService
from app.services.operations.store_owner import StoreOwner
from app.services.publishing.blobs import BlobService
from tests.support.registry import Node, SettableClock
from tests.support.serving import NoEngine

FIRST, SECOND = "1" * 32, "2" * 32


@dataclass
class Place:
    """Deletion services of one node. A new instance over the same ``home`` is the restarted node."""

    node: str
    home: Path
    database: Database
    store: BlobStore
    clock: SettableClock
    engine: NoEngine = field(default_factory=NoEngine)
    in_flight: InFlightLookups = field(default_factory=InFlightLookups)
    copies_bytes: int = 10**6
    finishes: bool = True

    def __post_init__(self) -> None:
        self.cache = DiskCache(self.home / "cache", self.store, 10**6)
        self.nodes = NodeService(self.database, self.node, f"host {self.node[0]}", clock=self.clock)
        self.blobs = BlobService(self.database, self.store, self.node, clock=self.clock)
        self.deletions = DeletionService(self.database, lambda: None, clock=self.clock)
        self.contents = FileContents(
            self.database, self.store, self.blobs, self.home / "files", most_bytes=self.copies_bytes, clock=self.clock
        )
        self.worker = DeletionWorker(
            self.database,
            self.engine,
            self.cache,
            self.blobs,
            self.in_flight,
            self.node,
            drop_file=self.contents.drop,
            finishes=self.finishes,
            clock=self.clock,
        )

    async def start(self) -> None:
        self.contents.start()
        await StoreOwner(self.database, self.store).ensure()
        await self.nodes.register()
        await self.worker.catch_up()

    async def serve(self, version: Version) -> None:
        """Load a version, as its first request does."""
        (await self.cache.lease(version.key)).release()
        await self.engine.preload(version.key)

    async def has(self, version: Version) -> tuple[bool, bool]:
        """Return whether engine and disk hold the version."""
        return await self.engine.holds(version.key.version_id), await self.cache.holds(version.key)

    async def report(self, deletion: Deletion) -> tuple[Deletion, dict[str, NodeView]]:
        found, views = await self.deletions.get(deletion.id, tenant=None)
        return found, {view.node: view for view in views}

    def restarted(self) -> "Place":
        """Return the same node after a process crash."""
        return Place(self.node, self.home, self.database, self.store, self.clock)


async def publish(
    registry: Node,
    store: BlobStore,
    folder: Path,
    content: str,
    *,
    adapter: str = "prices",
    normal: str | None = None,
) -> Version:
    """Publish a version of the tenant ``pricing`` with its bytes in the store."""
    for one in {content, normal or content}:
        put(store, folder, one)
    return await registry.publish("pricing", adapter, content, normal=normal)


def put(store: BlobStore, folder: Path, content: str) -> None:
    """Store the two files of ``tests.support.registry.new_version``."""
    folder.mkdir(exist_ok=True)
    for kind in ("config", "weights"):
        data = f"{kind} of {content}".encode()
        path = folder / sha256(data).hexdigest()
        path.write_bytes(data)
        store.put(path.name, path)
