"""Pool of processes that render chat templates, see :mod:`app.services.prompts.template_worker`.

Workers start on demand and serve all tenants. Each rendering runs in a child of its worker, so nothing carries over to
the next one. A tenant occupies at most half of the workers at a time.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from app.domain.errors import Busy
from app.services.prompts.template_worker import LENGTH, Limits
from app.settings import LimitSettings

_log = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[3]

# A worker ends its children itself. Wall-clock time means little on a busy machine, so it is the last resort.
_WALL_PER_CPU_SECOND = 10
_WALL_GRACE_S = 5
_WORKER_GRACE_S = 10


class TemplateFailed(Exception):
    """Raised when a template renders no text.

    Attributes:
        kind: ``syntax``, ``raised`` (by the template's ``raise_exception``), ``failed``, ``tools`` (it does not support
            tools), ``time``, ``memory`` or ``size``.
        line: line of the template that caused the error; None if there is none.
    """

    def __init__(self, kind: str, message: str, line: int | None) -> None:
        self.kind, self.message, self.line = kind, message, line
        super().__init__(f"line {line}: {message}" if line else message)


class TemplatePool:
    """Pool of template workers. Concurrent requests may share it."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = Limits(
            cpu_seconds=limits.template_seconds,
            wall_seconds=limits.template_seconds * _WALL_PER_CPU_SECOND + _WALL_GRACE_S,
            address_bytes=limits.template_address_bytes,
            output_bytes=limits.template_output_bytes,
        )
        self._places = asyncio.Semaphore(limits.template_workers)
        self._owners = _OwnerSemaphores(max(1, limits.template_workers // 2))
        self._idle: list[_Worker] = []
        self._work: set[asyncio.Task[dict[str, Any]]] = set()

    async def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, str],
        owner: str,
    ) -> str:
        """Render a conversation with a template, as ``apply_chat_template`` would.

        Args:
            variables: other names that the template may use, such as ``bos_token``.
            owner: slug of the requesting tenant; renderings beyond its share of the workers queue behind each other.

        Raises:
            TemplateFailed
            Busy: a worker failed.
        """
        request = {"template": template, "messages": messages, "tools": tools, "variables": dict(variables)}
        await self._owners.acquire(owner)
        try:
            await self._places.acquire()
        except BaseException:
            self._owners.release(owner)
            raise
        # An exchange with a worker cannot be interrupted, so it runs to its end even if the caller is cancelled.
        work = asyncio.create_task(self._exchange(json.dumps(request).encode()))
        self._work.add(work)
        work.add_done_callback(lambda done: self._finished(done, owner))
        reply = await asyncio.shield(work)
        if "text" in reply:
            return str(reply["text"])
        raise TemplateFailed(reply["kind"], reply["message"], reply["line"])

    async def close(self) -> None:
        """Stop all workers."""
        for work in self._work:
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        while self._idle:
            await self._idle.pop().end()

    def _finished(self, work: "asyncio.Task[dict[str, Any]]", owner: str) -> None:
        self._work.discard(work)
        self._places.release()
        self._owners.release(owner)
        if not work.cancelled():
            work.exception()  # mark as retrieved: the caller raises it, unless it was cancelled

    async def _exchange(self, request: bytes) -> dict[str, Any]:
        worker = self._idle.pop() if self._idle else None
        try:
            worker = worker or await _Worker.start(self._limits)
            async with asyncio.timeout(self._limits.wall_seconds + _WORKER_GRACE_S):
                reply = await worker.exchange(request)
        except BaseException as error:
            if worker:
                await worker.end()
            if not isinstance(error, OSError | EOFError | TimeoutError):
                raise
            _log.warning("A template worker failed: %r", error)
            raise Busy("Chat templates cannot be rendered at the moment. Try again later.", retry_after=1) from error
        self._idle.append(worker)
        return reply


class _Worker:
    """One worker process. It handles one request at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._input, self._output = (
            cast("asyncio.StreamWriter", process.stdin),
            cast("asyncio.StreamReader", process.stdout),
        )

    @classmethod
    async def start(cls, limits: Limits) -> "_Worker":
        arguments = ("-B", "-s", "-m", "app.services.prompts.template_worker", json.dumps(asdict(limits)))
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=PIPE,
                stdout=PIPE,
                cwd=_ROOT,
                env={"PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )
        )

    async def exchange(self, request: bytes) -> dict[str, Any]:
        self._input.write(LENGTH.pack(len(request)) + request)
        await self._input.drain()
        (length,) = LENGTH.unpack(await self._output.readexactly(LENGTH.size))
        reply: dict[str, Any] = json.loads(await self._output.readexactly(length))
        return reply

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # kills its process group, and with it the rendering child
        self._input.close()
        await self._process.wait()


@dataclass(slots=True)
class _OwnerSemaphore:
    permits: asyncio.Semaphore
    users: int = field(default=0)


class _OwnerSemaphores:
    """Semaphore per owner: at most ``places`` holders. Owners without holders or waiters are dropped."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._semaphores: dict[str, _OwnerSemaphore] = {}

    async def acquire(self, owner: str) -> None:
        semaphore = self._semaphores.setdefault(owner, _OwnerSemaphore(asyncio.Semaphore(self._places)))
        semaphore.users += 1
        try:
            await semaphore.permits.acquire()
        except BaseException:
            self._leave(owner)
            raise

    def release(self, owner: str) -> None:
        self._semaphores[owner].permits.release()
        self._leave(owner)

    def _leave(self, owner: str) -> None:
        semaphore = self._semaphores[owner]
        semaphore.users -= 1
        if semaphore.users == 0:
            del self._semaphores[owner]
