"""Engine session: one run of the engine, from start to death or shutdown, with the adapters loaded in it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from adapters.cache import DiskCache
from app.domain.errors import EngineUnavailable
from app.engine.lifecycle.smoke_check import SmokeCheck
from app.engine.port import EngineCall, EngineRequest, Listener
from app.engine.residency.adapter_loader import AdapterLoader
from app.engine.residency.admission_queue import AdmissionQueue
from app.engine.residency.pinning import DesiredAdapters, Pins
from app.engine.residency.slot_time import SlotTime
from app.engine.residency.transfer import Transfers
from app.engine.vllm.instance import EngineInstance
from app.engine.vllm.output_log import OutputLog
from app.engine.vllm.watchdog import until_silent
from app.scheduling.admission_request import Bounds
from app.settings import QueueSettings, Settings

logger = logging.getLogger(__name__)


class EngineSession:
    """Running engine with its admission queue and its adapters."""

    def __init__(
        self,
        instance: EngineInstance,
        cache: DiskCache,
        settings: Settings,
        *,
        slots: int,
        notify: Listener,
        smoke: SmokeCheck,
    ) -> None:
        self.instance, self.smoke = instance, smoke
        self.slots, self.window = slots, settings.queue.window or instance.window
        self.queue = AdmissionQueue(
            slots=slots,
            window=self.window,
            # The engine sets sequences aside only when its own places are taken, which a smaller window prevents.
            aside=self.window if self.window >= instance.window else 0,
            max_age_s=settings.queue.max_age_s,
            bounds=_bounds(settings.queue),
            step_tokens=instance.step_tokens,
        )
        self.loader = AdapterLoader(
            Transfers(instance),
            cache,
            self.queue,
            slots=slots,
            host_bytes=settings.engine.host_bytes,
            notify=notify,
        )
        self.pins, self.slot_time = Pins(self.loader, slots=slots), SlotTime()
        self.dead, self.hung = instance.dead, False
        self._establishing: asyncio.Task[None] | None = None
        self._watchdog = asyncio.create_task(self._end_if_hung(settings.engine.hang_s))

    @classmethod
    async def launch(
        cls,
        arguments: list[str],
        cache: DiskCache,
        settings: Settings,
        *,
        base_name: str,
        slots: int,
        log: OutputLog,
        notify: Listener,
        begin: Callable[[EngineRequest], EngineCall],
        desired: DesiredAdapters,
    ) -> "EngineSession":
        """Start an engine. The desired adapters are loaded while it already answers.

        Args:
            begin: see :meth:`app.engine.port.Inference.begin`; used by smoke checks.

        Raises: as :meth:`EngineInstance.launch`.
        """
        instance = await EngineInstance.launch(
            arguments, kernel_configs=settings.home / "kernels", base_name=base_name, log=log
        )
        smoke = SmokeCheck(
            begin,
            base_name=base_name,
            context=instance.context,
            prompts=not settings.engine.lora_head,
        )
        session = cls(instance, cache, settings, slots=slots, notify=notify, smoke=smoke)
        session._establishing = asyncio.create_task(desired.establish(session.loader, session.pins))
        return session

    async def established(self) -> None:
        """Wait until each desired adapter is loaded or has failed."""
        if self._establishing:
            await asyncio.wait({self._establishing})

    async def end(self) -> None:
        self._watchdog.cancel()
        await asyncio.gather(self._watchdog, return_exceptions=True)
        if self._establishing:
            self._establishing.cancel()
            await asyncio.gather(self._establishing, return_exceptions=True)
        try:
            await self.instance.shutdown()
        finally:
            # Waiting requests must end even if the engine's processes do not.
            await self.loader.close()

    async def _end_if_hung(self, hang_s: float) -> None:
        with contextlib.suppress(EngineUnavailable):  # the engine has died already
            await until_silent(self.instance.adapters, hang_s)
            logger.error("The engine has not answered for %.0f s. Its processes are killed.", hang_s)
            self.hung = True
            await self.instance.kill()


def _bounds(settings: QueueSettings) -> Bounds:
    return Bounds(requests=settings.requests, tenant_requests=settings.tenant_requests, seconds=settings.seconds)
