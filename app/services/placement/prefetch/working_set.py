"""Working set: the most recently used versions, kept across restarts in ``HOME/working-set.json``.

The file holds ids and digests, no names.
"""

import json
import logging
import uuid
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from adapters.identity import VersionKey
from adapters.stores.base import is_digest
from adapters.stores.files import disk_errors, new_file
from adapters.strict_json import parse_object

logger = logging.getLogger(__name__)

MOST = 1000
#: Size limit of the file in bytes. 1,000 entries take about 100 bytes each.
_MOST_BYTES = 2**18
_MOST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Used:
    """One version of the working set.

    Attributes:
        id: id of its row.
        digest: SHA-256 (hex). It shows whether the row still describes the same version.
    """

    id: int
    digest: str


class WorkingSet:
    """LRU list of the versions that requests named, fair to tenants.

    Beyond ``most`` entries the least recently used one is evicted. If the requesting tenant has more than its equal
    share, its own oldest entry goes, else the oldest of all. So a tenant with any number of adapters cannot displace
    the entries of others.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        #: Both are in LRU order, least recently used first.
        self._keys: OrderedDict[int, tuple[VersionKey, str]] = OrderedDict()
        self._tenants: dict[str, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def ids(self) -> tuple[int, ...]:
        """Version ids, most recently used first."""
        return tuple(reversed(self._keys))

    @property
    def used(self) -> tuple[Used, ...]:
        """Ids and digests, most recently used first."""
        return tuple(Used(version_id, self._keys[version_id][0].digest) for version_id in self.ids)

    def seen(self, key: VersionKey, tenant: str) -> None:
        """Record that a request of the tenant named this version."""
        version_id = key.version_id
        if version_id in self._keys:
            self._drop(version_id)
        self._keys[version_id] = key, tenant
        own = self._tenants.setdefault(tenant, OrderedDict())
        own[version_id] = None
        if len(self._keys) > self._most:
            above_share = len(own) > 1 and len(own) * len(self._tenants) > self._most
            self._drop(next(iter(own if above_share else self._keys)))

    def forget(self, version_ids: Collection[int]) -> bool:
        """Remove deleted versions. Return whether any of them was present."""
        present = [version_id for version_id in version_ids if version_id in self._keys]
        for version_id in present:
            self._drop(version_id)
        return bool(present)

    def _drop(self, version_id: int) -> None:
        _, tenant = self._keys.pop(version_id)
        own = self._tenants[tenant]
        del own[version_id]
        if not own:
            del self._tenants[tenant]


class WorkingSetFile:
    """The file ``working-set.json``, replaced atomically and validated when read. All methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[Used, ...]:
        """Read the last content. Log a warning and return nothing if the file is unreadable or malformed."""
        try:
            return _parsed(self._content()) if self._path.exists() else ()
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("The working set of the last run is ignored: %s", error)
            return ()

    def write(self, used: Sequence[Used]) -> None:
        """Replace the file.

        Raises:
            DiskFull, StoreUnavailable: the file keeps its old content.
        """
        temporary = self._path.with_name(f".{self._path.name}-{uuid.uuid4().hex}")
        content = json.dumps({"versions": [asdict(version) for version in used]}).encode()
        with disk_errors("keep the working set"):
            try:
                with new_file(temporary) as file:
                    file.write(content)
                temporary.replace(self._path)
            finally:
                temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the file.

        Raises:
            StoreUnavailable
        """
        with disk_errors("remove the working set"):
            self._path.unlink(missing_ok=True)

    def _content(self) -> bytes:
        if not self._path.is_file():
            raise ValueError("The path is not a regular file.")
        with self._path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"The file has more than {_MOST_BYTES} bytes.")
        return content


def _parsed(content: bytes) -> tuple[Used, ...]:
    match parse_object(content):
        case {"versions": list(versions)} if len(versions) <= MOST:
            return tuple(map(_used, versions))
    raise ValueError(f"versions must be a list of at most {MOST} entries.")


def _used(entry: object) -> Used:
    match entry:
        # ``bool`` is a subclass of ``int``.
        case {"id": int(version_id), "digest": str(digest)} if type(version_id) is int and is_digest(digest):
            if 0 < version_id <= _MOST_ID:
                return Used(version_id, digest)
    raise ValueError("versions must be a list of objects with an id and a digest.")
