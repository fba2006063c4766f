"""One server's canary services, for tests of the registry. The fixtures are in ``canary_fixtures``."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from adapters.identity import ModelName
from app.database.tables import audit
from app.domain.adapters import ResolvedVersion
from app.domain.canary_policy import Policy, Step
from app.engine.status import EngineState
from app.services.common.preconditions import Precondition
from app.services.rollout.aliases import AliasService
from app.services.rollout.canaries import CanaryReport, CanaryService
from app.services.rollout.outcomes import Outcomes, TrialWindow
from app.services.rollout.runner import CanaryRunner
from tests.support.registry import BASE_DIGEST, Node
from tests.support.serving import NoEngine

ANY = Precondition()
POLICY = Policy(steps=(Step(5, 60), Step(25, 60), Step(100, 60)), min_requests=20)


@dataclass
class Place:
    """One server's canary services: its counters and its runner."""

    node: Node
    name: str
    outcomes: Outcomes = field(init=False)
    runner: CanaryRunner = field(init=False)

    def __post_init__(self) -> None:
        engine = NoEngine()
        engine.state = EngineState.READY
        self.outcomes = Outcomes(engine, monotonic=self.node.clock.monotonic)
        self.restart()

    def restart(self) -> None:
        """Simulate a new process on the same HOME, without in-memory state."""
        self.runner = CanaryRunner(
            self.node.database,
            self.outcomes,
            self.name,
            clock=self.node.clock,
            monotonic=self.node.clock.monotonic,
        )

    async def answer(
        self, good: int = 0, *, errors: int = 0, empties: int = 0, candidate: bool = True, recipient: int | None = None
    ) -> None:
        """Let this server answer this many requests of the canary on ``stable``.

        The requests come from the owner or from a recipient.
        """
        canary = (await report(self.node)).canary
        version_id = canary.candidate_id if candidate else canary.baseline_id
        window = TrialWindow(canary.id, canary.revision, version_id, recipient)
        for count, outcome in ((good, {}), (errors, {"error": True}), (empties, {"empty": True})):
            for _ in range(count):
                self.outcomes.count(window, **outcome)


def aliases(node: Node) -> AliasService:
    return AliasService(node.database, base_digest=BASE_DIGEST, clock=node.clock)


def canaries(node: Node) -> CanaryService:
    return CanaryService(node.database, base_digest=BASE_DIGEST, clock=node.clock)


async def start(node: Node, number: int = 2, policy: Policy = POLICY) -> CanaryReport:
    return await canaries(node).start("pricing", "prices", "stable", number, policy, precondition=ANY, actor="key")


async def report(node: Node) -> CanaryReport:
    return await canaries(node).get("pricing", "prices", "stable")


async def weights(node: Node) -> dict[int, int]:
    return dict((await aliases(node).get("pricing", "prices", "stable")).alias.targets)


async def resolved(node: Node) -> ResolvedVersion:
    tenant = await node.tenants.get("pricing")
    return await node.adapters.resolve(tenant.id, ModelName("prices", "stable"))


async def audited(node: Node, action: str) -> list[Any]:
    async with node.database.read() as connection:
        rows = await connection.execute(select(audit).where(audit.c.action == action).order_by(audit.c.id))
        return [(row.actor, row.subject, row.after) for row in rows]
