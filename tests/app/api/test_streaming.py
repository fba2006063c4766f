"""Work and streams end when the client goes away."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from app.api.streaming import EventResponse, answer_response, until_disconnect
from app.services.inference import Served


class Client:
    """The ASGI side of one request: what was sent to it, and the moment it goes away."""

    def __init__(self):
        self.gone = asyncio.Event()
        self.sent = []

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_work_gives_its_result():
    async def work():
        return 5

    assert await until_disconnect(Client().receive, work()) == 5


async def test_work_gives_its_error():
    async def work():
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await until_disconnect(Client().receive, work())


async def test_work_is_cancelled_when_the_client_goes_away():
    client, events = Client(), []

    async def work():
        client.gone.set()
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    with pytest.raises(ClientDisconnect):
        await until_disconnect(client.receive, work())
    assert events == ["ended"]


async def test_whoever_cancels_the_request_cancels_the_work():
    started, events = asyncio.Event(), []

    async def work():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    task = asyncio.ensure_future(until_disconnect(Client().receive, work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events == ["ended"]


async def test_a_stream_is_sent_to_its_end_and_closed():
    client, closed = Client(), []

    async def source():
        try:
            yield "data: 1\n\n"
            yield "data: [DONE]\n\n"
        finally:
            closed.append(True)

    await EventResponse(source(), {"x-tenora-adapter": "pricing@3"})({}, client.receive, client.send)
    headers = dict(client.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-tenora-adapter"] == b"pricing@3"
    assert b"content-length" not in headers
    assert client.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert client.sent[-1]["more_body"] is False
    assert closed


async def test_a_stream_is_closed_when_the_client_goes_away():
    client, closed = Client(), []

    async def source():
        try:
            yield "data: 1\n\n"
            client.gone.set()
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    await EventResponse(source(), {})({}, client.receive, client.send)
    assert client.body == b"data: 1\n\n"
    assert closed


async def test_a_stream_is_closed_when_sending_blocks():
    client, closed = Client(), []

    async def source():
        try:
            while True:
                yield "data: 1\n\n"
        finally:
            closed.append(True)

    async def send(message):
        if message["type"] == "http.response.body":
            client.gone.set()
            await asyncio.Event().wait()

    await EventResponse(source(), {})({}, client.receive, send)
    assert closed


def test_a_whole_answer_names_the_version_that_gave_it():
    response = answer_response(Served({"a": 1}, "pricing@3"))
    assert response.headers["x-tenora-adapter"] == "pricing@3"
    assert response.body == b'{"a":1}'


def test_the_base_has_no_version():
    response = answer_response(Served({"a": 1}, None), in_list=True)
    assert "x-tenora-adapter" not in response.headers
    assert response.body == b'[{"a":1}]'
