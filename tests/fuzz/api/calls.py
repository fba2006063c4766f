"""One call: a schemathesis case with existing names, sensible bodies, and an occasional mutation."""

import base64
import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import requests
from schemathesis import Case

from tests.fuzz.api.world import ADAPTERS, FOREIGN, TENANT_SCOPES, World
from tests.fuzz.mutations import dump, mutate_bytes, mutate_json

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
# The server trusts a proxy on its machine. No address here is in the network to which the restricted key is limited.
_ODD_HEADERS = (
    *(("content-type", kind) for kind in ("", "application/json;charset=utf-16", "multipart/form-data", "\xff/\xfe")),
    *(("accept", value) for value in ("text/html", "", "*/*;q=x")),
    *(("idempotency-key", value) for value in ("", "a", "k" * 300, "\xe9", "fixed")),
    *(("if-match", value) for value in ("*", "", '"1"', 'W/"1"', '"' + "9" * 30 + '"', "\xff")),
    *(("x-request-timeout", value) for value in ("0", "-1", "1e3", "nan", "60", "9" * 40)),
    *(("content-digest", value) for value in ("", "sha-256=:AAAA:", "md5=:x:", "sha-256=:" + "A" * 43 + "=:")),
    *(("last-event-id", value) for value in ("", "0", "-1", "9" * 30, "\xb2")),
    *(("x-request-id", value) for value in ("", "x" * 4000, "\xff\t")),
    *(("range", "bytes=0-1"), ("expect", "100-continue"), ("cookie", "a=b; =; \xff")),
    *(("content-encoding", value) for value in ("gzip", "deflate", "br", "identity", "gzip, gzip", "\xff", "")),
    *(("upgrade", value) for value in ("h2c", "websocket")),
    *(("x-forwarded-for", value) for value in ("198.51.100.9", "", "x, y", "::1")),
    *(("host", "example.org"), ("origin", "null"), ("authorization", "Bearer"), ("authorization", "\xff \xfe")),
)  # fmt: skip
_ODD_SEGMENTS = (
    *("%00", "%2F", "%2e%2e", "..", ".", "%ff", "%ED%A0%80", "%F0%9F%92%A9", "a" * 3000, "-1", "0", "9" * 40, "1e3"),
    *("%0a", "'%20OR%201=1--", "%25", "A", "prices@1", "prices:stable", "%D9%A1", "", " "),
)  # fmt: skip


def prepare(case: Case, world: World, rng: random.Random, session: requests.Session, url: str) -> tuple[str, Any, bool]:
    """Turn a case into a request.

    Returns:
        The caller, the prepared request, and whether it still belongs to the case's operation.

    Raises:
        requests.RequestException, UnicodeError: HTTP cannot carry the request.
    """
    known = {name: world.parameter(rng, name) for name in case.path_parameters if rng.random() < 0.85}
    case.path_parameters = case.path_parameters | {name: value for name, value in known.items() if value is not None}
    good = _good(case, world, rng) if rng.random() < 0.4 else None
    if good is not None:
        case.body = good
        if rng.random() < 0.5:
            case.headers = type(case.headers)()
    found = case.as_transport_kwargs(base_url=url)
    request = requests.Request(**{name: found[name] for name in _REQUEST_FIELDS if name in found})
    request.headers = dict(request.headers or {})
    caller = rng.choice(_callers(case, world))
    if (key := world.callers[caller]) is not None:
        name, value = rng.choice((("Authorization", f"Bearer {key}"), ("x-api-key", key)))
        request.headers[name] = value
    if good is not None and isinstance(good, bytes):
        request.headers["content-digest"] = f"sha-256=:{base64.b64encode(hashlib.sha256(good).digest()).decode()}:"
    prepared = session.prepare_request(request)
    twist = rng.choice(_TWISTS) if rng.random() < 0.25 else None
    return caller, prepared, twist is None or twist(prepared, rng)


_REQUEST_FIELDS = ("method", "url", "headers", "files", "data", "json", "params", "cookies")


def _callers(case: Case, world: World) -> list[str]:
    """Return callers, most of which may perform the case's operation."""
    fit = ["admin"] * 12 if case.path.startswith("/admin") else ["tenant"] * 10 + ["restricted", "other tenant"] * 2
    return [*sorted(world.callers), *fit]


def _other_method(request: requests.PreparedRequest, rng: random.Random) -> bool:
    request.method = rng.choice(_METHODS)
    return False


def _unasked_body(request: requests.PreparedRequest, rng: random.Random) -> bool:
    body = rng.choice((b"{}", b"null", b"\xff\x00", b"[" * 5000, b"x" * 70_000))
    _send_instead(request, body)
    return True


def _odd_header(request: requests.PreparedRequest, rng: random.Random) -> bool:
    name, value = rng.choice(_ODD_HEADERS)
    # latin-1, as http.client writes headers.
    request.headers[name] = value
    return True


def _odd_body(request: requests.PreparedRequest, rng: random.Random) -> bool:
    body = request.body if isinstance(request.body, bytes) else str(request.body or "").encode()
    try:
        changed = dump(rng, mutate_json(rng, json.loads(body)))
    except ValueError:
        changed = mutate_bytes(rng, body)
    kind = request.headers.get("content-type")
    _send_instead(request, changed)
    if kind:
        request.headers["content-type"] = kind
    return True


def _odd_text(request: requests.PreparedRequest, rng: random.Random) -> bool:
    """Mutate JSON inside a string of the body: arguments of tool calls, schemas as text."""
    try:
        body = json.loads(request.body or b"")  # type: ignore[arg-type]  # requests allows streams
    except ValueError:
        return True
    texts = list(_texts(body))
    if not texts:
        return True
    place, name = rng.choice(texts)
    changed = rng.choice(_ODD_JSON) if rng.random() < 0.3 else dump(rng, mutate_json(rng, json.loads(place[name])))
    place[name] = changed if isinstance(changed, str) else changed.decode("utf-8", "replace")
    _send_instead(request, json.dumps(body).encode())
    request.headers["content-type"] = "application/json"
    return True


_ODD_JSON = (
    *('{"a": NaN}', '{"a": [-Infinity]}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": "\\u0000"}'),
    *('{"a": ' + "9" * 5000 + "}", '{"a": ' * 3000, "[" * 5000, '{"a": 1} x', '{"a": 1, "a": 2}', "\ufeff{}", "null"),
)  # fmt: skip


def _texts(node: Any) -> Iterator[tuple[Any, Any]]:
    """Find every container and key or index at which a string is JSON."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in pairs:
        if isinstance(value, str) and value[:1] in ("{", "["):
            with contextlib.suppress(ValueError, RecursionError):
                json.loads(value)
                yield node, name
        else:
            yield from _texts(value)


def _send_instead(request: requests.PreparedRequest, body: bytes) -> None:
    # An empty body would keep the old content-length, and the server would wait for the missing bytes.
    request.headers.pop("content-length", None)
    request.prepare_body(body, None)


def _odd_path(request: requests.PreparedRequest, rng: random.Random) -> bool:
    scheme, _, host, *segments = str(request.url).partition("?")[0].split("/")
    place = rng.randrange(len(segments))
    segments[place] = rng.choice(_ODD_SEGMENTS)
    request.url = "/".join((scheme, "", host, *segments))
    return False


def _odd_query(request: requests.PreparedRequest, rng: random.Random) -> bool:
    names = ("limit", "cursor", "after", "label", "from", "to", "by", "format", "tenant", "force", "state", "base", "a")
    values = ("%00", "%ff", "", "9" * 40, "-1", "1e9", "null", "%F0%9F%92%A9", "a=b", "NaN", "x" * 5000, "2026-01-01")
    pairs = "&".join(f"{rng.choice(names)}={rng.choice(values)}" for _ in range(rng.choice((1, 1, 2, 30))))
    request.url = f"{str(request.url).partition('?')[0]}?{pairs}"
    return True


_TWISTS: tuple[Callable[[requests.PreparedRequest, random.Random], bool], ...] = (
    *(_other_method, _unasked_body, _odd_header, _odd_header, _odd_body, _odd_body, _odd_path, _odd_query),
    *(_odd_text, _odd_text, _odd_text),
)  # fmt: skip


def _good(case: Case, world: World, rng: random.Random) -> Any:
    """Return a body that may well succeed; None if the operation takes none."""
    method = case.method.upper()
    make = next((make for (takes, end), make in _BODIES.items() if takes == method and case.path.endswith(end)), None)
    return None if make is None else make(world, rng)


def _model(_: World, rng: random.Random) -> str:
    names = [f"{name}{end}" for name in ADAPTERS for end in ("", "", "@1", "@2", ":default", ":stable")]
    return rng.choice([*names, FOREIGN, "", "absent"])


def _parameters(world: World, rng: random.Random) -> dict[str, Any]:
    some = {"details": True, "return_full_text": True, "stop": ["."], "seed": 3, "temperature": 0.5, "top_k": 4}
    kept = {name: value for name, value in some.items() if rng.random() < 0.3}
    return {"adapter_id": _model(world, rng), "max_new_tokens": rng.choice((1, 4)), **kept}


def _lorax(world: World, rng: random.Random) -> dict[str, Any]:
    return {"inputs": "[INST] Hello [/INST]", "parameters": _parameters(world, rng), "stream": rng.random() < 0.3}


def _completion(world: World, rng: random.Random) -> dict[str, Any]:
    prompt = rng.choice(("Hello", ["a", "b"], [1, 2, 3]))
    more = {"stream": True, "logprobs": 1, "echo": True, "n": 2, "stop": "e", "guided_choice": ["a", "b"]}
    more["guided_json"] = json.dumps(_SCHEMA)
    kept = {name: value for name, value in more.items() if rng.random() < 0.2}
    return {"model": _model(world, rng), "prompt": prompt, "max_tokens": rng.choice((1, 4)), **kept}


def _chat(world: World, rng: random.Random) -> dict[str, Any]:
    said: list[dict[str, Any]] = [
        {"role": "user", "content": rng.choice(("Hello", [{"type": "text", "text": "Hello"}]))}
    ]
    if rng.random() < 0.5:
        call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": json.dumps(_ARGUMENTS)}}
        said += [
            {"role": "assistant", "content": rng.choice((None, "")), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": json.dumps(_ARGUMENTS)},
        ]
    shape = {"guided_json": json.dumps(_SCHEMA)} if rng.random() < 0.2 else {}
    stream = rng.random() < 0.3
    return {"model": _model(world, rng), "messages": said, "max_tokens": 4, "stream": stream, **shape}


def _response(world: World, rng: random.Random) -> dict[str, Any]:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": rng.choice(("Hello", [{"type": "input_text", "text": "Hello"}]))}
    ]
    if rng.random() < 0.5:
        call = {"type": "function_call", "call_id": "c1", "name": "price", "arguments": json.dumps(_ARGUMENTS)}
        output = {"type": "function_call_output", "call_id": "c1", "output": json.dumps(_ARGUMENTS)}
        items += [{"type": "reasoning", "summary": []}, call, output]
    more = {
        "stream": True,
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "price", "parameters": _SCHEMA}],
        "text": {"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA}},
        "metadata": {"a": "b"},
        "store": True,
        "include": ["message.output_text.logprobs"],
        "previous_response_id": "resp_1",
    }
    kept = {name: value for name, value in more.items() if rng.random() < 0.2}
    return {"model": _model(world, rng), "input": rng.choice(("Hello", items)), "max_output_tokens": 4, **kept}


def _turns(world: World, rng: random.Random) -> dict[str, Any]:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": rng.choice(("Hello", [{"type": "text", "text": "Hello"}]))}
    ]
    if rng.random() < 0.5:
        use = {"type": "tool_use", "id": "c1", "name": "price", "input": _ARGUMENTS}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": json.dumps(_ARGUMENTS), "is_error": True}
        turns += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    more = {
        "system": rng.choice(("Be brief.", [{"type": "text", "text": "Be brief."}])),
        "tools": [{"name": "price", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
    }
    kept = {name: value for name, value in more.items() if rng.random() < 0.2}
    return {"model": _model(world, rng), "messages": turns, **kept}


def _message(world: World, rng: random.Random) -> dict[str, Any]:
    more = {"stream": True, "stop_sequences": ["e"], "temperature": 0.5, "metadata": {"user_id": "a"}}
    kept = {name: value for name, value in more.items() if rng.random() < 0.2}
    return {**_turns(world, rng), "max_tokens": 4, **kept}


def _tokenize(world: World, rng: random.Random) -> dict[str, Any]:
    said = [{"role": "user", "content": "Hello"}]
    return {"model": _model(world, rng), **rng.choice(({"prompt": "Hello"}, {"messages": said}))}


def _detokenize(world: World, rng: random.Random) -> dict[str, Any]:
    return {"model": _model(world, rng), "tokens": rng.choice(([], [1, 2, 3], [10**9]))}


_ARGUMENTS = {"item": "sugar", "amount": 2.5, "to": ["a", "\u00e9"], "more": {"urgent": True}}
_SCHEMA = {"type": "object", "properties": {"item": {"enum": ["sugar", "salt"]}}, "required": ["item"]}


def _begin(world: World, rng: random.Random) -> dict[str, Any]:
    files = rng.choice(world.files)
    raw = {_CONFIG: files.config, _WEIGHTS: files.weights}
    told = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in raw.items()}
    return {"files": told, "options": rng.choice(({}, {"alias": "next"}, {"labels": {"team": "a"}}, {"wait": False}))}


def _part(world: World, rng: random.Random) -> bytes:
    files = rng.choice(world.files)
    return rng.choice((files.config, files.weights))


def _publish(world: World, rng: random.Random) -> dict[str, Any]:
    files = rng.choice(world.files)
    return {_CONFIG: files.config, _WEIGHTS: files.weights}


def _validate(world: World, rng: random.Random) -> dict[str, Any]:
    files = rng.choice(world.files)
    end = 8 + int.from_bytes(files.weights[:8], "little")
    options = {"weights_bytes": len(files.weights), "adapter": rng.choice((*ADAPTERS, None)), "files": ["README.md"]}
    return {_CONFIG: files.config, _WEIGHTS: files.weights[:end], "options": json.dumps(options).encode()}


def _merge(_: World, rng: random.Random) -> dict[str, Any]:
    sources = [{"version": f"{ADAPTERS[0]}@{number}", "weight": 0.5} for number in (1, 2)]
    # A successful merge takes a separate process and seconds: one in twenty is enough.
    return {"sources": sources, "method": "linear" if rng.random() < 0.05 else "absent"}


def _tenant(_: World, rng: random.Random) -> dict[str, Any]:
    return {"slug": f"made-{rng.randrange(10**9)}"}


def _one_of(*bodies: Any) -> Callable[[World, random.Random], Any]:
    return lambda _, rng: rng.choice(bodies)


#: Method and end of the path -> function that makes a body; the first match applies.
_BODIES: dict[tuple[str, str], Callable[[World, random.Random], Any]] = {
    ("POST", "chat/completions"): _chat,
    ("POST", "completions"): _completion,
    ("POST", "/v1/responses"): _response,
    ("POST", "count_tokens"): _turns,
    ("POST", "/v1/messages"): _message,
    ("POST", "/v1/tokenize"): _tokenize,
    ("POST", "/v1/detokenize"): _detokenize,
    **{("POST", end): _lorax for end in ("/generate", "/generate_stream", "/")},
    ("POST", "tenants"): _tenant,
    ("PATCH", "{tenant}"): _one_of({"name": "a"}, {"weight": 2.0}, {"limits": {"requests_per_minute": 10**6}}),
    ("POST", "keys"): _one_of(*({"name": "k", "scopes": [scope]} for scope in TENANT_SCOPES), {"name": "k"}),
    ("PATCH", "{key_id}"): _one_of({"limits": {"requests_per_minute": 10**6}}, {"adapters": ["prices"]}),
    ("POST", "rotate"): _one_of({"grace_s": 60}, {}),
    ("PATCH", "{number}"): _one_of({"labels": {"team": "a"}}, {"card": "c"}, {"defaults": {"temperature": 0.5}}),
    ("POST", "retire"): _one_of({"reason": "old"}),
    ("PUT", "{alias}"): _one_of({"version": 1}, {"version": 2}, {"weights": {"1": 1, "2": 3}}),
    ("PUT", "canary"): _one_of({"version": 2}, {"version": 1}),
    ("POST", "merges"): _merge,
    ("POST", "uploads"): _begin,
    ("POST", "urls"): _one_of({"parts": [{"number": 1, "sha256": "0" * 64}]}),
    ("PUT", "{number}"): _part,
    ("POST", "versions"): _publish,
    ("POST", "/validate"): _validate,
    ("POST", "imports"): _one_of({"source": "s3://bucket/prefix/"}, {"source": "hf://a/b@" + "0" * 40}),
}


def shown(request: requests.PreparedRequest, caller: str) -> str:
    """Format a request as text for manual replay, without its key."""
    hidden = {"authorization", "x-api-key", "user-agent", "accept-encoding", "connection"}
    headers = {name: value for name, value in request.headers.items() if name.lower() not in hidden}
    return (
        f"{request.method} {quote(request.path_url, safe='/%?=&:@+,;')} as {caller}, {headers}, {request.body!r:.400}"
    )
