"""Site under fault: a server with the real engine, PostgreSQL and S3 behind proxies, and two tenants."""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad

from app.demo.train import Demo
from tests.support.faults.load import PROMPTS, Promise, Unit
from tests.support.faults.proxy import Proxy
from tests.support.postgres import Postgres, postgres_server
from tests.support.registry import run_on_server
from tests.support.s3server import s3_client, s3_server
from tests.support.server import Server, free_port, serving, set_up, until
from tests.support.server_fixtures import SLOTS

#: Longer than any step of the demo's base takes on a busy machine.
HANG_S = 6
BUCKET = "faults"
SETTINGS = SLOTS | {
    "VLLM_LOGGING_LEVEL": "INFO",
    "TENORA_STORE_URL": f"s3://{BUCKET}/p",
    "TENORA_S3_REGION": "us-east-1",
    "TENORA_PEPPER": "the pepper of the tests, 32 bytes or more",
    "TENORA_ENGINE__HANG_S": str(HANG_S),
    # Room for a few adapters only, so that cold adapters are fetched from the store repeatedly.
    "TENORA_CACHE_BYTES": str(2**20),
    "PYTHONPATH": str(Path(__file__).parent / "clock"),
}
_RECORDED_S = 60


@dataclass
class Host:
    """Server of one machine, which tests may kill and restart."""

    home: Path
    base: Path
    admin_key: str
    settings: dict[str, str]
    port: int = field(default_factory=free_port)
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and return when it is ready."""
        self.home.mkdir(exist_ok=True)
        self.set_clock(0)
        context = serving(
            self.home, self.base, self.admin_key, port=self.port, **self.settings, FAULTS_CLOCK=str(self._clock)
        )
        self.server: Server = self._running.enter_context(context)

    def stop(self) -> None:
        """Stop the server with all its processes, unless it has ended already."""
        self._running.close()

    def set_clock(self, offset_s: float) -> None:
        """Shift the server's time of day by this offset from now on."""
        self._clock.with_suffix(".new").write_text(str(offset_s))
        self._clock.with_suffix(".new").rename(self._clock)

    @property
    def _clock(self) -> Path:
        return self.home / "clock"


@dataclass
class Site:
    """Whole site, from the applications' keys to the database.

    Attributes:
        units: two tenants, each with its own adapter, which have slots.
        cold: one adapter of each unit; requested in turn, these are neither in a slot nor on the disk.
        adapters: adapters that the units have published.
        made: keys whose creation was confirmed.
    """

    host: Host
    postgres: Postgres
    database: Proxy
    store: Proxy
    endpoint: str
    units: list[Unit]
    cold: list[Unit]
    adapters: dict[str, Path]
    made: list[str] = field(default_factory=list)

    def admin(self) -> httpx.Client:
        return self.host.server.client(self.host.admin_key)

    def make_key(self) -> str:
        """Create a key of the first unit; return ``ok`` or the error's code."""
        with self.admin() as admin:
            answer = admin.post(f"/admin/tenants/{self.units[0].slug}/keys", json={"name": "made"})
        if answer.status_code != 201:
            return str(answer.json()["error"]["code"])
        self.made.append(answer.json()["key"])
        return "ok"

    def sql(self, statement: str, *parameters: Any, database: str = "tenora") -> list[tuple[Any, ...]]:
        """Run SQL on PostgreSQL directly, without the proxy."""
        place = str(self.postgres.socket.parent)
        with psycopg.connect(host=place, user="postgres", dbname=database, autocommit=True) as connection:
            found = connection.execute(statement.encode(), parameters or None)
            return list(found.fetchall()) if found.description else []

    def check_promises(self, promises: Iterable[Promise]) -> None:
        """Check that no confirmed result is lost: every complete answer has its record, and every key works."""
        wanted = {promise.request_id: promise.unit for promise in promises}
        statement = "SELECT request_id, slug FROM usage JOIN tenants ON tenants.id = tenant_id WHERE status = 200"
        until(lambda: wanted.items() <= dict(self.sql(statement)).items(), _RECORDED_S)
        for key in self.made:
            with self.host.server.client(key) as client:
                assert client.get("/v1/models").status_code == 200

    def publish(self, directory: Path) -> str:
        """Publish an adapter for the first unit; return ``ok`` or the error's code."""
        answer = self.host.server.publish(self.units[0].slug, f"new-{directory.name}", directory)
        return "ok" if answer.is_success else str(answer.json()["error"]["code"])

    def metric(self, name: str) -> float:
        return self.host.server.metric(name)

    def wait_ready(self) -> float:
        """Wait until the server reports that it is ready; return the time."""
        self.host.server.wait_ready()
        return time.monotonic()


@contextlib.contextmanager
def running_site(folder: Path, demo: Demo) -> Iterator[Site]:
    with postgres_server() as postgres, s3_server() as endpoint:
        s3_client(endpoint).create_bucket(Bucket=BUCKET)
        run_on_server(postgres.url, "CREATE DATABASE tenora")
        with Proxy(postgres.socket) as database, Proxy(("127.0.0.1", int(endpoint.rpartition(":")[2]))) as store:
            settings = SETTINGS | {
                "TENORA_DATABASE_URL": f"postgresql+psycopg://postgres@127.0.0.1:{database.port}/tenora",
                "TENORA_S3_ENDPOINT_URL": f"http://127.0.0.1:{store.port}",
            }
            host = Host(folder / "one", demo.base, set_up(folder / "one", demo.base, **settings), settings)
            try:
                host.start()
                units, cold = _populate(host, demo, folder)
                yield Site(host, postgres, database, store, endpoint, units, cold, demo.adapters)
            finally:
                host.stop()


def variants(folder: Path, source: Path, count: int, *, scale: float = 1) -> Iterator[Path]:
    """Create adapters like this one with distinct weights and twice the rank.

    The added half is zero. It makes the adapters so large that few fit this server's disk and memory.
    """
    config = json.loads((source / "adapter_config.json").read_text())
    rank = config["r"]
    config |= {"r": 2 * rank, "lora_alpha": 2 * config["lora_alpha"]}
    weights = load_file(source / "adapter_model.safetensors")
    for number in range(count):
        directory = folder / str(number)
        directory.mkdir()
        (directory / "adapter_config.json").write_text(json.dumps(config))
        factor = scale + number / 100
        wide = {
            name: pad(tensor, (0, 0, 0, rank)) if ".lora_A." in name else pad(tensor, (0, rank)) * factor
            for name, tensor in weights.items()
        }
        save_file(wide, directory / "adapter_model.safetensors", metadata={"format": "pt"})
        yield directory


def _populate(host: Host, demo: Demo, folder: Path) -> tuple[list[Unit], list[Unit]]:
    """Publish the demo's adapters and some cold ones; record their answers before any fault."""
    server = host.server
    units = [Unit(slug, server.tenant(slug), slug) for slug in demo.adapters]
    for unit in units:
        assert server.publish(unit.slug, unit.model, demo.adapters[unit.slug]).status_code == 201
    # With a limit, each of its requests is counted in the database.
    with server.client(host.admin_key) as admin:
        limits = {"limits": {"requests_per_minute": 1_000_000}}
        assert admin.patch(f"/admin/tenants/{units[1].slug}", json=limits).status_code == 200
    first, cold = units[0], []
    for number, directory in enumerate(variants(folder, demo.adapters[first.slug], 8)):
        answer = server.publish(first.slug, f"cold-{number}", directory)
        assert answer.status_code == 201, answer.text
        cold.append(Unit(first.slug, first.key, f"cold-{number}"))
    for unit in (*units, *cold):
        unit.answers = {prompt: _whole_answer(server, unit, prompt) for prompt in PROMPTS}
    assert units[0].answers != units[1].answers
    return units, cold


def _whole_answer(server: Server, unit: Unit, prompt: str) -> str:
    with server.client(unit.key) as client:
        return str(client.post("/v1/completions", json=unit.body(prompt)).json()["choices"][0]["text"])
