"""Errors of the adapter layer.

The tree::

    AdapterError
    ├── InvalidName         a name that a person wrote does not fit the grammar
    ├── AdapterRejected     an upload that this base cannot serve; carries one reason for each kind
    ├── UnsupportedBase     the base model's config.json is not one that adapters can be checked against
    ├── ValidationFailed    the validator itself was stopped (time, memory); says nothing about the upload
    └── StorageError
        ├── BlobNotFound    no such digest in the store
        ├── DigestMismatch  bytes that are not what their digest says
        ├── StoreUnavailable  the store did not answer, or refused
        ├── ForeignStore    the store belongs to another registry, or may do so
        └── DiskFull        this node's disk or cache budget has no room
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from adapters.wording import sentence_of


@dataclass(frozen=True, slots=True)
class Reason:
    """One kind of reason why an upload cannot be served.

    Attributes:
        code: stable machine word, e.g. ``rank_too_large``.
        field: where it was found first: a config key, a tensor's name, or a file's name.
        found: the value found there, shortened for display.
        allowed: what would have been accepted there.
        sentence: for people, where the code's own sentence does not say enough.
        count: how many places it was found in.
        examples: up to three of the places, this one first, if there are several; of one field's values up to three.
    """

    code: str
    field: str
    found: str
    allowed: str
    sentence: str = ""
    count: int = 1
    examples: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """What happened, then what to do."""
        own = self.sentence or sentence_of(self.code, field=self.field, found=self.found, allowed=self.allowed)
        if self.count == 1:
            return own
        others = " and ".join(self.examples[1:])
        return f"{own} The same holds for {self.count - 1} more" + (f", such as {others}." if others else ".")

    def shown(self) -> dict[str, Any]:
        """What callers see of it."""
        return {
            "code": self.code,
            "field": self.field,
            "found": self.found,
            "allowed": self.allowed,
            "message": self.message,
            "count": self.count,
            "examples": list(self.examples),
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """A reason out of JSON that ``dataclasses.asdict`` of one became; of an older release too."""
        return cls(**{**stored, "examples": tuple(stored.get("examples", ()))})


#: Reasons about one place each, of which a short list exists: these are grouped by their field.
_OF_ONE_FIELD = frozenset(
    {
        "digest_mismatch",
        "duplicate_part",
        "invalid_value",
        "member_too_large",
        "missing_member",
        "missing_part",
        "unexpected_part",
        "unsupported_feature",
    }
)

_MAX_EXAMPLES = 3

#: They make most of the others: an adapter of another base misfits in many places.
_FIRST = ("not_peft_config", "other_architecture", "wrong_base", "unsupported_init")


def grouped(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """One reason for each kind, with its count and three examples; what explains the others comes first."""
    kinds: dict[tuple[str, str, str], list[Reason]] = {}
    for reason in reasons:
        # Of `rank_pattern['q_proj']` the key counts.
        field = reason.field.partition("[")[0] if reason.code in _OF_ONE_FIELD else ""
        kinds.setdefault((reason.code, reason.sentence, field), []).append(reason)
    joined = [_joined(same) for same in kinds.values()]
    return tuple(sorted(joined, key=lambda one: _FIRST.index(one.code) if one.code in _FIRST else len(_FIRST)))


def _joined(same: list[Reason]) -> Reason:
    if len(same) == 1:
        return same[0]
    # Several values of one field, such as target_modules, are told apart by the values.
    places = dict.fromkeys(reason.field for reason in same)
    examples = places if len(places) > 1 else dict.fromkeys(reason.found for reason in same)
    return replace(same[0], count=len(same), examples=tuple(examples)[:_MAX_EXAMPLES])


class AdapterError(Exception):
    """Base of all errors of this package."""


class InvalidName(AdapterError):
    """A name does not fit the grammar.

    Attributes:
        field: which name, e.g. ``adapter``.
        found: what was given, shortened.
        allowed: the grammar, in words.
    """

    def __init__(self, field: str, found: str, allowed: str) -> None:
        self.field, self.found, self.allowed = field, found, allowed
        super().__init__(f"{field}: found {found!r}, allowed {allowed}")


class AdapterRejected(AdapterError):
    """The upload cannot be served on this base.

    Attributes:
        reasons: one for each kind, at least one; the first says most.
        unread: whether a part of the upload was not read any more.
    """

    def __init__(self, reasons: tuple[Reason, ...], *, unread: bool = False) -> None:
        self.reasons, self.unread = reasons, unread
        super().__init__(" ".join(reason.message for reason in reasons))


class UnsupportedBase(AdapterError, ValueError):
    """The base model's ``config.json`` is not that of a Llama, or lacks what adapters are checked against.

    Attributes:
        field: the key of ``config.json``.
        found: its value, shortened.
        allowed: what would have been accepted.
    """

    def __init__(self, field: str, found: object, allowed: str) -> None:
        self.field, self.found, self.allowed = field, repr(found)[:80], allowed
        super().__init__(f"base model's config.json, {field}: found {self.found}, allowed {allowed}")


class ValidationFailed(AdapterError):
    """The validator was stopped before it reached a verdict."""


class StorageError(AdapterError):
    """Base of everything that can go wrong with blobs and the disk cache.

    Attributes:
        retry_after: whole seconds after which the same call may succeed, where that is known.
        reason: why, in words for an operator; never for clients.
    """

    def __init__(self, message: str, *, retry_after: int | None = None, reason: str = "") -> None:
        self.retry_after, self.reason = retry_after, reason
        super().__init__(message)


class BlobNotFound(StorageError):
    """The store holds no blob under this digest."""


class DigestMismatch(StorageError):
    """The bytes read are not those that the digest names."""


class StoreUnavailable(StorageError):
    """The store did not answer, or refused the operation."""


class ForeignStore(StorageError):
    """The store is not known to be this registry's: nothing in it may be served or removed."""


class DiskFull(StorageError):
    """No room on this node's disk, or in the cache's budget once leased versions are counted."""
