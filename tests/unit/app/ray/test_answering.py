"""Answers of a replica to a request that a gateway sent twice."""

from contextlib import aclosing
from typing import Any, cast

from app.engine.port import AnswerEvent, Endpoint, EngineRequest
from app.ray.answering import Answering
from app.ray.wire import encode_request
from app.services.deletion.version_guard import VersionGuard
from tests.support.fleet import OpenGuard, ScriptedEngine

REQUEST = EngineRequest("req-1", Endpoint.COMPLETIONS, {"stream": True}, "base", None, "salt")
EVENTS = (AnswerEvent("data: one\n\n", 1), AnswerEvent("data: [DONE]\n\n", 0))


async def test_the_end_of_a_first_attempt_leaves_the_second() -> None:
    """A gateway sends a request again to the same replica if it is the only one that is left."""
    engine = ScriptedEngine(*EVENTS)
    answering = Answering(
        cast("Any", engine), cast("VersionGuard", OpenGuard()), lambda _key, _tenant: None, node="node-a"
    )
    data = encode_request(REQUEST, deadline_s=None)
    async with aclosing(answering.frames(data)) as second:
        async with aclosing(answering.frames(data)) as first:
            for frames in (first, second):
                await anext(frames)
                await anext(frames)
        cut, other = engine.calls
        assert cut.aborted
        assert not other.aborted
        assert answering.running == 1
        assert len([frame async for frame in second]) == 2
    assert answering.running == 0
    assert not other.aborted
    assert await answering.outcome("req-1")
