"""Large bodies are parsed in a thread, one at a time, round-robin over tenants."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.errors import InvalidRequest, Unauthenticated
from app.services.bodies.parsing import SMALL_BYTES
from app.services.bodies.reading import BodyReader


def nothing() -> None:
    """Refuse no request."""


def body(size: int) -> bytes:
    empty = json.dumps({"prompt": ""}).encode()
    return json.dumps({"prompt": "x" * (size - len(empty))}).encode()


@pytest.mark.parametrize(("size", "apart"), [(SMALL_BYTES, False), (SMALL_BYTES + 1, True)])
async def test_the_event_loop_parses_small_bodies_only(monkeypatch: pytest.MonkeyPatch, size: int, apart: bool) -> None:
    threads: list[int] = []
    loads = json.loads

    def noting(*arguments: Any, **options: Any) -> object:
        threads.append(threading.get_ident())
        return loads(*arguments, **options)

    monkeypatch.setattr("app.services.bodies.parsing.json.loads", noting)
    raw = body(size)
    assert len(raw) == size
    assert await BodyReader().parse(raw, share="a", before=nothing) == loads(raw)
    assert (threads != [threading.get_ident()]) == apart


async def test_tenants_take_turns() -> None:
    reader, may_end, order = BodyReader(), threading.Event(), list[str]()

    def slow(name: str) -> Callable[[], str]:
        def parse() -> str:
            may_end.wait()
            order.append(name)
            return name

        return parse

    many = [asyncio.create_task(reader.in_turn(slow(f"a{number}"), share="a")) for number in range(9)]
    await asyncio.sleep(0)
    one = asyncio.create_task(reader.in_turn(slow("b"), share="b"))
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*many, one)
    # Only the running body, and the one whose turn was next, come first.
    assert order.index("b") <= 2
    assert order[3:] == [f"a{number}" for number in range(2, 9)]


@pytest.mark.parametrize("size", [100, SMALL_BYTES + 1])
async def test_who_is_refused_has_nothing_parsed(size: int) -> None:
    def refuse() -> None:
        raise Unauthenticated("no more")

    with pytest.raises(Unauthenticated):
        await BodyReader().parse(b"x" * size, share="a", before=refuse)
    with pytest.raises(InvalidRequest):
        await BodyReader().parse(b"x" * size, share="a", before=nothing)
