"""Gateway that sends one whole and one streaming request to light replicas, and prints the numbers of their events."""

import asyncio
import sys
from pathlib import Path

from app.domain.errors import EngineUnavailable
from app.engine.port import Endpoint, EngineRequest
from app.ray.calls import RayCall
from app.ray.cluster import open_transport
from app.ray.library import Unsafe
from app.ray.routes import Routes
from app.settings import Settings


async def main(home: Path) -> None:
    transport = await open_transport(Settings(home=home))
    routes = Routes()
    for number, body in enumerate(({}, {"stream": True, "events": 20, "every_s": 0})):
        request = EngineRequest(f"client-{number}", Endpoint.CHAT, body, "m", None, "salt", "hi")
        answer = await RayCall(request, transport, routes).answer()
        count = 1 if isinstance(answer, dict) else len([event async for event in answer])
        sys.stdout.write(f"events {count}\n")
    await transport.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1])))
    except (EngineUnavailable, Unsafe) as error:
        sys.exit(str(error))
