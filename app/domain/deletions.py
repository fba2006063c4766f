"""What a deletion is, as plain frozen data, and the rules that need no I/O: who must still confirm, who may delete.

A deletion goes through these steps, each of them committed before the next, so that whoever starts again goes on
where it stopped::

    requested     the versions' state is ``deleted``: no name leads to them, no listing shows them
    each node     its engine holds them no more, its disk holds them no more (``NodeFate``)
    one node      claims the blobs, deletes those that nobody else uses, sees that they are gone (``BlobFate``)
    finished
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from adapters.identity import VersionKey

#: A node that was seen in this many seconds is alive: a deletion waits for it.
ALIVE_S = 30.0
#: A node that was not seen for this long is not spoken of any more; its HOME is taken to be gone.
FORGOTTEN_S = 7 * 24 * 3600.0
#: How long a claim on a blob keeps publishers of the same bytes waiting, and other nodes from taking over.
CLAIM_S = 180.0
#: A deletion of bytes is begun in this part of the claim only; what is left is longer than a store takes to give up.
CLAIM_USE_S = 60.0


@dataclass(frozen=True, slots=True)
class Node:
    """One server, by its HOME.

    Attributes:
        clock_offset_s: its clock minus the database's, in seconds; None: not known, as with SQLite.
    """

    id: str
    name: str
    started_at: datetime
    seen_at: datetime
    clock_offset_s: float | None = None

    def alive(self, now: datetime) -> bool:
        return now - self.seen_at < timedelta(seconds=ALIVE_S)

    def forgotten(self, now: datetime) -> bool:
        return now - self.seen_at > timedelta(seconds=FORGOTTEN_S)


@dataclass(frozen=True, slots=True)
class DeletedVersion:
    """A version that is to be gone.

    Attributes:
        key: with the files that the engine read.
        name: ``pricing@3``.
        shared: whether a node kept its disk copy, because another version has the same two files.
        uploaded: with the uploaded files, if the engine read others.
    """

    key: VersionKey
    name: str
    shared: bool = False
    uploaded: VersionKey | None = None

    @classmethod
    def of(cls, key: VersionKey, uploaded: VersionKey, name: str) -> "DeletedVersion":
        return cls(key, name, uploaded=None if uploaded == key else uploaded)

    @property
    def keys(self) -> tuple[VersionKey, ...]:
        """Of everything that it has; the uploaded files, by which it is known, come last."""
        return (self.key,) if self.uploaded is None else (self.key, self.uploaded)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the uploaded files."""
        return self.keys[-1].digest

    def as_json(self) -> dict[str, Any]:
        uploaded = None if self.uploaded is None else asdict(self.uploaded)
        return {**asdict(self.key), "name": self.name, "shared": self.shared, "uploaded": uploaded}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "DeletedVersion":
        fields = {name: raw[name] for name in VersionKey.__dataclass_fields__}
        # A release before this one wrote no such key.
        uploaded = raw.get("uploaded")
        return cls(VersionKey(**fields), raw["name"], raw["shared"], VersionKey(**uploaded) if uploaded else None)


@dataclass(frozen=True, slots=True)
class BlobFate:
    """What became of one blob.

    Attributes:
        claimed_at, claimed_by: when which node set out to decide and delete.
        gone_at: when the store said that it has it no more.
        kept: why it stays.
    """

    claimed_at: datetime | None = None
    claimed_by: str | None = None
    gone_at: datetime | None = None
    kept: str | None = None

    @property
    def decided(self) -> bool:
        return self.gone_at is not None or self.kept is not None

    def claimed(self, now: datetime) -> bool:
        """Whether somebody may be deleting the bytes right now."""
        fresh = self.claimed_at is not None and now - self.claimed_at < timedelta(seconds=CLAIM_S)
        return fresh and not self.decided

    def as_json(self) -> dict[str, Any]:
        return {
            name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "BlobFate":
        at = {name: datetime.fromisoformat(raw[name]) if raw[name] else None for name in ("claimed_at", "gone_at")}
        return cls(claimed_by=raw["claimed_by"], kept=raw["kept"], **at)


@dataclass(frozen=True, slots=True)
class NodeFate:
    """What one node says; None: not yet."""

    node: str
    engine_gone_at: datetime | None = None
    disk_gone_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Deletion:
    """One request to delete, and how far it is: the deletion report.

    Attributes:
        tenant: the owner's slug; empty for what ``tenora gc`` removes.
        subject: ``pricing``, ``pricing@3`` or ``gc``.
        nodes: by node id, those that have said something or were missed.
        blobs: by digest (SHA-256, hex); empty until every node that is alive has confirmed.
    """

    id: str
    tenant: str
    subject: str
    versions: tuple[DeletedVersion, ...]
    requested_at: datetime
    requested_by: str
    forced: bool
    nodes: Mapping[str, NodeFate]
    blobs: Mapping[str, BlobFate]
    finished_at: datetime | None

    @property
    def version_ids(self) -> frozenset[int]:
        return frozenset(version.key.version_id for version in self.versions)

    @property
    def digests(self) -> tuple[str, ...]:
        """The blobs to decide about, sorted."""
        keys = [key for version in self.versions for key in version.keys]
        own = {digest for key in keys for digest in (key.config_digest, key.weights_digest)}
        return tuple(sorted(own | set(self.blobs)))

    @property
    def blobs_decided(self) -> bool:
        return all((fate := self.blobs.get(digest)) is not None and fate.decided for digest in self.digests)


def confirmed(deletion: Deletion, node: str) -> bool:
    """Whether this node has nothing of the versions any more."""
    fate = deletion.nodes.get(node)
    return fate is not None and fate.engine_gone_at is not None and fate.disk_gone_at is not None


def awaited(deletion: Deletion, nodes: Iterable[Node], now: datetime) -> list[str]:
    """Ids of the nodes that the deletion waits for. What never held versions has nothing to confirm."""
    if not deletion.versions:
        return []
    return [node.id for node in nodes if node.alive(now) and not confirmed(deletion, node.id)]


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a report says of one node.

    Attributes:
        name: the machine's; None for a node that is forgotten.
        reachable: whether it has confirmed, or can be asked; else nothing is known of its disk.
    """

    node: str
    name: str | None
    reachable: bool
    engine_gone_at: datetime | None
    disk_gone_at: datetime | None


def node_views(deletion: Deletion, nodes: Iterable[Node], now: datetime) -> list[NodeView]:
    """Every node that the deletion concerns, by id: after its end those that were there then."""
    if not deletion.versions:
        return []
    known = {node.id: node for node in nodes}
    concerned = set(deletion.nodes)
    if deletion.finished_at is None:
        concerned |= {node.id for node in known.values() if not node.forgotten(now)}
    views = []
    for identity in sorted(concerned):
        node, fate = known.get(identity), deletion.nodes.get(identity, NodeFate(identity))
        alive = node is not None and node.alive(now)
        name = node.name if node else None
        reachable = confirmed(deletion, identity) or alive
        views.append(NodeView(identity, name, reachable, fate.engine_gone_at, fate.disk_gone_at))
    return views


def claim(deletion: Deletion, node: str, now: datetime, *, most: int) -> dict[str, BlobFate] | None:
    """The blobs' fates with up to ``most`` undecided ones claimed for this node; None while another one works.

    A claim of this very node is taken over at once: the process that made it is dead, or it is this one.
    """
    fates = {digest: deletion.blobs.get(digest, BlobFate()) for digest in deletion.digests}
    if any(fate.claimed(now) and fate.claimed_by != node for fate in fates.values()):
        return None
    undecided = [digest for digest, fate in fates.items() if not fate.decided][:most]
    mine = {digest: BlobFate(claimed_at=now, claimed_by=node) for digest in undecided}
    return {digest: replace(fate, claimed_at=None, claimed_by=None) for digest, fate in fates.items()} | mine


def claimed_by_others(blobs: Sequence[Mapping[str, BlobFate]], digests: Collection[str], now: datetime) -> bool:
    """Whether somebody may be deleting one of these blobs right now."""
    return any(fate.claimed(now) for fates in blobs for digest, fate in fates.items() if digest in digests)
