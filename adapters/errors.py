"""Errors of the adapter layer.

The tree::

    AdapterError
    ├── InvalidName         a user-supplied name does not match the grammar
    ├── AdapterRejected     an upload that this base cannot serve; carries one reason for each kind
    ├── UnsupportedBase     the base model's config.json cannot be used to check adapters
    ├── ValidationFailed    the validator was stopped (time, memory); says nothing about the upload
    └── StorageError
        ├── BlobNotFound    the store has no such digest
        ├── DigestMismatch  bytes whose SHA-256 differs from the digest
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
        code: stable machine-readable word, e.g. ``rank_too_large``.
        field: place where it was found first: a config key, a tensor's name, or a file's name.
        found: value found there, shortened for display.
        allowed: values that would have been accepted there.
        sentence: text for people; overrides the code's default sentence.
        count: number of places where it was found.
        examples: up to three of the places if there are several, this one first; for one field, up to three of its
            values.
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
        """Sentence for people: what happened, then what to do."""
        first = self.sentence or sentence_of(self.code, field=self.field, found=self.found, allowed=self.allowed)
        if self.count == 1:
            return first
        examples = " and ".join(self.examples[1:])
        return f"{first} The same holds for {self.count - 1} more" + (f", such as {examples}." if examples else ".")

    def shown(self) -> dict[str, Any]:
        """JSON representation for API callers."""
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
        """Parse a reason from the JSON form of ``dataclasses.asdict``, also from an older release."""
        return cls(**{**stored, "examples": tuple(stored.get("examples", ()))})


#: Reasons about a single place each, from a small fixed set of fields. They are grouped by field.
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

#: Root causes, listed before the rest: an adapter of another base misfits in many places.
_FIRST = ("not_peft_config", "other_architecture", "wrong_base", "unsupported_init")


def grouped(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Group reasons by kind, each with its count and up to three examples; root causes first."""
    kinds: dict[tuple[str, str, str], list[Reason]] = {}
    for reason in reasons:
        # For `rank_pattern['q_proj']`, group by the key `rank_pattern`.
        field = reason.field.partition("[")[0] if reason.code in _OF_ONE_FIELD else ""
        kinds.setdefault((reason.code, reason.sentence, field), []).append(reason)
    joined = [_joined(same) for same in kinds.values()]
    return tuple(sorted(joined, key=lambda kind: _FIRST.index(kind.code) if kind.code in _FIRST else len(_FIRST)))


def _joined(reasons: list[Reason]) -> Reason:
    if len(reasons) == 1:
        return reasons[0]
    # If all reasons have one field (such as target_modules), use the values as examples.
    places = dict.fromkeys(reason.field for reason in reasons)
    examples = places if len(places) > 1 else dict.fromkeys(reason.found for reason in reasons)
    return replace(reasons[0], count=len(reasons), examples=tuple(examples)[:_MAX_EXAMPLES])


class AdapterError(Exception):
    """Base of all errors of this package."""


class InvalidName(AdapterError):
    """A name does not match the grammar.

    Attributes:
        field: kind of name, e.g. ``adapter``.
        found: value given, shortened.
        allowed: description of the grammar.
    """

    def __init__(self, field: str, found: str, allowed: str) -> None:
        self.field, self.found, self.allowed = field, found, allowed
        super().__init__(f"{field} {found!r} is not valid. Use {allowed}.")


class AdapterRejected(AdapterError):
    """The upload cannot be served on this base.

    Attributes:
        reasons: at least one reason, one for each kind, the most informative first.
        unread: whether part of the request body was left unread.
    """

    def __init__(self, reasons: tuple[Reason, ...], *, unread: bool = False) -> None:
        self.reasons, self.unread = reasons, unread
        super().__init__(" ".join(reason.message for reason in reasons))


class UnsupportedBase(AdapterError, ValueError):
    """The base model's ``config.json`` is not a Llama's, or lacks fields that adapters are checked against.

    Attributes:
        field: key of ``config.json``.
        found: its value, shortened.
        allowed: values that would have been accepted.
    """

    def __init__(self, field: str, found: object, allowed: str) -> None:
        self.field, self.found, self.allowed = field, repr(found)[:80], allowed
        super().__init__(f"This base model is not supported: {field} is {self.found}, but must be {allowed}.")


class ValidationFailed(AdapterError):
    """The validator was stopped before it reached a verdict."""


class StorageError(AdapterError):
    """Base of all errors of blob stores and the disk cache.

    Attributes:
        retry_after: whole seconds after which a retry may succeed; None if unknown.
        reason: cause, in words for an operator; never shown to clients.
    """

    def __init__(self, message: str, *, retry_after: int | None = None, reason: str = "") -> None:
        self.retry_after, self.reason = retry_after, reason
        super().__init__(message)


class BlobNotFound(StorageError):
    """The store has no blob with this digest."""


class DigestMismatch(StorageError):
    """The SHA-256 of the bytes differs from the digest."""


class StoreUnavailable(StorageError):
    """The store did not answer, or refused the operation."""


class ForeignStore(StorageError):
    """The store may belong to another registry, so its blobs must be neither served nor removed."""


class DiskFull(StorageError):
    """No room on this node's disk, or none in the cache budget after leased versions."""
