"""Deletions as frozen data, and their rules without I/O: pending confirmations and claims on blobs.

A deletion runs through these steps. Each is committed before the next begins, so a restart resumes at the last one::

    requested     the versions are tombstones (state ``deleted``): no name resolves to them, no listing shows them
    each node     drops the versions from its engine and from its disk (``NodeFate``)
    one node      claims the blobs, deletes the unreferenced ones and verifies that they are gone (``BlobFate``)
    finished
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from adapters.identity import VersionKey

#: Seconds since the last heartbeat within which a node is alive; a deletion waits for nodes that are alive.
ALIVE_S = 30.0
#: Seconds since the last heartbeat after which a node is dropped from reports; its HOME is assumed to be gone.
FORGOTTEN_S = 7 * 24 * 3600.0
#: TTL in seconds of a claim on a blob. A claim blocks publishers of the same bytes and takeover by other nodes.
CLAIM_S = 180.0
#: Seconds of a claim in which a blob may be deleted. The rest of the TTL exceeds the timeout of a store.
CLAIM_USE_S = 60.0


@dataclass(frozen=True, slots=True)
class Node:
    """One server, identified by its HOME.

    Attributes:
        clock_offset_s: the node's clock minus the database's clock, in seconds; None if unknown, as with SQLite.
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
    """A version to remove.

    Attributes:
        key: identity with the files that the engine read.
        name: name with number, e.g. ``pricing@3``.
        shared: True if a node kept its disk copy, because another version has the same two files.
        uploaded: identity with the uploaded files; None if the engine read these.
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
        """Keys of all its files; the uploaded files, which identify the version, come last."""
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
        # Rows of earlier releases lack this key.
        uploaded = raw.get("uploaded")
        return cls(VersionKey(**fields), raw["name"], raw["shared"], VersionKey(**uploaded) if uploaded else None)


@dataclass(frozen=True, slots=True)
class BlobFate:
    """Outcome of one blob.

    Attributes:
        claimed_at, claimed_by: time and node of the claim.
        gone_at: time at which the store confirmed that the blob is gone.
        kept: reason for keeping the blob.
    """

    claimed_at: datetime | None = None
    claimed_by: str | None = None
    gone_at: datetime | None = None
    kept: str | None = None

    @property
    def decided(self) -> bool:
        return self.gone_at is not None or self.kept is not None

    def claimed(self, now: datetime) -> bool:
        """Return whether the claim is still valid, so that a node may be deleting the bytes."""
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
    """Confirmations of one node; None where a confirmation is pending."""

    node: str
    engine_gone_at: datetime | None = None
    disk_gone_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Deletion:
    """A request to delete and its progress: the deletion report.

    Attributes:
        tenant: slug of the owner; empty for a removal by ``tenora server gc``.
        subject: ``pricing``, ``pricing@3``, ``gc``, or the id of a file, an upload or a batch.
        nodes: node id -> fate, for nodes that confirmed something or were missed.
        blobs: digest (SHA-256, hex) -> fate; for versions, empty until every node that is alive has confirmed.
        file_id: file that was deleted, if any.
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
    file_id: str | None = None

    @property
    def on_nodes(self) -> bool:
        """True if nodes can hold copies, so that each of them has to confirm."""
        return bool(self.versions) or self.file_id is not None

    @property
    def version_ids(self) -> frozenset[int]:
        return frozenset(version.key.version_id for version in self.versions)

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of all blobs to decide about, sorted."""
        keys = [key for version in self.versions for key in version.keys]
        own = {digest for key in keys for digest in (key.config_digest, key.weights_digest)}
        return tuple(sorted(own | set(self.blobs)))

    @property
    def blobs_decided(self) -> bool:
        return all((fate := self.blobs.get(digest)) is not None and fate.decided for digest in self.digests)


def confirmed(deletion: Deletion, node: str) -> bool:
    """Return whether this node has removed the versions, or the file, from its engine and from its disk."""
    fate = deletion.nodes.get(node)
    return fate is not None and fate.engine_gone_at is not None and fate.disk_gone_at is not None


def awaited(deletion: Deletion, nodes: Iterable[Node], now: datetime) -> list[str]:
    """Return the ids of the nodes that the deletion waits for.

    A deletion of blobs alone needs no confirmation, since no node holds any.
    """
    if not deletion.on_nodes:
        return []
    return [node.id for node in nodes if node.alive(now) and not confirmed(deletion, node.id)]


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node in a deletion report.

    Attributes:
        name: name of the machine; None for a forgotten node.
        reachable: True if the node has confirmed or is alive; otherwise the state of its disk is unknown.
    """

    node: str
    name: str | None
    reachable: bool
    engine_gone_at: datetime | None
    disk_gone_at: datetime | None


def node_views(deletion: Deletion, nodes: Iterable[Node], now: datetime) -> list[NodeView]:
    """Return every node that the deletion concerns, by id; after the end, the nodes recorded by then."""
    if not deletion.on_nodes:
        return []
    nodes_by_id = {node.id: node for node in nodes}
    concerned = set(deletion.nodes)
    if deletion.finished_at is None:
        concerned |= {node.id for node in nodes_by_id.values() if not node.forgotten(now)}
    views = []
    for identity in sorted(concerned):
        node, fate = nodes_by_id.get(identity), deletion.nodes.get(identity, NodeFate(identity))
        alive = node is not None and node.alive(now)
        name = node.name if node else None
        reachable = confirmed(deletion, identity) or alive
        views.append(NodeView(identity, name, reachable, fate.engine_gone_at, fate.disk_gone_at))
    return views


def claim(deletion: Deletion, node: str, now: datetime, *, most: int) -> dict[str, BlobFate] | None:
    """Claim up to ``most`` undecided blobs for this node.

    A claim of the same node is taken over at once: its process is dead, or it is this process.

    Returns:
        The fates of all blobs, or None while another node holds a claim.
    """
    fates = {digest: deletion.blobs.get(digest, BlobFate()) for digest in deletion.digests}
    if any(fate.claimed(now) and fate.claimed_by != node for fate in fates.values()):
        return None
    undecided = [digest for digest, fate in fates.items() if not fate.decided][:most]
    mine = {digest: BlobFate(claimed_at=now, claimed_by=node) for digest in undecided}
    return {digest: replace(fate, claimed_at=None, claimed_by=None) for digest, fate in fates.items()} | mine


def claimed_by_others(blobs: Sequence[Mapping[str, BlobFate]], digests: Collection[str], now: datetime) -> bool:
    """Return whether one of these blobs has a valid claim, so that a node may be deleting it.

    Args:
        blobs: fates of the blobs of each unfinished deletion.
        digests: blobs to look up (SHA-256, hex).
    """
    return any(fate.claimed(now) for fates in blobs for digest, fate in fates.items() if digest in digests)
