"""Container of everything that lives as long as the process.

Objects that live as long as one request are created where they are used:

- a database connection inside one service call,
- a spool folder around one upload,
- an adapter's lease inside the engine.
"""

from app.domain.node_snapshots import NodeRole
from app.engine.port import Engine
from app.settings import Settings
from app.wiring.engine_node import EngineNode
from app.wiring.gateway import Gateway
from app.wiring.resources import Resources


class Container:
    """A server of one process: a gateway and the engine node behind it.

    :mod:`app.wiring.lifecycle` starts and stops the parts that need it. The constructor blocks: it reads and creates
    files in HOME, but connects to nothing and starts nothing.

    Args:
        engine: another implementation of the port; default: vLLM in this process.

    Raises: as :class:`Resources`; also an error of :func:`app.planning.machine.resolve_slots`.
    """

    def __init__(self, settings: Settings, *, engine: Engine | None = None) -> None:
        self.resources = Resources(settings)
        role = NodeRole.SERVER if settings.ray.address is None else NodeRole.GATEWAY
        self.node = node = EngineNode(self.resources, engine=engine, role=role)
        self.gateway = Gateway(
            self.resources,
            engine=node.engine,
            cache=node.cache,
            in_flight=node.in_flight,
            nodes=node.nodes,
            prefetcher=node.prefetching,
            preloads=lambda: node.placement.preloads,
            wake_deletions=node.deleting.wake,
        )
