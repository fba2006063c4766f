"""Workload ``guardrails``: cost of limits and metering.

It runs the closed loop of :mod:`app.lab.bench.overhead` against two Tenora servers in turn. One has every limit set on
the tenant and its key, far above the load. The other runs without limits and metering
(:mod:`app.cli.without_limits`).
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from app.domain.limits.limits import COSTS, Limits
from app.lab.bench import models, overhead, report, rivals
from app.lab.bench.overhead import ADAPTER, QUICK, Size
from app.lab.bench.publishing import TENANT
from app.lab.bench.servers import Server
from tenora_client.transport import Api, path_of

ON, OFF = "guarded", "unguarded"
#: Rounds long enough to resolve differences of a few percent.
#: See docs/decisions/0039-interleaved-rounds-in-benchmarks.md.
FULL = Size(7, {1: 20, 64: 768})

#: Limits that no benchmark reaches. Money is a decimal.
_FAR = {name: "1000000" if name in COSTS else 10**12 for name in (one.name for one in dataclasses.fields(Limits))}


def run(home: Path, *, out: Path | None, quick: bool, console: Console, base: Path | None = None) -> Path:
    """Run the benchmark, print its tables and write a JSON file. The arguments are those of ``overhead``.

    Returns:
        Path of the JSON file.

    Raises:
        ServerFailed, LoadError
        tenora_client.transport.Refused: the server rejected a limit.
    """
    size = QUICK if quick else FULL
    home = home.resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    base, adapter, settings = overhead.prepare(home, base, console)
    with tempfile.TemporaryDirectory(dir=home) as folder, ExitStack() as stack:
        console.print("starting both servers")
        pair = [
            stack.enter_context(_started(name, base, adapter, home, Path(folder) / name, settings))
            for name in (ON, OFF)
        ]
        _limit(pair[0])
        rounds = overhead.measure(pair, size, models.vocabulary(base), console)
    machine = report.environment()
    content = {
        "workload": "guardrails",
        **machine,
        **overhead.described(size, settings),
        "rounds": [asdict(one) for one in rounds],
    }
    path = out or home / f"guardrails-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    report.write(path, content)
    overhead.show(rounds, size, report.describe(machine))
    return path


@contextmanager
def _started(
    name: str, base: Path, adapter: Path, home: Path, folder: Path, settings: Mapping[str, str]
) -> Iterator[Server]:
    module = "tenora_client" if name == ON else "app.cli.without_limits"
    with rivals.tenora(base, {ADAPTER: adapter}, home=home, folder=folder, settings=settings, module=module) as server:
        yield dataclasses.replace(server, name=name)


def _limit(server: Server) -> None:
    """Set every limit on the tenant and on each of its keys."""
    with Api(server.url, server.admin_headers["authorization"].removeprefix("Bearer ")) as api:
        tenant = path_of("admin", "tenants", TENANT)
        api.call("PATCH", tenant, {"limits": _FAR})
        for key in api.call("GET", f"{tenant}/keys")["data"]:
            api.call("PATCH", f"{tenant}/keys/{key['id']}", {"limits": _FAR})
