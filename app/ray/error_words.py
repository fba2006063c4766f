"""Errors of the engine port as words: a stable code, the sentence for people, and the data of its class."""

from typing import Any

from adapters import errors as adapter_errors
from adapters.errors import StorageError
from app.domain import errors
from app.domain.errors import ROWS, AdapterLoadFailed, EngineUnavailable, NotFound, TenoraError

#: Code of an error that is not part of the engine port.
UNKNOWN = "replica_failed"

_STORAGE: tuple[type[StorageError], ...] = (
    adapter_errors.BlobNotFound,
    adapter_errors.DigestMismatch,
    adapter_errors.StoreUnavailable,
    adapter_errors.ForeignStore,
    adapter_errors.DiskFull,
)
_PLAIN: tuple[type[TenoraError], ...] = (
    errors.Conflict,
    errors.InvalidRequest,
    errors.ContextLengthExceeded,
    errors.UnsupportedField,
    errors.TooLarge,
    errors.EngineUnavailable,
    errors.RegistryUnavailable,
    errors.Busy,
    errors.QueueFull,
)
_BY_CODE = {ROWS[kind].code: kind for kind in _PLAIN}
_STORAGE_BY_CODE = {ROWS[kind].code: kind for kind in _STORAGE}
_LOAD_FAILED, _NOT_FOUND = ROWS[AdapterLoadFailed].code, ROWS[NotFound].code

#: Classes that cross the wire unchanged.
CARRIED: tuple[type[Exception], ...] = (*_PLAIN, *_STORAGE, AdapterLoadFailed, NotFound)


class ReplicaFailed(Exception):
    """Error of a replica outside the engine port. The replica's log has it."""

    def __init__(self) -> None:
        super().__init__("The engine replica failed. Its log names the cause.")


def words_of(error: Exception) -> dict[str, Any]:
    """Describe an error as JSON values."""
    kind = type(error)
    if kind not in CARRIED:
        return {"code": UNKNOWN}
    words: dict[str, Any] = {"code": ROWS[kind].code, "message": str(error)}
    if isinstance(error, StorageError):
        return words | {"retry_after": error.retry_after, "reason": error.reason}
    if isinstance(error, AdapterLoadFailed):
        return words | {"version_id": error.version_id}
    if isinstance(error, NotFound):
        return words | {"param": error.param}
    if isinstance(error, TenoraError):
        return words | {"param": error.param, "retry_after": error.retry_after}
    return {"code": UNKNOWN}


def error_of(words: dict[str, Any]) -> Exception:
    """Build the error that these words describe; :class:`ReplicaFailed` for a code that is not known here.

    Raises:
        KeyError, TypeError: the words lack a field, or it has another type.
    """
    code = _typed(words, "code", str)
    if code in _BY_CODE:
        return _BY_CODE[code](
            _typed(words, "message", str),
            param=_maybe(words, "param", str),
            retry_after=_maybe(words, "retry_after", int),
        )
    if code in _STORAGE_BY_CODE:
        return _STORAGE_BY_CODE[code](
            _typed(words, "message", str),
            retry_after=_maybe(words, "retry_after", int),
            reason=_typed(words, "reason", str),
        )
    if code == _LOAD_FAILED:
        return AdapterLoadFailed(_typed(words, "message", str), version_id=_typed(words, "version_id", int))
    if code == _NOT_FOUND:
        return NotFound(_typed(words, "message", str), param=_maybe(words, "param", str))
    return ReplicaFailed()


def _typed(words: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = words[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(name)
    return value


def _maybe(words: dict[str, Any], name: str, kind: type[Any]) -> Any:
    return None if words.get(name) is None else _typed(words, name, kind)


def engine_lost() -> EngineUnavailable:
    """Return the error of a replica that ended or no longer answers."""
    return EngineUnavailable("The engine stopped while it answered. Try again later.", retry_after=1)
