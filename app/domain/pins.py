"""Pins and preloads, as frozen data."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from adapters.identity import VersionKey


@dataclass(frozen=True, slots=True)
class Pin:
    """A version that keeps its slot permanently.

    Attributes:
        created_by: id of the key that pinned it.
        held: True if this server's engine holds it already.
    """

    key: VersionKey
    tenant: str
    adapter: str
    number: int
    created_at: datetime
    created_by: str
    held: bool = False


@dataclass(frozen=True, slots=True)
class Preload:
    """One entry of the setting ``TENORA_PRELOAD``.

    Attributes:
        name: ``tenant/adapter``, with ``:alias`` or ``@number``.
        versions: versions to which the name resolved when the server started, as ``tenant/adapter@number``.
        problem: reason why it was not loaded; None if it was.
    """

    name: str
    versions: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Pins and preloads of this server's engine.

    Attributes:
        slots: number of slots of the engine; at least one is never pinned.
    """

    slots: int
    pins: Sequence[Pin]
    preloads: Sequence[Preload]
