"""Wire between gateways and engine replicas: plain bytes, JSON inside, nothing pickled.

An answer is a sequence of frames. The first byte of a frame is its kind::

    HELLO  LOAD?  (EVENT* | WHOLE)?  OUTCOME?  ERROR?

``HELLO`` carries the wire version of the replica, so that a gateway of another release refuses the answer with a
sentence. It also has the id of the node: Ray may send a request to another one than the gateway chose. ``LOAD`` has the
phases of the cold load that the request waited for. Errors travel as words (:mod:`app.ray.error_words`).
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from adapters.identity import VersionKey
from app.domain.load_phases import LoadPhases
from app.engine.port import AnswerEvent, Endpoint, EngineRequest, Outcome, SmokeResult, TokenUsage
from app.ray.error_words import error_of, words_of

#: Raised by one with each change of the frames or of their fields.
WIRE_VERSION = 2

_TOKENS_BYTES = 4
_MAX_TOKENS = 2 ** (8 * _TOKENS_BYTES) - 1

T = TypeVar("T")


class WireError(Exception):
    """Bytes that are not a message of this wire version. The message quotes nothing of them."""


class OtherWireVersion(WireError):
    """Message of another wire version: gateway and replica run different releases."""

    def __init__(self, version: object) -> None:
        super().__init__(
            f"The other side speaks wire version {str(version)[:20]}, and this side {WIRE_VERSION}. "
            "Run the same release of Tenora on gateways and engine replicas."
        )


class Kind(IntEnum):
    """Kind of a frame, its first byte."""

    HELLO = 1
    LOAD = 2
    EVENT = 3
    WHOLE = 4
    OUTCOME = 5
    ERROR = 6


class Frame(NamedTuple):
    """Decoded frame.

    Attributes:
        value: id of the node for ``HELLO``, :class:`LoadPhases` for ``LOAD``, :class:`AnswerEvent` for ``EVENT``, the
            body for ``WHOLE``, :class:`Outcome` for ``OUTCOME``, an exception for ``ERROR``.
    """

    kind: Kind
    value: Any


_MAX_NODE = 64

_KEY, _LOAD, _USAGE = TypeAdapter(VersionKey), TypeAdapter(LoadPhases), TypeAdapter(TokenUsage)
_SMOKE, _NUMBER, _TEXT = TypeAdapter(SmokeResult), TypeAdapter(float), TypeAdapter(str)
_ENDPOINT, _FLAG = TypeAdapter(Endpoint), TypeAdapter(bool)


def encode_hello(node: str) -> bytes:
    return bytes((Kind.HELLO,)) + f"{WIRE_VERSION} {node}".encode()


def encode_request(request: EngineRequest, *, deadline_s: float | None) -> bytes:
    """Encode a request, with the seconds that are left until its deadline."""
    fields = {
        "request_id": request.request_id,
        "endpoint": request.endpoint.value,
        "body": request.body,
        "model": request.model,
        "adapter": asdict(request.adapter) if request.adapter else None,
        "cache_salt": request.cache_salt,
        "prompt": request.prompt,
        "tenant": request.tenant,
        "weight": request.weight,
        "deadline_s": deadline_s,
        "token_ids": request.token_ids,
    }
    return _message(fields)


def decode_request(data: bytes) -> EngineRequest:
    """Decode a request.

    Raises:
        WireError
    """
    fields = _fields(data)
    body = fields.get("body")
    if not isinstance(body, dict):
        raise WireError("The body of a request is not an object.")
    return EngineRequest(
        request_id=_read(_TEXT, fields, "request_id"),
        endpoint=_read(_ENDPOINT, fields, "endpoint"),
        body=body,
        model=_text(fields, "model"),
        adapter=_optional(_KEY, fields, "adapter"),
        cache_salt=_read(_TEXT, fields, "cache_salt"),
        prompt=None if fields.get("prompt") is None else _text(fields, "prompt"),
        tenant=_read(_TEXT, fields, "tenant"),
        weight=_read(_NUMBER, fields, "weight"),
        deadline_s=_optional(_NUMBER, fields, "deadline_s"),
        token_ids=_token_ids(fields.get("token_ids")),
    )


def encode_key(key: VersionKey) -> bytes:
    return _message(asdict(key))


def decode_key(data: bytes) -> VersionKey:
    """Decode a version's key.

    Raises:
        WireError
    """
    return _read(_KEY, {"key": _fields(data)}, "key")


def encode_load(load: LoadPhases) -> bytes:
    return _frame(Kind.LOAD, asdict(load))


def encode_event(event: AnswerEvent) -> bytes:
    """Encode an event without JSON around it, since there is one for each token."""
    head = bytes((Kind.EVENT,)) + event.tokens.to_bytes(_TOKENS_BYTES, "big")
    return head + event.text.encode("utf-8", "surrogatepass")


def encode_whole(answer: dict[str, Any]) -> bytes:
    return _frame(Kind.WHOLE, answer)


def encode_outcome(outcome: Outcome) -> bytes:
    return _frame(Kind.OUTCOME, asdict(outcome))


def encode_smoke(result: SmokeResult) -> bytes:
    return _frame(Kind.WHOLE, asdict(result))


def encode_error(error: Exception) -> bytes:
    """Encode an error as words. An error outside the engine port loses its text, which may quote a prompt."""
    return _frame(Kind.ERROR, words_of(error))


def decode_frame(data: bytes) -> Frame:
    """Decode a frame.

    Raises:
        WireError
        OtherWireVersion: the frame is the greeting of another release.
    """
    if not isinstance(data, bytes) or not data:
        raise WireError("A frame is empty or not bytes.")
    try:
        kind = Kind(data[0])
    except ValueError:
        raise WireError(f"A frame has the unknown kind {data[0]}.") from None
    try:
        return Frame(kind, _DECODERS[kind](data[1:]))
    except (UnicodeDecodeError, RecursionError):
        raise WireError(f"A frame of kind {kind.name} is not valid.") from None


def decode_smoke(frame: Frame) -> SmokeResult:
    """Decode the result of a smoke check from the frame of a whole answer.

    Raises:
        WireError
    """
    return _read(_SMOKE, {"smoke": frame.value}, "smoke")


def _hello(data: bytes) -> str:
    version, _, node = data.partition(b" ")
    if version != str(WIRE_VERSION).encode():
        raise OtherWireVersion(version.decode("ascii", "replace"))
    return node[:_MAX_NODE].decode("ascii", "replace")


def _event(data: bytes) -> AnswerEvent:
    if len(data) < _TOKENS_BYTES:
        raise WireError("An event is too short.")
    tokens = int.from_bytes(data[:_TOKENS_BYTES], "big")
    return AnswerEvent(data[_TOKENS_BYTES:].decode("utf-8", "surrogatepass"), tokens)


def _load(data: bytes) -> LoadPhases:
    return _read(_LOAD, {"load": _object(data)}, "load")


def _outcome(data: bytes) -> Outcome:
    fields = _object(data)
    return Outcome(
        usage=_optional(_USAGE, fields, "usage"),
        load=_optional(_LOAD, fields, "load"),
        finite=_read(_FLAG, fields, "finite"),
    )


def _error(data: bytes) -> Exception:
    try:
        return error_of(_object(data))
    except (KeyError, TypeError, ValueError):
        raise WireError("An error has no valid words.") from None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError("A message is not JSON.") from None
    if not isinstance(value, dict):
        raise WireError("A message is not a JSON object.")
    return value


_DECODERS: dict[Kind, Callable[[bytes], Any]] = {
    Kind.HELLO: _hello,
    Kind.LOAD: _load,
    Kind.EVENT: _event,
    Kind.WHOLE: _object,
    Kind.OUTCOME: _outcome,
    Kind.ERROR: _error,
}


def _frame(kind: Kind, fields: dict[str, Any]) -> bytes:
    return bytes((kind,)) + json.dumps(fields, separators=(",", ":")).encode()


def _message(fields: dict[str, Any]) -> bytes:
    return json.dumps({"wire": WIRE_VERSION, "fields": fields}, separators=(",", ":")).encode()


def _fields(data: bytes) -> dict[str, Any]:
    if not isinstance(data, bytes):
        raise WireError("A message is not bytes.")
    message = _object(data)
    version = message.get("wire")
    if type(version) is not int or version != WIRE_VERSION:
        raise OtherWireVersion(version)
    fields = message.get("fields")
    if not isinstance(fields, dict):
        raise WireError("A message has no fields.")
    return fields


def _text(fields: dict[str, Any], name: str) -> str:
    # Pydantic refuses lone surrogates, which a client may send in a prompt.
    value = fields.get(name)
    if not isinstance(value, str):
        raise WireError(f"The field {name} of a message is not text.")
    return value


def _token_ids(value: Any) -> tuple[tuple[int, ...], ...] | None:
    # A long prompt has thousands of them, so they are checked without pydantic.
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(ids, list) and all(type(i) is int for i in ids) for ids in value):
        return tuple(map(tuple, value))
    raise WireError("The field token_ids of a message is not valid.")


def _optional(kind: TypeAdapter[T], fields: dict[str, Any], name: str) -> T | None:
    return None if fields.get(name) is None else _read(kind, fields, name)


def _read(kind: TypeAdapter[T], fields: dict[str, Any], name: str) -> T:
    try:
        # In JSON mode, pydantic is strict about types and still makes enums and dataclasses.
        return kind.validate_json(json.dumps(fields[name]), strict=True)
    except (KeyError, ValidationError):
        raise WireError(f"The field {name} of a message is not valid.") from None
