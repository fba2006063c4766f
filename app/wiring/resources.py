"""Resources that both halves of a server use: settings, base, registry and blob store."""

from app.database.session import Database
from app.database.urls import database_url
from app.served_base import open_base
from app.services.catalog.adapters import AdapterService
from app.services.files.contents import FileContents
from app.services.operations.store_owner import StoreOwner
from app.services.publishing.blobs import BlobService
from app.settings import Settings
from app.support.home import secure_home
from app.wiring.node import node_id
from app.wiring.store import configured_store


class Resources:
    """Resources of one process, opened once.

    The constructor blocks: it reads and creates files in HOME, but connects to nothing.

    Attributes:
        node_id: id of this process's HOME, see :mod:`app.wiring.node`.

    Raises:
        app.served_base.BaseNotFound
        adapters.errors.AdapterError: the base, the store's URL or HOME's disk is not usable.
        ValueError: the registry does not support the database's URL.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        secure_home(settings.home)
        self.base = open_base(settings)
        self.database = Database(database_url(settings))
        self.store = configured_store(settings)
        self.node_id = node_id(settings.home)
        self.store_owner = StoreOwner(self.database, self.store)
        self.blobs = BlobService(self.database, self.store, self.node_id)
        self.contents = FileContents(
            self.database,
            self.store,
            self.blobs,
            settings.home / "files",
            most_bytes=settings.batch.local_bytes,
        )
        self.adapters = AdapterService(
            self.database,
            base_name=self.base.name,
            base_digest=self.base.digest,
            lora_head=settings.engine.lora_head,
        )
