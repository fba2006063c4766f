"""What Tenora adds to vLLM's worker process, reached by ``collective_rpc``."""

import torch

#: No version has this id: version rows start at 1.
_ZERO_ADAPTER = 0


class WorkerExtension:
    """Mixed into vLLM's worker class. Names start with ``tenora_`` so that none can clash with vLLM's."""

    def tenora_prepare(self, *, reserve_zero_slot: bool) -> None:
        """Make a fresh CPU worker safe for what clients send; call once, before the first request."""
        if torch.cpu._is_amx_tile_supported():
            # A one-token prompt as the very first request would die of SIGILL otherwise.
            torch.cpu._init_amx()
        if reserve_zero_slot:
            self._tenora_reserve_zero_slot()

    def _tenora_reserve_zero_slot(self) -> None:
        """Keep the last LoRA slot zero: CPU kernels read it (index -1) for tokens without an adapter."""
        manager = self.model_runner.lora_manager._adapter_manager  # type: ignore[attr-defined]  # of vLLM's worker
        last = manager.lora_slots - 1
        for module in manager.modules.values():
            module.reset_lora(last)
        manager.lora_index_to_id[last] = _ZERO_ADAPTER
        manager._active_adapters[_ZERO_ADAPTER] = None
        manager._active_adapters.pin(_ZERO_ADAPTER)
