"""Gateway that sends one request to light replicas for each line of its input, and prints the answer or the error."""

import asyncio
import sys
from pathlib import Path

from app.domain.errors import TenoraError
from app.ray.cluster import open_transport
from app.ray.engine import RayEngine
from app.settings import Settings
from tests.support.light_cluster import light_request


async def main(home: Path) -> None:
    settings = Settings(home=home, ray={"address": "local"})
    engine = RayEngine(lambda: open_transport(settings), start_s=60)
    await engine.start()
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            told = str(await engine.begin(light_request(line.strip())).answer())
        except TenoraError as error:
            told = f"{type(error).__name__}: {error}"
        sys.stdout.write(f"told {told}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
