"""Errors of the adapter layer.

The tree::

    AdapterError
    ├── InvalidName         a name that a person wrote does not fit the grammar
    ├── AdapterRejected     an upload that this base cannot serve; carries every reason
    ├── UnsupportedBase     the base model's config.json is not one that adapters can be checked against
    ├── ValidationFailed    the validator itself was stopped (time, memory); says nothing about the upload
    └── StorageError
        ├── BlobNotFound    no such digest in the store
        ├── DigestMismatch  bytes that are not what their digest says
        ├── StoreUnavailable  the store did not answer, or refused
        └── DiskFull        this node's disk or cache budget has no room
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why an upload cannot be served.

    Attributes:
        code: stable machine word, e.g. ``rank_too_large``.
        field: where it was found: a config key, a tensor's name, or a file's name.
        found: the value found, shortened for display.
        allowed: what would have been accepted.
    """

    code: str
    field: str
    found: str
    allowed: str

    @property
    def message(self) -> str:
        return f"{self.field}: found {self.found}, allowed {self.allowed}"


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
        reasons: every reason found, at least one.
    """

    def __init__(self, reasons: tuple[Reason, ...]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reason.message for reason in reasons))


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
    """

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class BlobNotFound(StorageError):
    """The store holds no blob under this digest."""


class DigestMismatch(StorageError):
    """The bytes read are not those that the digest names."""


class StoreUnavailable(StorageError):
    """The store did not answer, or refused the operation."""


class DiskFull(StorageError):
    """No room on this node's disk, or in the cache's budget once leased versions are counted."""
