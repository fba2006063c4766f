"""Servers of the workload ``adapters``: Tenora and its rivals, with the same adapters and slots."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from rich.progress import Progress

from app.lab.bench import rivals
from app.lab.bench.grid import RANKS, Options
from app.lab.bench.servers import Server


class Fleet:
    """Servers of a round.

    Args:
        home: folder that keeps published adapters between runs.
        folder: folder for the servers' files.

    Attributes:
        settings: settings of both sides in the last round.
    """

    def __init__(
        self,
        options: Options,
        base: Path,
        adapters: Mapping[str, Path],
        *,
        home: Path,
        folder: Path,
        progress: Progress,
    ) -> None:
        self._options, self._base, self._adapters, self._home, self._folder = options, base, adapters, home, folder
        self._progress, self._task = progress, progress.add_task("adapters published", total=len(adapters))
        self.settings: dict[str, Any] = {}

    def start(self, stack: ExitStack, number: int) -> dict[str, Server]:
        """Start all servers and return them by name. They run side by side, since an idle engine uses no CPU."""
        options, folder = self._options, self._folder / f"round-{number}"
        rank = next(rank for rank in RANKS if rank >= max(options.ranks))
        settings = {
            "TENORA_ENGINE__MAX_LORAS": options.slots,
            "TENORA_ENGINE__MAX_LORA_RANK": str(rank),
            **options.settings,
        }
        tenants = {name: f"tenant-{index % options.tenants}" for index, name in enumerate(self._adapters)}
        tenora = stack.enter_context(
            rivals.tenora(
                self._base,
                self._adapters,
                home=self._home,
                folder=folder / "tenora",
                tenants=tenants,
                settings=settings,
                on_published=lambda: self._progress.advance(self._task),
            )
        )
        self._progress.update(self._task, visible=False)  # the next round reuses what this one published
        slots = int(shown_engine(tenora)["slots"]["total"]) if options.slots == "auto" else int(options.slots)
        host = options.host_adapters or slots * (4 if slots >= 64 else 2)
        arguments = rivals.vllm_arguments(self._base, slots=slots, host_adapters=host, settings=settings)
        self.settings = {
            "slots": slots,
            "tenora": {"serve": "tenora server serve", "settings": settings},
            "vllm": {"serve": f"python -m {rivals.VLLM_MODULE}", "arguments": arguments},
        }
        servers_by_name = {"tenora": tenora}
        servers_by_name["vllm"] = stack.enter_context(
            rivals.vllm(self._base, self._adapters, arguments=arguments, folder=folder / "vllm")
        )
        if "peft" in options.rivals:
            servers_by_name["peft"] = stack.enter_context(
                rivals.peft(self._base, self._adapters, folder=folder / "peft")
            )
        if "base" in options.rivals:
            servers_by_name["base"] = rivals.base_only(tenora)
        return servers_by_name


def shown_engine(server: Server) -> dict[str, Any]:
    """Fetch the engine status of a running Tenora."""
    answer = httpx.get(f"{server.url}/admin/engine", headers=server.admin_headers, trust_env=False, timeout=30)
    answer.raise_for_status()
    status: dict[str, Any] = answer.json()
    return status
