"""Client side of ``tenora server serve --demo``: prepare models, database and keys, then publish the adapters."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import httpx
from rich.progress import Progress

from app.cli.registry import issue_platform_key, prepare, works_for_platform
from app.cli.setup import report_failures
from app.demo.publish import PublishingFailed, console_sign_in, example_calls, publish_demo
from app.demo.train import Demo, ensure_demo
from app.engine.vllm.requirements import is_cpu_build
from app.served_base import base_name
from app.settings import Settings
from tenora_client.cli.connection import read_demo
from tenora_client.cli.output import USAGE, fail, note, stderr

_GENERATION = "override_generation_config"
_READY_S = 600
_POLL_S = 0.5
_POLL_TIMEOUT_S = 30
_NOTE_EVERY_S = 30
# Timeout in seconds. An upload is answered after its validation.
_TIMEOUT_S = 600


def demo_settings(settings: Settings) -> Settings:
    """Return the settings with defaults for the demo. Explicit settings win.

    - On a CPU the dtype is float32, in which the small models were trained. A GPU serves no adapters in float32.
    - Decoding is greedy: with sampling, small models garble many answers.
    - Metrics need no key.
    """
    engine = settings.engine
    dtype = "float32" if engine.dtype == "auto" and is_cpu_build() else engine.dtype
    extra = {_GENERATION: {"temperature": 0}} | engine.extra_args
    changed: dict[str, object] = {"engine": engine.model_copy(update={"dtype": dtype, "extra_args": extra})}
    if "metrics_key_required" not in settings.model_fields_set:
        changed["metrics_key_required"] = False
    return settings.model_copy(update=changed)


def prepare_demo(settings: Settings, url: str) -> Callable[[], str | None]:
    """Create the demo's models, HOME, the database and a platform key. Keep those that exist. This blocks.

    Returns:
        Function to run while the server starts. It waits until the server is ready, publishes the adapters over HTTP
        and prints calls to paste. It returns the reason of a failure, or None.
    """
    if settings.base_model:
        fail("--demo trains and serves a small base model. Unset TENORA_BASE_MODEL.", USAGE)
    with report_failures():
        prepare(settings)
        note("Preparing the demo models. The first start trains them, which takes about half a minute.")
        with Progress(console=stderr(), transient=True) as progress:
            demo = ensure_demo(settings.home, progress)
        admin_key = asyncio.run(_admin_key(settings))
    note(f"Starting the engine. {url} answers in less than a minute.")
    return lambda: _publish(settings, url, demo, admin_key)


async def _admin_key(settings: Settings) -> str:
    """Return the key of an earlier start if it is still valid, else a new one."""
    demo = read_demo(settings.home)
    if demo is not None and await works_for_platform(settings, demo.admin_key):
        return demo.admin_key
    key = await issue_platform_key(settings, force=True)
    if key is None:
        raise ValueError("No platform key could be issued.")
    return key.text


def _publish(settings: Settings, url: str, demo: Demo, admin_key: str) -> str | None:
    name = base_name(settings)
    try:
        with httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client:
            if not _becomes_ready(client):
                return f"The server was not ready after {_READY_S} s. Read its log."
            access = publish_demo(client, admin_key=admin_key, home=settings.home, demo=demo, base_model=name)
    except (PublishingFailed, httpx.TransportError, OSError) as error:
        return f"The demo could not be published: {error}."
    print(f"{example_calls(access, demo)}\n\n{console_sign_in(access)}", flush=True)  # noqa: T201 - the result of the command
    note(f"\nServing on {url}. The keys are in {settings.home / 'demo.json'}. Press Ctrl-C to stop.")
    return None


def _becomes_ready(client: httpx.Client) -> bool:
    started_at = noted_at = time.monotonic()
    while time.monotonic() < started_at + _READY_S:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/health/ready", timeout=_POLL_TIMEOUT_S).is_success:
                return True
        if time.monotonic() > noted_at + _NOTE_EVERY_S:
            noted_at = time.monotonic()
            note("Still starting.")
        time.sleep(_POLL_S)
    return False
