"""``tenora server serve``: run the server in this process."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from app.engine.vllm.patches.ledger import switched_off
from app.engine.vllm.requirements import check_libraries
from app.observability.logs import chosen_format, log_config, shared_with_vllm
from app.observability.stderr_redirect import redirected_stderr
from app.ray.library import require_ray
from app.settings import Settings
from app.support.home import exclusive
from tenora_client.cli.output import fail

if TYPE_CHECKING:
    from app.cli.server import Server
    from app.engine.port import Engine
    from app.wiring.gateway import Gateway

#: Seconds. Longer than the 60 s of common load balancers, so that the balancer closes idle connections first.
_KEEP_ALIVE_S = 75
#: Maximum characters of a start error in the message. The log has all of it.
_REASON_CHARACTERS = 600

#: Background work in a thread. Returns the reason to stop the server, or None.
Companion = Callable[[], str | None]


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: TENORA_HOST)")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on (default: TENORA_PORT)")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Train the demo models, then publish and serve them")] = False,
) -> None:
    """Serve until SIGINT or SIGTERM."""
    settings = load_settings(host=host, port=port)
    asked, form = settings.log.format, chosen_format(settings.log)
    settings = settings.model_copy(update={"log": settings.log.model_copy(update={"format": form})})
    with ExitStack() as stack:
        if asked == "json":
            _redirect(stack, form)
        with report_failures():
            if settings.ray.address is None:
                check_libraries()
                switched_off(settings.engine.patches)  # raises, as it will in the engine's slow start
            else:
                require_ray()
        listener = stack.enter_context(closing(_listen(settings)))
        with report_failures():
            stack.enter_context(exclusive(settings.home))
        if demo:
            from app.cli.demo import demo_settings, prepare_demo

            # Keep the engine's log from burying the calls to paste.
            os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
            settings = demo_settings(settings)
            companion = prepare_demo(settings, _url(settings, listener))
        else:
            check_start(settings)
            companion = None
        _check_store(settings)
        with ExitStack() as running:
            if asked != "json":
                # Not earlier: until the server logs, the command speaks to people, and the demo shows its progress.
                _redirect(running, form)
            server = _server(settings, _addresses(settings, listener))
            has_started, problem = _run(server, listener, companion)
        if not has_started:
            _report_end(server)
        if problem is not None:
            fail(problem)


def _redirect(stack: ExitStack, form: Literal["json", "text"]) -> None:
    with report_failures():
        stack.enter_context(redirected_stderr(form))


def _listen(settings: Settings) -> socket.socket:
    """Bind the port before any slow work, so that a conflict fails at once.

    Connections are refused until the server can answer. A proxy then tries another server instead of waiting here.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        # Like create_server(), but without listen(), which uvicorn calls.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        fail(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror or error}. "
            "Choose another port with --port, or stop the server that uses it."
        )
    return listener


def _url(settings: Settings, listener: socket.socket) -> str:
    """URL of the server for clients on this machine, with the port that the system chose for port 0."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _addresses(settings: Settings, listener: socket.socket) -> tuple[str, ...]:
    """URLs of the server; for a wildcard address also the one that clients on this machine use."""
    local, port = _url(settings, listener), listener.getsockname()[1]
    if settings.host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return local, f"http://{socket.gethostname()}:{port}"
    return (local,)


def check_start(settings: Settings) -> None:
    """Report common mistakes before the slow start of the engine, which would log a traceback."""
    from app.cli.registry import check_pepper, check_schema
    from app.served_base import open_base
    from app.wiring.store import configured_store

    with report_failures():
        check_schema(settings)
        check_pepper(settings)
        open_base(settings)
        # Check the URL only: a store that does not answer now may do so later.
        configured_store(settings)


def _check_store(settings: Settings) -> None:
    from app.cli.registry import check_store_owner

    with report_failures():
        check_store_owner(settings)


def _run(server: "Server", listener: socket.socket, companion: Companion | None) -> tuple[bool, str | None]:
    """Run the server until it ends.

    Returns:
        Whether it had started, and the companion's problem, if it had one.
    """
    problems: list[str] = []
    if companion is not None:
        work = (server, companion, problems)
        threading.Thread(target=_accompany, args=work, name="companion", daemon=True).start()
    try:
        server.run(sockets=[listener])  # in the main thread, the only one that receives signals
    except SystemExit:
        return False, None
    return True, problems[0] if problems else None


def _server(settings: Settings, addresses: tuple[str, ...]) -> "Server":
    """Import the application, which takes seconds, and build its server."""
    logging = log_config(settings.log, os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper())
    with report_failures():
        # vLLM reads these variables at import.
        os.environ.update(shared_with_vllm(logging, settings.home, os.environ))
    if settings.ray.address is None:
        from app.engine.vllm.worker.fork_server import start_ahead

        start_ahead()
    # Restore the default handler: some imported modules swallow KeyboardInterrupt. Nothing needs a cleanup yet.
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    import uvicorn

    from app.cli.connections import allow_files, bounded
    from app.cli.server import Server
    from app.main import create_app

    signal.signal(signal.SIGINT, on_interrupt)
    app = create_app(settings, engine=_engine(settings))
    config = uvicorn.Config(
        app,
        loop="uvloop",
        # Uvicorn calls this like a protocol class.
        http=bounded(settings.limits),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        log_config=logging,
    )
    allow_files(settings.limits)
    announce = partial(_announce, addresses=addresses, form=chosen_format(settings.log))
    return Server(config, app, drain_s=settings.drain_seconds, grace_s=settings.grace_seconds, announce=announce)


def _engine(settings: Settings) -> "Engine | None":
    """Return the engine replicas, if the settings name a cluster; None for an engine in this process."""
    if settings.ray.address is None:
        return None
    from app.ray.cluster import open_transport
    from app.ray.engine import RayEngine
    from app.scheduling.admission_request import Bounds

    ray, queue = settings.ray, settings.queue
    return RayEngine(
        partial(open_transport, settings),
        start_s=ray.start_seconds,
        pin_copies=ray.pin_copies,
        bounds=Bounds(requests=queue.requests, tenant_requests=queue.tenant_requests, seconds=queue.seconds),
        expected_start_s=ray.expected_start_s,
    )


async def _announce(gateway: "Gateway", *, addresses: tuple[str, ...], form: Literal["json", "text"]) -> None:
    from app.cli import summary

    summary.show(await summary.Summary.of(gateway, addresses), form)


def _accompany(server: "Server", companion: Companion, problems: list[str]) -> None:
    """Run the companion. If it has a problem, keep it and stop the server."""
    if (problem := companion()) is not None:
        problems.append(problem)
        server.should_exit = True


def _report_end(server: "Server") -> NoReturn:
    """End a process whose server could not start, or was interrupted before it had started."""
    for number in server.signals:
        # Exit by the signal. Uvicorn does this only for a server that has started.
        signal.raise_signal(number)
    # vLLM's error messages span several lines.
    reason = " ".join(str(server.start_error or "").split())[:_REASON_CHARACTERS]
    fail(f"The server could not start: {reason or 'read its log for the cause.'}")
