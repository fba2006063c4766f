"""Tenora and its rivals, each started fresh and stopped at the end of its block.

| rival | server |
|---|---|
| ``tenora`` | ``tenora server serve`` on a separate HOME with all adapters published |
| ``vllm`` | vLLM's own server with the engine arguments that Tenora computes |
| ``peft`` | transformers and PEFT, one request at a time |
| ``base`` | one of these servers, with requests for its base model only |
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from app.lab.bench import servers
from app.lab.bench.publishing import TENANT, copy_home, make_home, settings_of
from app.lab.bench.servers import BASE_NAME, Server

VLLM_MODULE = "vllm.entrypoints.openai.api_server"

#: Tenora writes no access log in benchmarks either.
_VLLM_ARGUMENTS = ("--host", "127.0.0.1", "--disable-uvicorn-access-log")
#: Engine arguments that vLLM's server does not get. The base is passed by its launcher. The others name Tenora's code,
#: and the rival is unmodified vLLM.
_NOT_PASSED = frozenset(
    {"--model", "--worker-extension-cls", "--scheduler-cls", "--scheduling-policy", "--additional-config"}
)
_NONE: Mapping[str, str] = MappingProxyType({})


def _ignore() -> None:
    """Ignore progress."""


@contextmanager
def tenora(
    base: Path,
    adapters: Mapping[str, Path],
    *,
    home: Path,
    folder: Path,
    tenants: Mapping[str, str] | None = None,
    settings: Mapping[str, str] = _NONE,
    weights: Mapping[str, float] | None = None,
    on_published: Callable[[], None] = _ignore,
    module: str = "tenora_client",
) -> Iterator[Server]:
    """Run Tenora with these adapters published.

    Args:
        base: folder of the base model.
        adapters: folder by adapter name.
        home: folder that keeps published adapters for the next server.
        folder: folder of this server for its HOME and its log.
        tenants: tenant slug by adapter name. Adapters left out belong to one tenant.
        settings: ``TENORA_*`` without those of the model.
        weights: share of the engine by tenant slug, 1 for those left out.
        on_published: callback after each newly published adapter.
        module: module whose command ``server serve`` starts the server.

    Raises:
        ServerFailed: the server did not become ready.
        tenora_client.transport.Refused: the server refused a tenant or an adapter.
    """
    site = publish(
        base,
        adapters,
        home=home,
        folder=folder,
        tenants=tenants,
        settings=settings,
        weights=weights,
        on_published=on_published,
    )
    with serving(folder, site.environment, servers.free_port(), module) as server:
        yield site.of(server)


@dataclass(frozen=True, slots=True)
class Site:
    """HOME with published adapters.

    Attributes:
        environment: ``TENORA_*`` of its servers.
        headers: headers of requests by tenant slug.
        owners: tenant slug by adapter name.
        admin_headers: headers of admin API calls.
    """

    environment: dict[str, str]
    headers: Mapping[str, dict[str, str]]
    owners: Mapping[str, str]
    admin_headers: dict[str, str]

    def of(self, server: Server) -> Server:
        """Return a server on this HOME with its headers."""
        of_adapters = {name: self.headers[slug] for name, slug in self.owners.items()}
        return dataclasses.replace(
            server, headers=self.headers[TENANT], adapter_headers=of_adapters, admin_headers=self.admin_headers
        )


def publish(
    base: Path,
    adapters: Mapping[str, Path],
    *,
    home: Path,
    folder: Path,
    tenants: Mapping[str, str] | None = None,
    settings: Mapping[str, str] = _NONE,
    weights: Mapping[str, float] | None = None,
    on_published: Callable[[], None] = _ignore,
) -> Site:
    """Create HOME in a folder, with these adapters. The arguments are those of :func:`tenora`.

    Raises:
        tenora_client.transport.Refused: the server refused a tenant or an adapter.
    """
    owners = {name: (tenants or {}).get(name, TENANT) for name in adapters}
    environment, shares = _environment(base, settings), weights or {}
    kept = home / f"published-{_digest(base, environment, adapters, owners, shares)}"
    make_home(kept, environment, adapters, owners, shares, on_published)
    folder.mkdir(parents=True, exist_ok=True)
    admin_key, keys = copy_home(kept, folder / "home")
    return Site(environment, {slug: _bearer(key) for slug, key in keys.items()}, owners, _bearer(admin_key))


@contextmanager
def tenora_again(killed: Server, base: Path, *, folder: Path, settings: Mapping[str, str] = _NONE) -> Iterator[Server]:
    """Run a killed Tenora again, on its HOME and its port.

    Args:
        base, folder, settings: those of the killed server.

    Raises:
        ServerFailed: the server did not become ready.
    """
    with serving(folder, _environment(base, settings), killed.port, "tenora_client") as server:
        yield dataclasses.replace(killed, pid=server.pid)


@contextmanager
def vllm(
    base: Path, adapters: Mapping[str, Path], *, arguments: Sequence[str], folder: Path, register: bool = True
) -> Iterator[Server]:
    """Run vLLM's own server with these engine arguments.

    Args:
        arguments: engine arguments. See :func:`vllm_arguments`.
        folder: folder of the log.
        register: True to load the adapters in order before the server is ready, the last ones staying loaded. False to
            accept ``POST /v1/load_lora_adapter`` instead (:func:`load_body`).

    Raises:
        ServerFailed: the server did not become ready.
    """
    port = servers.free_port()
    command = [VLLM_MODULE, "--model", str(base), *arguments, *_VLLM_ARGUMENTS, "--port", str(port)]
    if register and adapters:
        command += ["--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
    env = servers.environment(**({} if register else {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}))
    folder.mkdir(parents=True, exist_ok=True)
    with servers.running("vllm", command, port=port, ready="/health", env=env, log=folder / "vllm.log") as server:
        yield server


@contextmanager
def peft(base: Path, adapters: Mapping[str, Path], *, folder: Path) -> Iterator[Server]:
    """Run the usual first approach of teams: transformers and PEFT, one request at a time, ``set_adapter`` before each.

    Raises:
        ServerFailed: the server did not become ready.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = folder / "adapters.json"
    names.write_text(json.dumps({name: str(path) for name, path in adapters.items()}), encoding="utf-8")
    port = servers.free_port()
    command = ["app.lab.bench.peft_server", "--base", str(base), "--adapters", str(names), "--port", str(port)]
    env, log = servers.environment(), folder / "peft.log"
    with servers.running("peft", command, port=port, ready="/health", env=env, log=log) as server:
        yield server


def base_only(server: Server) -> Server:
    """Send all requests for adapters to the base model of the same server: the upper bound of throughput."""
    return dataclasses.replace(server, name="base", only_base=True)


def load_body(name: str, path: Path) -> dict[str, str]:
    """Body of vLLM's ``POST /v1/load_lora_adapter``."""
    return {"lora_name": name, "lora_path": str(path)}


def vllm_arguments(base: Path, *, slots: int, host_adapters: int, settings: Mapping[str, str] = _NONE) -> list[str]:
    """Engine arguments that Tenora computes, for vLLM's own server.

    Arguments that name Tenora's code are removed. ``max_cpu_loras`` is replaced, since Tenora plans host memory itself.

    Args:
        slots: number of LoRA slots (``max_loras``).
        host_adapters: number of adapters that vLLM may keep in host memory (``max_cpu_loras``).
        settings: ``TENORA_*`` as for :func:`tenora`.
    """
    from app.engine.vllm.arguments import engine_arguments  # imports vLLM
    from app.engine.vllm.platform import on_cpu

    arguments = engine_arguments(
        settings_of(_environment(base, settings)), base, served_name=BASE_NAME, cpu=on_cpu(), slots=slots
    )
    places = arguments.index("--max-cpu-loras") + 1
    arguments[places] = str(max(host_adapters, slots))
    for flag in _NOT_PASSED & set(arguments):
        position = arguments.index(flag)
        del arguments[position : position + 2]
    return arguments


@contextmanager
def serving(folder: Path, environment: Mapping[str, str], port: int, module: str) -> Iterator[Server]:
    """Run Tenora on the HOME in this folder.

    Raises:
        ServerFailed: the server did not become ready.
    """
    env = servers.environment(**environment, TENORA_HOME=str(folder / "home"), TENORA_PORT=str(port))
    command = [module, "server", "serve"]
    log = folder / "tenora.log"
    with servers.running("tenora", command, port=port, ready="/health/ready", env=env, log=log) as server:
        yield server


def _environment(base: Path, settings: Mapping[str, str]) -> dict[str, str]:
    return {"TENORA_BASE_MODEL": str(base), "TENORA_BASE_MODEL_NAME": BASE_NAME, **settings}


def _digest(
    base: Path,
    settings: Mapping[str, str],
    adapters: Mapping[str, Path],
    owners: Mapping[str, str],
    weights: Mapping[str, float],
) -> str:
    """Digest of all inputs that determine the content of a published HOME."""
    from app.database.migrate import head_revision

    rank = settings.get("TENORA_ENGINE__MAX_LORA_RANK")
    paths = {name: str(path) for name, path in adapters.items()}
    parts = (head_revision(), str(base), rank, paths, dict(owners), dict(weights))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
