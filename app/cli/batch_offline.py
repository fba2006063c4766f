"""``tenora batch run --offline``: a server without HTTP in this process, which runs the batches of one HOME."""

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop
from pydantic import ValidationError

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from app.settings import Settings
from app.support.home import exclusive
from tenora_client.answers import read
from tenora_client.atomic_files import new_file
from tenora_client.batches.service import Backend, BatchService
from tenora_client.cli.output import USAGE, fail, messages_on, note
from tenora_client.errors import Refused, refusal
from tenora_client.progress import OnProgress, Progress
from tenora_client.types import Batch, File

if TYPE_CHECKING:
    from app.domain.access import Caller
    from app.wiring.container import Container

#: Name of the key that batches are charged to. Its text is discarded.
_KEY_NAME = "offline batches"
_SCOPES = ("inference", "batch")
_LOG = "offline.log"
#: Seconds for lines in flight at an interrupt. The same command runs the others later.
_GRACE_S = 5.0
_PAGE = 100

T = TypeVar("T")


def offline_backend(tenant: str | None) -> Backend:
    """Return the engine of this machine with the data of HOME.

    Args:
        tenant: slug of the batch's owner; None: the only tenant.
    """
    settings = load_settings()
    return Backend(f"offline, {settings.home.resolve()}", _opened(settings, tenant))


@contextmanager
def _opened(settings: Settings, tenant: str | None) -> Iterator[BatchService]:
    """Start the server, and end the command with one sentence if it cannot start or refuses a request."""
    from app.cli.serve import check_start

    with ExitStack() as stack:
        with report_failures():
            if not settings.home.is_dir():
                fail(f"{settings.home} does not exist. Set TENORA_HOME, or run `tenora server init` first.", USAGE)
            stack.enter_context(exclusive(settings.home))
        settings = _adjusted(settings)
        check_start(settings)
        note(f"Starting the engine of this machine. Its log is {settings.home / _LOG}.")
        stack.enter_context(_logged(settings))
        with report_failures():
            server = stack.enter_context(_Server(settings))
            service = _OfflineBatches(server, server.call(lambda container: _owner(container, tenant)))
        try:
            yield service
        except Refused as refused:
            fail(str(refused))


def _adjusted(settings: Settings) -> Settings:
    if not settings.base_model:
        from app.cli.demo import demo_settings

        settings = demo_settings(settings)
    return settings.model_copy(update={"grace_seconds": min(_GRACE_S, settings.grace_seconds)})


@contextmanager
def _logged(settings: Settings) -> Iterator[None]:
    """Send the log of this process and of the engine to a file, so that the terminal shows the progress only.

    The file becomes standard error: libraries log there at their import, by handlers that nothing here knows.
    """
    import logging.config

    from app.engine.vllm.worker.fork_server import start_ahead
    from app.observability.logs import log_config, shared_with_vllm

    log = os.open(settings.home / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    terminal, before = os.dup(2), sys.stderr
    os.dup2(log, 2)
    os.close(log)
    sys.stderr = sys.__stderr__
    config = log_config(settings.log, os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper())
    try:
        # The engine's processes inherit the file.
        config["handlers"]["stderr"]["stream"] = "ext://sys.__stderr__"
        os.environ.update(shared_with_vllm(config, settings.home, os.environ))
        start_ahead()
        logging.config.dictConfig(config)
        with os.fdopen(os.dup(terminal), "w", buffering=1) as shown, messages_on(shown):
            yield
    finally:
        sys.stderr = before
        os.dup2(terminal, 2)
        os.close(terminal)


class _Server:
    """Server without HTTP in a thread with its event loop.

    Raises:
        as :func:`app.wiring.lifecycle.running`
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = uvloop.new_event_loop()
        self._started: Future[Container] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="offline")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._container = self._started.result()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(self, work: "Callable[[Container], Coroutine[Any, Any, T]]") -> T:
        """Run a coroutine in the server's event loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(self._container), self._loop).result()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _main(self) -> None:
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        serving.cancel()  # without effect if its start failed
        await serving

    async def _serve(self) -> None:
        from app.wiring.lifecycle import running

        with suppress(asyncio.CancelledError):
            async with running(self._settings, None) as container:
                self._started.set_result(container)
                await asyncio.Event().wait()

    def _end(self) -> None:
        with suppress(RuntimeError):  # the loop is closed after a failed start
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


async def _owner(container: "Container", tenant: str | None) -> "Caller":
    """Return the caller of the tenant's key for offline batches, which is created at the first use.

    Raises:
        NotFound: there is no such tenant.
        InvalidRequest: the HOME has several tenants, and none is named.
    """
    from app.database import keys
    from app.domain.errors import InvalidRequest, NotFound

    gateway = container.gateway
    slugs = [tenant] if tenant is not None else await _tenants(container)
    if len(slugs) != 1:
        raise InvalidRequest(
            f"HOME has the tenants {', '.join(slugs)}. Name the owner of the batch: --tenant."
            if slugs
            else "HOME has no tenant. Create one and publish an adapter first: run `tenora server serve`."
        )
    page = await gateway.keys.list(slugs[0])
    found = [key for key in page.data if key.name == _KEY_NAME and key.revoked_at is None and key.expires_at is None]
    while not found and page.next_cursor is not None:
        page = await gateway.keys.list(slugs[0], cursor=page.next_cursor)
        found = [key for key in page.data if key.name == _KEY_NAME and key.revoked_at is None]
    key = found[0] if found else (await gateway.keys.create(slugs[0], name=_KEY_NAME, scopes=_SCOPES, actor="cli")).key
    async with gateway.database.read() as connection:
        owner = await keys.find_owner(connection, key.id)
    if owner is None:
        raise NotFound(f"There is no tenant {slugs[0]!r}.", param="tenant")
    return owner.caller


async def _tenants(container: "Container") -> list[str]:
    page = await container.gateway.tenants.list()
    slugs = [tenant.slug for tenant in page.data]
    while page.next_cursor is not None:
        page = await container.gateway.tenants.list(cursor=page.next_cursor)
        slugs += [tenant.slug for tenant in page.data]
    return slugs


class _OfflineBatches:
    """Files and batches of one tenant in this process, through the services behind the routes."""

    goes_on = False

    def __init__(self, server: _Server, caller: "Caller") -> None:
        self._server, self._caller = server, caller
        self._tenant = caller.tenant_slug or ""

    def upload(self, path: Path, filename: str, on_progress: OnProgress) -> File:
        from app.api.file_schemas import FileOut
        from app.domain.files import Purpose

        size = path.stat().st_size
        on_progress(Progress("sending", 0, size))

        async def work(container: "Container") -> Any:
            gateway = container.gateway
            room = await gateway.files.room(self._tenant)
            if size > room.bytes:
                raise room.refusal
            lifetime_s = int(gateway.settings.batch.file_days * 86400)
            return await gateway.files.create(
                self._tenant,
                path,
                purpose=Purpose.BATCH,
                filename=filename,
                lifetime_s=lifetime_s,
                actor=self._caller.key_id,
            )

        return read(File, _plain(FileOut.of(self._call(work))))

    def delete(self, file_id: str) -> None:
        self._call(lambda container: container.gateway.files.delete(self._tenant, file_id, actor=self._caller.key_id))

    def create(self, body: Mapping[str, Any]) -> Batch:
        from app.api.batch_schemas import BatchCreate

        try:
            new = BatchCreate.model_validate(dict(body)).to_batch()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise refusal(400, {"error": {"message": f"{field}: {first['msg']}.", "param": field}}) from None
        return _batch(self._call(lambda container: container.gateway.batches.create(self._caller, new)))

    def find(self, file_id: str) -> Batch | None:
        after: str | None = None
        while True:
            page = self._page(after)
            for batch in page.data:
                if batch.input_file_id == file_id:
                    return _batch(batch)
            if not page.has_more:
                return None
            after = page.data[-1].id

    def _page(self, after: str | None) -> Any:
        return self._call(lambda container: container.gateway.batches.list(self._caller, limit=_PAGE, after=after))

    def show(self, batch_id: str) -> Batch:
        return _batch(self._call(lambda container: container.gateway.batches.get(self._caller, batch_id)))

    def cancel(self, batch_id: str) -> Batch:
        return _batch(self._call(lambda container: container.gateway.batches.cancel(self._caller, batch_id)))

    def download(self, file_id: str, path: Path) -> None:
        async def work(container: "Container") -> None:
            async with container.gateway.files.open(self._tenant, file_id) as opened:
                with new_file(path) as part:
                    await asyncio.to_thread(shutil.copyfile, opened.path, part)

        self._call(work)

    def _call(self, work: "Callable[[Container], Coroutine[Any, Any, T]]") -> T:
        """Run a use case, and raise its error as a server's answer has it."""
        from adapters.errors import AdapterError
        from app.api.errors import openai_body, problem_of
        from app.domain.errors import TenoraError

        try:
            return self._server.call(work)
        except (TenoraError, AdapterError) as error:
            problem = problem_of(error)
            raise refusal(problem.row.status, openai_body(problem)) from error


def _batch(batch: Any) -> Batch:
    from app.api.batch_schemas import BatchOut
    from app.domain.clock import utc_now

    return read(Batch, _plain(BatchOut.of(batch, utc_now())))


def _plain(answer: Any) -> Any:
    return answer.model_dump(mode="json")
