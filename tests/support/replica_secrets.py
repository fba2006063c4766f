"""Start an engine replica's node with a fake engine, and print the paths of secrets that the process opens."""

import asyncio
import sys
from pathlib import Path


def main(home: str, base: str, database_url: str) -> None:
    opened: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(f"{home}/secrets/"):
            opened.append(str(arguments[0]))

    sys.addaudithook(note)
    from app.domain.node_snapshots import NodeRole
    from app.ray.replica import replica_home, replica_settings
    from app.services.access.peppers import load_peppers
    from app.services.deletion.version_guard import VersionGuard
    from app.settings import Settings
    from app.wiring.engine_node import EngineNode
    from app.wiring.lifecycle import running_node
    from app.wiring.resources import Resources
    from tests.support.serving import NoEngine

    async def run(settings: Settings) -> None:
        resources = Resources(settings)
        guard = VersionGuard(resources.database)
        node = EngineNode(resources, engine=NoEngine(), in_flight=guard, role=NodeRole.REPLICA)
        async with running_node(node):
            await node.nodes.beat()
        sys.stdout.write("started")

    server = Settings(home=Path(home), base_model=base, ray={"database_url": database_url})
    with replica_home(server.home / "engines") as own:
        settings = replica_settings(server, own)
        assert settings.pepper is None
        asyncio.run(run(settings))
    sys.stdout.write(" ".join(["", *opened]))
    opened.clear()
    load_peppers(server)
    # Else the list above would say nothing.
    assert opened
