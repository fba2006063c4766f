"""Engine that records its requests, and a caller from the platform."""

from app.domain.access import Caller, Scope
from app.engine.port import Answer, EngineRequest
from tests.support.serving import NoEngine

PLATFORM = Caller("key", None, None, frozenset({Scope.ADMIN}), "")


class Recorder(NoEngine):
    """Engine that records its requests and gives one prepared answer."""

    def __init__(self, outcome: Answer | Exception) -> None:
        super().__init__()
        self.requests: list[EngineRequest] = []
        self._outcome = outcome

    async def answer(self, request: EngineRequest) -> Answer:
        self.requests.append(request)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome
