"""Lines of a batch: requests in OpenAI's form, made from prompts, messages or full lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tenora_client.errors import TenoraError

CHAT, COMPLETIONS, RESPONSES, GENERATE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate"
ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES, GENERATE)

#: Longest id of a line, in characters.
_MAX_ID = 512
_MAIN = {CHAT: "messages", COMPLETIONS: "prompt", RESPONSES: "input", GENERATE: "inputs"}
_TOKENS = {
    CHAT: ("max_tokens", "max_completion_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    GENERATE: ("max_new_tokens",),
}


class BadInput(TenoraError):
    """The input of a batch cannot be used. The message names the line."""


@dataclass(frozen=True)
class LineOptions:
    """Values for what lines leave out.

    Attributes:
        endpoint: route of all lines.
        max_tokens, temperature: None leaves them to the server.
    """

    endpoint: str
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True)
class Item:
    """Line or row of the input.

    Attributes:
        number: its number in the input, from 1; for a table, that of the row below the header.
        custom_id: id of the request.
        request: line of the batch, without a line break; None for a row without a prompt, which is not sent.
        cells: values of the output table's first columns.
    """

    number: int
    custom_id: str
    request: bytes | None
    cells: Sequence[Any] = ()


def prompt_item(number: int, custom_id: str, prompt: str, options: LineOptions, cells: Sequence[Any]) -> Item:
    """Make an item from a prompt."""
    return Item(number, custom_id, _line(custom_id, _translated({"prompt": prompt}, options, ""), options), cells)


def record_item(number: int, record: Any, options: LineOptions) -> Item:
    """Make an item from a JSON value: a full line of a batch, or an object with a prompt or messages.

    Raises:
        BadInput: it is neither.
    """
    where = f"Line {number}"
    if not isinstance(record, dict):
        raise BadInput(f'{where} is not a JSON object. Write one object a line, such as {{"prompt": "..."}}.')
    custom_id = record.get("custom_id", f"line-{number}")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= _MAX_ID:
        raise BadInput(f"{where} has a custom_id that is not a text of 1 to {_MAX_ID} characters. Change it.")
    if "body" in record:
        body = _full(record, where, options.endpoint)
    else:
        body = _translated({key: value for key, value in record.items() if key != "custom_id"}, options, where)
    return Item(number, custom_id, _line(custom_id, body, options), (custom_id,))


def endpoint_of(record: Any) -> str | None:
    """Return the route that a full line names, or None."""
    url = record.get("url") if isinstance(record, dict) and "body" in record else None
    return url if isinstance(url, str) else None


def _full(record: Mapping[str, Any], where: str, endpoint: str) -> dict[str, Any]:
    body, url, method = record["body"], record.get("url", endpoint), record.get("method", "POST")
    if not isinstance(body, dict):
        raise BadInput(f"{where} has a body that is not a JSON object. Write the request's fields there.")
    if method != "POST":
        raise BadInput(f"{where} has the method {str(method)[:20]!r}. Write POST.")
    if url != endpoint:
        raise BadInput(
            f"{where} has the url {str(url)[:80]!r}, and the batch runs at {endpoint}. One batch has one url: split "
            "the file, or give --endpoint."
        )
    if unknown := sorted(record.keys() - {"custom_id", "method", "url", "body"}):
        raise BadInput(f"{where} has the field {unknown[0][:80]!r} next to its body. Move it into the body.")
    return dict(body)


def _translated(body: dict[str, Any], options: LineOptions, where: str) -> dict[str, Any]:
    """Return a body with the endpoint's own field in place of ``prompt`` or ``messages``."""
    main = _MAIN[options.endpoint]
    if main in body:
        return body
    if "prompt" in body:
        prompt = body.pop("prompt")
        if not isinstance(prompt, str):
            raise BadInput(f"{where} has a prompt that is not a text. Write a JSON string.")
        if options.endpoint == GENERATE and "parameters" not in body:
            body["parameters"] = {"details": True}  # without it the answer has no counts of tokens
        return {main: [{"role": "user", "content": prompt}] if main == "messages" else prompt, **body}
    if "messages" in body:
        if options.endpoint != RESPONSES:
            raise BadInput(f"{where} has messages, which {options.endpoint} does not take. Give --endpoint {CHAT}.")
        return {main: body.pop("messages"), **body}
    raise BadInput(f"{where} has neither prompt nor messages nor body. Write one of them.")


def _line(custom_id: str, body: dict[str, Any], options: LineOptions) -> bytes:
    _fill(body, options)
    return msgspec.json.encode({"custom_id": custom_id, "method": "POST", "url": options.endpoint, "body": body})


def _fill(body: dict[str, Any], options: LineOptions) -> None:
    """Put the options where a body leaves them out."""
    fields = body
    if options.endpoint == GENERATE and (options.max_tokens is not None or options.temperature is not None):
        given = body.get("parameters")
        fields = body["parameters"] = dict(given) if isinstance(given, dict) else {}
    names = _TOKENS[options.endpoint]
    if options.max_tokens is not None and all(fields.get(name) is None for name in names):
        fields[names[0]] = options.max_tokens
    if options.temperature is not None and fields.get("temperature") is None:
        fields["temperature"] = options.temperature
