"""Gateway that reads six endless streams of light replicas until it is killed."""

import asyncio
import os
import sys
from pathlib import Path

from app.engine.port import Endpoint, EngineRequest
from app.ray.calls import RayCall
from app.ray.cluster import open_transport
from app.ray.routes import Routes
from app.settings import Settings


async def main(home: Path) -> None:
    transport = await open_transport(Settings(home=home, ray={"address": "local"}))
    body = {"stream": True, "events": 10**6, "every_s": 0.01}
    routes = Routes()
    requests = [
        EngineRequest(f"gateway-{number}-{os.getpid()}", Endpoint.CHAT, body, "m", None, "salt", "hi")
        for number in range(6)
    ]
    calls = [RayCall(request, transport, routes) for request in requests]
    streams = [await call.answer() for call in calls]
    sys.stdout.write("streaming\n")
    sys.stdout.flush()

    async def read(stream) -> None:
        async for _ in stream:
            pass

    await asyncio.gather(*map(read, streams))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
