"""The versions most used recently, kept over restarts in ``HOME/working-set.json``: ids and digests, no names."""

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
#: Larger than the file ever is: 1,000 entries of some 100 bytes.
_MOST_BYTES = 2**18
_MOST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Used:
    """One version: its row's id, and the digest (SHA-256, hex) that tells whether the row is still that of then."""

    id: int
    digest: str


class WorkingSet:
    """The last versions that requests named, in the order of their last use.

    Beyond ``most`` the oldest goes: of the tenant that asks, if that has more than its equal share, else of all. So
    one tenant with any number of adapters leaves the others' in.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        #: Both the least recently used first.
        self._keys: OrderedDict[int, tuple[VersionKey, str]] = OrderedDict()
        self._tenants: dict[str, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def ids(self) -> tuple[int, ...]:
        """The most recently used first."""
        return tuple(reversed(self._keys))

    @property
    def used(self) -> tuple[Used, ...]:
        """The same with digests."""
        return tuple(Used(version_id, self._keys[version_id][0].digest) for version_id in self.ids)

    def seen(self, key: VersionKey, tenant: str) -> None:
        """A request of the tenant named this version."""
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
        """Remove versions that are gone; whether one of them was here."""
        known = [version_id for version_id in version_ids if version_id in self._keys]
        for version_id in known:
            self._drop(version_id)
        return bool(known)

    def _drop(self, version_id: int) -> None:
        _, tenant = self._keys.pop(version_id)
        own = self._tenants[tenant]
        del own[version_id]
        if not own:
            del self._tenants[tenant]


class WorkingSetFile:
    """``working-set.json``: replaced whole, and believed only as far as it is well-formed. Everything blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[Used, ...]:
        """What was written last; nothing, and a warning, where the file cannot be read or is not ours."""
        try:
            return _parsed(self._content()) if self._path.exists() else ()
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("the working set of the last run is ignored: %s", error)
            return ()

    def write(self, used: Sequence[Used]) -> None:
        """Replace the file.

        Raises:
            DiskFull, StoreUnavailable: and it is as it was.
        """
        temporary = self._path.with_name(f".{self._path.name}-{uuid.uuid4().hex}")
        content = json.dumps({"versions": [asdict(one) for one in used]}).encode()
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
            raise ValueError("found no regular file")
        with self._path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"found more than {_MOST_BYTES} bytes")
        return content


def _parsed(content: bytes) -> tuple[Used, ...]:
    match parse_object(content):
        case {"versions": list(versions)} if len(versions) <= MOST:
            return tuple(map(_used, versions))
    raise ValueError(f"versions: allowed a list of at most {MOST}")


def _used(found: object) -> Used:
    match found:
        # True is an int too.
        case {"id": int(version_id), "digest": str(digest)} if type(version_id) is int and is_digest(digest):
            if 0 < version_id <= _MOST_ID:
                return Used(version_id, digest)
    raise ValueError("versions: allowed objects with an id and a digest")
