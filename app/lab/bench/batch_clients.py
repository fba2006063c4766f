"""Concurrent clients for the lines of a batch: what a data team writes without batches.

It runs as a separate process: ``python -m app.lab.bench.batch_clients INPUT OUTPUT PORT KEY CLIENTS``. Each client
sends one line at a time, and takes the next one when the answer is there. The output has OpenAI's form, in the order
of the answers.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import uvloop

from app.lab.bench.wire import Connection, http_request

_HOST = "127.0.0.1"


async def run(source: Path, target: Path, port: int, key: str, clients: int) -> None:
    """Send all lines of the input.

    Raises:
        LoadError: the connection broke. A refused line is in the output with its status.
        OSError: the server does not listen.
    """
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, _HOST, port))[1] for _ in range(clients)]
    try:
        with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8") as results:
            records = (json.loads(line) for line in lines)
            async with asyncio.TaskGroup() as tasks:
                for connection in connections:
                    tasks.create_task(_work(connection, records, results, port, {"authorization": f"Bearer {key}"}))
    finally:
        for connection in connections:
            connection.close()


async def _work(
    connection: Connection, records: Iterator[dict[str, Any]], results: TextIO, port: int, headers: dict[str, str]
) -> None:
    for record in records:
        answer = await connection.ask(http_request(_HOST, port, record["url"], headers, record["body"]))
        response = {"status_code": answer.body.status, "body": json.loads(answer.body.rest)}
        results.write(json.dumps({"custom_id": record["custom_id"], "response": response, "error": None}) + "\n")


def main() -> None:
    source, target, port, key, clients = sys.argv[1:]
    uvloop.run(run(Path(source), Path(target), int(port), key, int(clients)))


if __name__ == "__main__":
    main()
