"""Versions that are pinned into the engine or loaded at its start, as plain frozen data."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from adapters.identity import VersionKey


@dataclass(frozen=True, slots=True)
class Pin:
    """A version that keeps a slot of its own.

    Attributes:
        created_by: id of the key that pinned it.
        held: whether this server's engine keeps it already.
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
        versions: what it meant when the server started, as ``tenant/adapter@number``.
        problem: why it was not loaded; None if it was.
    """

    name: str
    versions: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """What has been placed in this server's engine.

    Attributes:
        slots: of the engine; one at least is never pinned.
    """

    slots: int
    pins: Sequence[Pin]
    preloads: Sequence[Preload]
