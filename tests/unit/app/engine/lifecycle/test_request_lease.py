"""Request lease: its outcome, the token counts of its events, and its end however the answer ends."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adapters.identity import VersionKey
from app.domain.load_phases import LoadPhases
from app.engine.lifecycle.engine_session import EngineSession
from app.engine.lifecycle.request_lease import RequestLease
from app.engine.lifecycle.sequence_leases import SequenceLeases
from app.engine.port import Endpoint, EngineRequest, Outcome
from app.engine.residency.slot_time import SlotTime
from app.engine.vllm.output_log import OutputLog, RequestUsage
from app.engine.vllm.sse import Events
from app.engine.vllm.translation import VllmRequest

KEY = VersionKey(7, "a" * 64, "b" * 64, 1, 1)
REQUEST = EngineRequest("r", Endpoint.COMPLETIONS, {"prompt": "x"}, "prices", KEY, "salt")
LOAD = LoadPhases(1.0, 0.5, 0.25, 0.125)


class Instance:
    """Fake engine instance. Each number in ``steps`` is a step with this many tokens, and one event.

    Attributes:
        late: tokens that arrive while the request is aborted.
        aborts: number of aborts.
    """

    def __init__(self, steps: list[int], *, stream: bool = True) -> None:
        self.steps, self.stream = steps, stream
        self.late = self.aborts = 0
        self.usage = RequestUsage()
        self.waiting = asyncio.Event()

    async def answer(self, _request: EngineRequest, usage: RequestUsage, *, start_tag: float) -> Any:
        self.usage, usage.prompt_tokens = usage, 5
        assert start_tag == 1.5
        if self.stream:
            names = SimpleNamespace(engine_name="v7", public_name="prices")
            return await Events.begin(self._events(), cast("VllmRequest", names))
        self.generate(sum(self.steps))
        await self.waiting.wait()
        return {"choices": []}

    async def abort(self, _request: EngineRequest) -> None:
        self.aborts += 1
        self.generate(self.late)

    def generate(self, tokens: int) -> None:
        self.usage.first_at = self.usage.first_at or asyncio.get_running_loop().time()
        self.usage.output_tokens += tokens

    async def _events(self) -> AsyncGenerator[str]:
        for tokens in self.steps:
            self.generate(tokens)
            yield f"data: {tokens}\n\n"
        yield "data: [DONE]\n\n"


class Leases:
    """Fake of the sequences' leases that records their release."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.all_ended: Any = None

    def release(self, usage: RequestUsage) -> None:
        self.released.append(usage.output_tokens)


def leased(instance: Instance) -> tuple[RequestLease, Leases]:
    leases = Leases()
    queue = SimpleNamespace(start_tag=lambda _name: 1.5)
    session = cast("EngineSession", SimpleNamespace(instance=instance, queue=queue, slot_time=SlotTime()))
    sequences = cast("SequenceLeases", leases)
    return RequestLease(REQUEST, session, OutputLog(), sequences, arrived_at=0.0, load=LOAD), leases


async def test_events_carry_the_tokens_since_the_previous_event() -> None:
    lease, leases = leased(Instance([1, 3, 0, 2]))
    stream = await lease.answer()
    assert not isinstance(stream, dict)
    assert [event.tokens async for event in stream] == [1, 3, 0, 2, 0]
    assert lease.outcome.usage is not None
    assert (lease.outcome.usage.output_tokens, leases.released) == (6, [6])


async def test_tokens_ahead_of_the_reader_are_in_the_next_event() -> None:
    lease, _ = leased(instance := Instance([1, 1]))
    stream = await lease.answer()
    assert not isinstance(stream, dict)
    instance.generate(4)
    assert (await anext(stream)).tokens == 5
    assert [event.tokens async for event in stream] == [1, 0]


async def test_an_outcome_has_its_load_at_once_and_its_usage_last() -> None:
    lease, _ = leased(instance := Instance([2]))
    assert lease.outcome == Outcome(load=LOAD)
    stream = await lease.answer()
    assert not isinstance(stream, dict)
    await anext(stream)
    instance.usage.finite = False
    assert lease.outcome == Outcome(load=LOAD, finite=False)
    assert [event.text async for event in stream] == ["data: [DONE]\n\n"]
    usage = lease.outcome.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens, usage.load_s) == (5, 2, LOAD.total_s)


@pytest.mark.parametrize("read", [0, 1])
async def test_closing_a_stream_aborts_it_and_counts_until_then(read: int) -> None:
    lease, leases = leased(instance := Instance([2, 2, 2]))
    stream = await lease.answer()
    assert not isinstance(stream, dict)
    for _ in range(read):
        await anext(stream)
    instance.late = 3
    await stream.aclose()
    await stream.aclose()
    assert lease.outcome.usage is not None
    assert (instance.aborts, lease.outcome.usage.output_tokens, leases.released) == (1, 5, [5])


async def test_cancelling_an_answer_aborts_it_and_counts_until_then() -> None:
    lease, leases = leased(instance := Instance([4], stream=False))
    answering = asyncio.create_task(lease.answer())
    while not instance.usage.output_tokens:
        await asyncio.sleep(0)
    assert lease.outcome.usage is None
    instance.late = 3
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert lease.outcome.usage is not None
    assert (instance.aborts, lease.outcome.usage.output_tokens, leases.released) == (1, 7, [7])


async def test_a_request_is_released_at_its_end_in_the_engine() -> None:
    """A client that reads slowly must not hold a slot."""
    lease, leases = leased(Instance([1, 1]))
    stream = await lease.answer()
    assert not isinstance(stream, dict)
    leases.all_ended()
    assert leases.released == [1]
    assert [event.tokens async for event in stream] == [1, 1, 0]
    assert leases.released == [1]


async def test_without_a_token_there_is_no_usage() -> None:
    lease, leases = leased(Instance([], stream=True))
    stream = await lease.answer()
    assert not isinstance(stream, dict)
    assert [event.tokens async for event in stream] == [0]
    assert (lease.outcome.usage, leases.released) == (None, [0])
