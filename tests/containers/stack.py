"""The compose stack over podman's socket: two servers behind nginx with TLS, PostgreSQL and S3.

The images of PostgreSQL, S3 and nginx are Debian's programs. All else is deploy/container/compose.yml.
"""

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from app.demo.train import Demo
from tests.containers.hardened import SETTINGS, answers, oracle, publish, requests_of, wait_ready
from tests.containers.image import IMAGE
from tests.containers.podman import ROOT, Container, Watch, build, podman, run
from tests.endurance.traffic import SOUND, Traffic
from tests.support.parity import QUESTIONS
from tests.support.server import free_port, until

IMAGES = Path(__file__).with_name("images")
SOURCE = ROOT / "deploy" / "container"
PROJECT = "tenora-stack"
SERVERS = {"tenora": "172.30.77.10", "tenora-2": "172.30.77.11"}
START_S, STOP_S, ANSWERS = 600, 120, 60


class PublicTraffic(Traffic):
    """Clients that know the certificate of nginx."""

    certificate = ""

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=120, verify=self.certificate, trust_env=False)


def run_stack(demo: Demo, watch: Watch, folder: Path) -> None:
    """Run the stage.

    Raises:
        AssertionError: the stack behaves otherwise than its description.
    """
    for name in ("postgres", "s3", "nginx"):
        build(f"localhost/tenora-test-{name}", IMAGES / f"{name}.Dockerfile", context=IMAGES)
    watch.lap("images of the other services")
    port = free_port()
    write(folder, demo, port)
    with ExitStack() as stack:
        compose = stack.enter_context(running(folder))
        stack.callback(compose, "down", "--volumes", "--timeout", "30")
        stack.enter_context(health_checks())
        try:
            compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", str(START_S))
            watch.lap("stack is up")
            url, certificate = f"https://127.0.0.1:{port}", folder / "container/secrets/tls_certificate.pem"
            context = {"verify": str(certificate)}
            wait_ready(url, lambda: compose("logs", "--no-color"), **context)
            keys = use(demo, watch, compose, url, context)
            restart(url, context, keys, watch)
        except (AssertionError, RuntimeError, TimeoutError):
            print(compose("logs", "--no-color"), flush=True)
            raise


@dataclass(frozen=True)
class Keys:
    """The platform's key, and one of the tenant."""

    admin: str
    app: str


def use(demo: Demo, watch: Watch, compose: Any, url: str, context: dict[str, Any]) -> Keys:
    """Set up the registry, publish inside, and ask from outside."""
    init = ("exec", "-T", "tenora", "/opt/tenora/bin/tenora", "server", "init", "--json")
    admin_key = json.loads(compose(*init))["key"]
    inside = f"http://{SERVERS['tenora']}:8000"
    key = publish(inside, admin_key, demo)
    assert answers(url, key, **context) == oracle(demo)
    for path in ("/admin/tenants", "/metrics", "/docs", "/openapi.json"):
        assert httpx.get(url + path, trust_env=False, **context).status_code == 404, path
    until(lambda: requests_of(inside, admin_key) == 3 * len(QUESTIONS), 30)
    watch.lap("published inside, right answers outside")
    return Keys(admin_key, key)


def restart(url: str, context: dict[str, Any], keys: Keys, watch: Watch) -> None:
    """Restart both servers in turn under load. No request may fail."""
    traffic = PublicTraffic(
        url, keys.app, ["", "pricing", "supply-chain"], clients=4, requests=10**9, seed=1, manners=SOUND
    )
    traffic.certificate = context["verify"]
    asking = threading.Thread(target=asyncio.run, args=(traffic.run(),))
    asking.start()
    try:
        for name, address in SERVERS.items():
            see_more(traffic)
            server = Container(f"{PROJECT}-{name}-1")
            podman("stop", "--time", str(STOP_S), server.name)
            assert server.wait(STOP_S) == 0, server.logs()[-3000:]
            see_more(traffic)
            podman("start", server.name)
            wait_ready(f"http://{address}:8000", server.logs)
            # A container has a new MAC address after a start under podman, which nginx learns within a minute.
            until(lambda address=address: is_asked(address, keys.admin), 120)
        see_more(traffic)
    finally:
        traffic.stop()
        asking.join()
    print(f"outcomes of requests during the restarts: {dict(traffic.seen.outcomes)}", flush=True)
    assert set(traffic.seen.outcomes) == {"200"}, traffic.seen.outcomes
    watch.lap("restarted in turn under load")


def is_asked(address: str, admin_key: str) -> bool:
    """Return whether a server received inference since its start."""
    headers = {"authorization": f"Bearer {admin_key}"}
    answer = httpx.get(f"http://{address}:8000/metrics", headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text
    return 'route="/v1/completions"' in answer.text


def see_more(traffic: Traffic) -> None:
    enough = traffic.seen.sent + ANSWERS
    until(lambda: traffic.seen.sent >= enough, 300)


def write(folder: Path, demo: Demo, port: int) -> None:
    """Write a copy of the shipped files, their secrets, and what differs here."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCE, folder / "container", ignore=shutil.ignore_patterns("secrets"))
    shutil.copytree(SOURCE.with_name("nginx"), folder / "nginx")
    shutil.copytree(demo.base, folder / "models" / "base")
    run("chmod", "-R", "a+rX", str(folder / "models"))
    run("sh", str(folder / "container/secrets.sh"))
    # All clients have one address here.
    public = folder / "nginx/tls.conf"
    public.write_text(public.read_text().replace("rate=50r/s", "rate=5000r/s"))
    upstream = folder / "container/upstream.conf"
    first, second = (f"server {address}:8000 max_fails=0;" for address in SERVERS.values())
    upstream.write_text(upstream.read_text().replace(first, f"{first} {second}"))
    (folder / "container/override.yml").write_text(yaml.safe_dump(override(folder)))
    os.environ |= {
        "TENORA_MODELS": str(folder / "models"),
        "TENORA_BASE_MODEL": "/models/base",
        "TENORA_IMAGE": IMAGE,
        "TENORA_MEMORY": "6g",
        "TENORA_LISTEN": f"127.0.0.1:{port}",
        "POSTGRES_IMAGE": "localhost/tenora-test-postgres",
        "S3_IMAGE": "localhost/tenora-test-s3",
        "NGINX_IMAGE": "localhost/tenora-test-nginx",
    }


def override(folder: Path) -> dict[str, Any]:
    """Return the compose file of what differs here: the engine's settings, and a second server."""
    written = yaml.safe_load((folder / "container/compose.yml").read_text())
    small = dict(setting.split("=", 1) for setting in SETTINGS if "BASE_MODEL=" not in setting)
    # podman adds a limit of processes to these that a machine may not allow.
    limits = {"ulimits": {"nofile": 20000, "nproc": 4096}}
    first = {"environment": small} | limits
    second = written["services"]["tenora"]
    second = second | {"environment": second["environment"] | small} | limits
    second |= {"networks": {"inside": {"ipv4_address": SERVERS["tenora-2"]}}}
    second |= {"volumes": ["home-2:/var/lib/tenora", *second["volumes"][1:]]}
    # moto asks for no signature; its program takes no arguments of the other one.
    services = {"tenora": first, "tenora-2": second, "s3": {"command": []}}
    return {"services": services, "volumes": {"home-2": {}}}


@contextmanager
def running(folder: Path) -> Iterator[Any]:
    """Serve podman's API on a socket, and yield a function that runs compose there."""
    socket = folder / "podman.sock"
    service = subprocess.Popen(["podman", "system", "service", "--time=0", f"unix://{socket}"])
    program = str(ROOT / ".containers/tools/bin/compose")
    files = [f"--file={folder / 'container' / name}" for name in ("compose.yml", "override.yml")]

    def compose(*arguments: str) -> str:
        environment = os.environ | {"DOCKER_HOST": f"unix://{socket}"}
        return run(program, f"--project-name={PROJECT}", *files, *arguments, env=environment)

    try:
        until(socket.exists, 30)
        yield compose
    finally:
        service.terminate()
        service.wait()


@contextmanager
def health_checks() -> Iterator[None]:
    """Run the health checks of the stack each second. podman leaves that to systemd, which is not everywhere."""
    ended = threading.Event()

    def check() -> None:
        while not ended.is_set():
            listed = podman("ps", "--filter", f"name={PROJECT}", "--filter", "health=starting", "--format={{.Names}}")
            for name in listed.split():
                subprocess.run(["podman", "healthcheck", "run", name], capture_output=True, check=False)
            time.sleep(1)

    checking = threading.Thread(target=check)
    checking.start()
    try:
        yield
    finally:
        ended.set()
        checking.join()
