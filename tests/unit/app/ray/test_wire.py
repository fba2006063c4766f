"""Wire between gateways and replicas: everything round-trips, and nothing else is accepted."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import StorageError
from adapters.identity import VersionKey
from app.domain.errors import ROWS, AdapterLoadFailed, NotFound, TenoraError, Unauthenticated
from app.domain.load_phases import LoadPhases
from app.engine.port import AnswerEvent, Endpoint, EngineRequest, Outcome, SmokeResult, TokenUsage
from app.ray import wire
from app.ray.error_words import CARRIED, ReplicaFailed, error_of, words_of
from app.ray.wire import WIRE_VERSION, Kind, OtherWireVersion, WireError

# Any text, lone surrogates included, which a client may send as JSON escapes.
TEXT = st.text(st.characters(), max_size=40)
PLAIN = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.floats(0, 1e6)
SIZES = st.integers(0, 2**40)
DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(TEXT, VALUES, max_size=5)
KEYS = st.builds(VersionKey, st.integers(1, 2**31 - 1), DIGESTS, DIGESTS, st.integers(0, 2**20), st.integers(0, 2**40))
LOADS = st.builds(LoadPhases, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
USAGES = st.builds(
    TokenUsage, SIZES, SIZES, SIZES, ttft_s=st.none() | NUMBERS, slot_s=NUMBERS, load_s=st.none() | NUMBERS
)
OUTCOMES = st.builds(Outcome, st.none() | USAGES, st.none() | LOADS, st.booleans())
REQUESTS = st.builds(
    EngineRequest,
    request_id=PLAIN,
    endpoint=st.sampled_from(Endpoint),
    body=BODIES,
    model=TEXT,
    adapter=st.none() | KEYS,
    cache_salt=PLAIN,
    prompt=st.none() | TEXT,
    tenant=PLAIN,
    weight=st.floats(0.001, 1000),
    token_ids=st.none() | st.lists(st.lists(st.integers(0, 2**20)).map(tuple), max_size=3).map(tuple),
)


def _made(kind: type[Exception], message: str, param: str | None, retry_after: int | None, number: int) -> Exception:
    if kind is AdapterLoadFailed:
        return AdapterLoadFailed(message, version_id=number)
    if kind is NotFound:
        return NotFound(message, param=param)
    if issubclass(kind, StorageError):
        return kind(message, retry_after=retry_after, reason=param or "")
    assert issubclass(kind, TenoraError)
    return kind(message, param=param, retry_after=retry_after)


ERRORS = st.builds(
    _made, st.sampled_from(CARRIED), TEXT, st.none() | TEXT, st.none() | st.integers(0, 10**6), st.integers(1, 2**31)
)


def facts(error: Exception) -> dict[str, Any]:
    names = ("param", "retry_after", "reason", "version_id", "foreign")
    return {"kind": type(error), "text": str(error)} | {name: getattr(error, name, None) for name in names}


@given(REQUESTS, st.none() | NUMBERS)
def test_requests_round_trip(request: EngineRequest, deadline_s: float | None) -> None:
    decoded = wire.decode_request(wire.encode_request(request, deadline_s=deadline_s))
    assert decoded.deadline_s == deadline_s
    assert wire.encode_request(decoded, deadline_s=None) == wire.encode_request(request, deadline_s=None)
    assert (decoded.body, decoded.adapter, decoded.token_ids) == (request.body, request.adapter, request.token_ids)


@given(TEXT, st.integers(0, 2**32 - 1))
def test_events_round_trip(text: str, tokens: int) -> None:
    event = AnswerEvent(text, tokens)
    assert wire.decode_frame(wire.encode_event(event)) == (Kind.EVENT, event)


@given(ERRORS)
def test_errors_round_trip_with_their_data(error: Exception) -> None:
    kind, decoded = wire.decode_frame(wire.encode_error(error))
    assert kind is Kind.ERROR
    assert facts(decoded) == facts(error)


@given(OUTCOMES, LOADS, BODIES, KEYS)
def test_outcomes_loads_answers_and_keys_round_trip(
    outcome: Outcome, load: LoadPhases, body: dict[str, Any], key: VersionKey
) -> None:
    assert wire.decode_frame(wire.encode_outcome(outcome)) == (Kind.OUTCOME, outcome)
    assert wire.decode_frame(wire.encode_load(load)) == (Kind.LOAD, load)
    assert wire.decode_frame(wire.encode_whole(body)) == (Kind.WHOLE, body)
    assert wire.decode_key(wire.encode_key(key)) == key


@pytest.mark.parametrize("result", [SmokeResult(finite=True, has_effect=False), SmokeResult(False, True)])
def test_smoke_results_round_trip(result: SmokeResult) -> None:
    assert wire.decode_smoke(wire.decode_frame(wire.encode_smoke(result))) == result


def test_every_error_on_the_wire_has_one_code() -> None:
    codes = [ROWS[kind].code for kind in CARRIED]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("error", [ValueError("the prompt was: secret"), Unauthenticated("secret")])
def test_an_error_outside_the_port_loses_its_text(error: Exception) -> None:
    data = wire.encode_error(error)
    assert b"secret" not in data
    assert isinstance(wire.decode_frame(data).value, ReplicaFailed)


def test_an_unknown_code_is_a_failed_replica() -> None:
    assert isinstance(error_of({"code": "brand_new", "message": "x"}), ReplicaFailed)


@pytest.mark.parametrize("version", [0, WIRE_VERSION + 1, str(WIRE_VERSION), True, None, 1.5, [1]])
def test_a_message_of_another_version_is_refused_with_a_sentence(version: object) -> None:
    message = json.dumps({"wire": version, "fields": {}}).encode()
    with pytest.raises(OtherWireVersion, match="Run the same release of Tenora on gateways and engine replicas"):
        wire.decode_request(message)


def test_a_greeting_of_another_version_is_refused() -> None:
    for greeting in (b"7", b"7 node", b"1"):
        with pytest.raises(OtherWireVersion, match=f"wire version {chr(greeting[0])}, and this side {WIRE_VERSION}"):
            wire.decode_frame(bytes((Kind.HELLO,)) + greeting)


def test_a_greeting_has_the_node() -> None:
    node = "f" * 32
    assert wire.decode_frame(wire.encode_hello(node)) == (Kind.HELLO, node)
    # A hostile name stays short.
    assert len(wire.decode_frame(wire.encode_hello("x" * 1000)).value) == 64


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_decoded(data: bytes) -> None:
    for decode in (wire.decode_request, wire.decode_frame, wire.decode_key):
        with contextlib.suppress(WireError):
            decode(data)


@given(VALUES, st.sampled_from(list(Kind)))
def test_arbitrary_json_is_refused_or_decoded(value: Any, kind: Kind) -> None:
    data = json.dumps(value).encode()
    for message in (bytes((kind,)) + data, data):
        with contextlib.suppress(WireError):
            wire.decode_frame(message)
    for fields in (value, {"request_id": value, "body": {}, "model": value}):
        with pytest.raises(WireError):
            wire.decode_request(json.dumps({"wire": WIRE_VERSION, "fields": fields}).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", "1"),
        ("weight", None),
        ("token_ids", [[1, "2"]]),
        ("token_ids", [[True]]),
        ("token_ids", [1]),
        ("adapter", {"version_id": 1}),
        ("endpoint", "embeddings"),
        ("body", []),
        ("prompt", 1),
        ("model", None),
        ("tenant", 5),
    ],
)
def test_a_request_with_a_field_of_another_type_is_refused(field: str, value: object) -> None:
    request = EngineRequest("r", Endpoint.CHAT, {}, "m", None, "s")
    message = json.loads(wire.encode_request(request, deadline_s=None))
    message["fields"][field] = value
    with pytest.raises(WireError, match=field):
        wire.decode_request(json.dumps(message).encode())


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(WireError):
        wire.decode_request(b"[" * 200_000)


def test_words_hold_no_class_names() -> None:
    assert set(words_of(AdapterLoadFailed("no", version_id=3))) == {"code", "message", "version_id"}
