"""Client disconnects cancel the request's work and close its stream."""

import asyncio
import contextlib
import json
import math

import pytest
from starlette.requests import ClientDisconnect

from app.api.streaming import EventResponse, answer_response, until_disconnect
from app.services.serving.served import Served


class Client:
    """ASGI client of one request: records the messages sent to it and can disconnect."""

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


async def test_cancelled_work_that_answers_has_no_client():
    client = Client()

    async def work():
        client.gone.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "an answer"

    with pytest.raises(ClientDisconnect):
        await until_disconnect(client.receive, work())


async def test_work_that_makes_an_error_of_it_has_none_either():
    client = Client()

    async def work():
        client.gone.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("x") from None

    with pytest.raises(ClientDisconnect):
        await until_disconnect(client.receive, work())


@pytest.mark.parametrize("steps", range(8))
async def test_an_answer_that_comes_as_its_client_goes_is_closed(steps):
    """Close an answer that arrives during a disconnect, at any loop turn. No other code would release its slot."""
    client, made, closed = Client(), [], []

    class Events:
        def __aiter__(self):
            return self

        async def __anext__(self):
            raise StopAsyncIteration

        async def aclose(self):
            closed.append(self)

    async def work():
        client.gone.set()
        # Some work completes despite its cancellation, as vLLM's did.
        for _ in range(steps):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        made.append(Events())
        return Served(made[0], None)

    try:
        served = await until_disconnect(client.receive, work())
    except ClientDisconnect:
        assert closed == made
    else:
        assert served.answer is made[0]
        assert not closed


async def test_a_task_whose_client_went_away_goes_on_uncancelled():
    client = Client()

    async def work():
        client.gone.set()
        await asyncio.Event().wait()

    async def request():
        with pytest.raises(ClientDisconnect):
            await until_disconnect(client.receive, work())
        await asyncio.sleep(0)
        return asyncio.current_task().cancelling()

    assert await asyncio.create_task(request()) == 0


async def test_who_cancels_wins_over_the_client_that_goes_away():
    client = Client()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            client.gone.set()
            for _ in range(5):
                await asyncio.sleep(0)

    task = asyncio.ensure_future(until_disconnect(client.receive, work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_disconnect_after_the_answer_cancels_nothing():
    client = Client()

    async def request():
        async def work():
            # The disconnect is detected in the same loop turn in which the work ends.
            client.gone.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return 5

        with contextlib.suppress(ClientDisconnect):
            assert await until_disconnect(client.receive, work()) == 5
        for _ in range(3):
            await asyncio.sleep(0)
        return asyncio.current_task().cancelling()

    assert await asyncio.create_task(request()) == 0


@pytest.mark.parametrize("steps", range(1, 9))
async def test_an_answer_of_a_cancelled_request_is_closed(steps):
    """Cancel a request around the turn in which its answer arrives. No other code would release its slot."""
    made, closed = [], []

    class Events:
        """Stream without events, as `EventStream` asks."""

        def __aiter__(self):
            return self

        async def __anext__(self) -> str:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            closed.append(self)

    async def work():
        for _ in range(3):
            await asyncio.sleep(0)
        made.append(Events())
        return Served(made[0], None)

    request = asyncio.ensure_future(until_disconnect(Client().receive, work()))
    for _ in range(steps):
        await asyncio.sleep(0)
    request.cancel()
    try:
        served = await request
    except asyncio.CancelledError:
        assert closed == made
    else:
        assert served.answer is made[0]
        assert not closed


async def test_a_connection_that_fails_is_gone():
    async def receive():
        raise ConnectionResetError

    with pytest.raises(ClientDisconnect):
        await until_disconnect(receive, asyncio.Event().wait())


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


def test_a_whole_answer_is_json_whatever_numbers_are_in_it() -> None:
    answer = {"text": 'é\n"', "logprobs": [-0.5, math.nan, -math.inf], "usage": {"total_tokens": 3}, "none": None}
    finite = answer | {"logprobs": [-0.5, None, None]}
    for in_list, expected in ((False, finite), (True, [finite])):
        response = answer_response(Served(answer, None), in_list=in_list)
        assert response.headers["content-type"] == "application/json"
        assert int(response.headers["content-length"]) == len(response.body)
        assert json.loads(bytes(response.body), parse_constant=pytest.fail) == expected
