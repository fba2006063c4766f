"""Restart two servers in turn behind nginx under whole, streamed and chat requests: no request may fail.

``python -m tests.endurance.rolling`` needs ``nginx`` and runs it with ``deploy/nginx/tenora.conf``. It prints the
outcomes of the requests as JSON. The exit code is 1 if any failed.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from app.demo.train import Demo, ensure_demo
from tests.endurance.accounting import ADAPTERS, SETTINGS, TENANT
from tests.endurance.traffic import SOUND, Seen, Traffic
from tests.support.nginx import running_nginx
from tests.support.postgres import running_postgres
from tests.support.server import Server, free_port, serving, set_up, together, until

#: Answered requests before the first restart, and between two restarts.
_BETWEEN = 200


def run(folder: Path, demo: Demo, *, rounds: int, clients: int) -> Seen:
    """Restart each server once in every round."""
    with contextlib.ExitStack() as stack:
        settings = SETTINGS | together(folder, stack.enter_context(running_postgres())) | {"TENORA_DRAIN_SECONDS": "5"}
        homes = [folder / "first", folder / "second"]
        ports = [free_port(), free_port()]
        for home in homes:
            home.mkdir()
        admin_key = set_up(homes[0], demo.base, **settings)
        running = [contextlib.ExitStack() for _ in homes]
        for one in running:
            stack.push(one)

        def start(number: int) -> Server:
            server = serving(homes[number], demo.base, admin_key, port=ports[number], **settings)
            return running[number].enter_context(server)

        servers = [start(number) for number in range(len(homes))]
        url = stack.enter_context(running_nginx(folder, ports))
        traffic = Traffic(
            url, _key(servers[0], demo), ["", *ADAPTERS], clients=clients, requests=10**9, seed=1, manners=SOUND
        )
        asking = threading.Thread(target=asyncio.run, args=(traffic.run(),))
        asking.start()
        stack.callback(asking.join)
        stack.callback(traffic.stop)
        for _ in range(rounds):
            for number in range(len(homes)):
                _see_more(traffic.seen)
                servers[number].process.send_signal(signal.SIGTERM)
                servers[number].process.wait(120)
                _see_more(traffic.seen)
                running[number].close()
                servers[number] = start(number)
        _see_more(traffic.seen)
        traffic.stop()
        asking.join()
        return traffic.seen


def _key(server: Server, demo: Demo) -> str:
    key = server.tenant(TENANT, scopes=("inference",))
    for adapter in ADAPTERS:
        assert server.publish(TENANT, adapter, demo.adapters[adapter]).status_code == 201
    return key


def _see_more(seen: Seen) -> None:
    enough = seen.sent + _BETWEEN
    until(lambda: seen.sent >= enough, 300)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.rolling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--home", type=Path, default=Path(".tenora/endurance"), help="keeps the demo's models")
    given = parser.parse_args()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        demo = ensure_demo(given.home.resolve(), progress)
    with tempfile.TemporaryDirectory() as folder:
        seen = run(Path(folder), demo, rounds=given.rounds, clients=given.clients)
    restarts = 2 * given.rounds
    found = {"restarts": restarts, "sent": seen.sent, "outcomes": dict(seen.outcomes), "told": len(seen.told)}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0 if set(seen.outcomes) == {"200"} else 1


if __name__ == "__main__":
    sys.exit(main())
