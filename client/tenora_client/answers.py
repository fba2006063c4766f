"""Parse answers of the server: JSON, server-sent events, typed results. Pure functions that all clients share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import httpx
import msgspec

from tenora_client.errors import foreign_answer, refusal

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """Base of typed answers. Fields that this release does not know are ignored: a newer server may send them."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON data, under the server's field names."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


@dataclass(frozen=True)
class FeedEvent:
    """Server-sent event.

    Attributes:
        id: position to resume after, None if the event has none.
        type: type of the event, empty for a heartbeat.
        data: payload.
    """

    id: int | None
    type: str
    data: dict[str, Any]


HEARTBEAT = FeedEvent(None, "", {})


class FeedParser:
    """Parser of an event feed, fed line by line."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def push(self, line: str) -> FeedEvent | None:
        """Take one line, and return the event that it completes. A comment line is a heartbeat.

        Raises:
            ForeignAnswer: the data of an event is not a JSON object.
        """
        if line.startswith(":"):
            return HEARTBEAT
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "event" not in fields:
            return None
        identity = fields.get("id", "")
        data = stream_event(f"data: {fields.get('data', '')}") or {}
        return FeedEvent(int(identity) if identity.isdecimal() else None, fields["event"], data)


def stream_event(line: str) -> dict[str, Any] | None:
    """Parse one line of a stream; None for a line without data and for ``[DONE]``.

    Raises:
        ForeignAnswer: the data is not a JSON object.
    """
    if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
        return None
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise foreign_answer(HTTPStatus.OK, line)
    return event


def checked_event(line: str, headers: Mapping[str, str]) -> dict[str, Any] | None:
    """Parse one line of an inference stream as :func:`stream_event` does.

    Raises:
        Refused: the event is an error, or not a Tenora server's.
    """
    event = stream_event(line)
    if event is not None and "error" in event:
        raise refusal(HTTPStatus.OK, event, headers.get("x-request-id"))
    return event


def result(response: httpx.Response) -> Any:
    """Return the JSON of a response, or None for an empty one.

    Raises:
        Refused: the server answered with an error.
    """
    if response.status_code == HTTPStatus.NO_CONTENT:
        return None
    try:
        body = response.json()
    except ValueError:
        raise foreign_answer(response.status_code, response.text) from None
    if response.is_success:
        return body
    if not isinstance(body, dict) or "error" not in body:
        raise foreign_answer(response.status_code, response.text)
    request_id = response.headers.get("x-request-id")
    raise refusal(response.status_code, body, request_id, retry_after_s(response.headers))


def page_of(response: httpx.Response) -> tuple[list[dict[str, Any]], str | None]:
    """Return the items of one page of a listing, and the cursor of the next page.

    Raises:
        Refused: the server answered with an error.
    """
    page = result(response)
    try:
        return page["data"], page.get("next_cursor")
    except (AttributeError, KeyError, TypeError):
        raise foreign_answer(response.status_code, response.text) from None


def page_after(page: Any) -> tuple[list[dict[str, Any]], bool]:
    """Return the items of one page of a listing in OpenAI's form, and whether more follow.

    Raises:
        ForeignAnswer: it has another form.
    """
    items = page.get("data") if isinstance(page, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) and "id" in item for item in items):
        raise foreign_answer(HTTPStatus.OK, str(page))
    return items, bool(page.get("has_more"))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the header Retry-After. Tenora sends whole seconds, never a date."""
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def read(kind: type[T], answer: Any) -> T:
    """Convert the JSON of an answer to its type.

    Raises:
        msgspec.ValidationError: the answer has another form.
    """
    return msgspec.convert(answer, kind)
