"""Seeded sampling on a CPU: a step that prefills only part of a prompt consumes no random number.

vLLM samples a token for every row of a step, and drops the token of a prompt that continues. Then it rewinds the
generator of a seeded request by an offset. CPU generators have no offset, so the engine died. Here the generator's
state is saved and restored instead.
"""

from typing import Any

import numpy as np
import torch


def keep_seeds(runner: Any) -> None:
    """Make this vLLM model runner rewind generators by their states.

    Args:
        runner: model runner V1, which CPU workers have.
    """
    sample, account = runner._sample, runner._bookkeeping_sync

    def of_dropped() -> dict[int, torch.Generator]:
        """Generators of the rows whose token is dropped, by row."""
        batch = runner.input_batch
        rows = np.nonzero(runner.discard_request_mask.np[: batch.num_reqs])[0]
        return {row: batch.generators[row] for row in rows.tolist() if row in batch.generators}

    def sampled(*args: Any, **kwargs: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in of_dropped().values()]
        output = sample(*args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return output

    def accounted(*args: Any, **kwargs: Any) -> Any:
        generators, dropped = runner.input_batch.generators, of_dropped()
        for row in dropped:
            del generators[row]
        try:
            return account(*args, **kwargs)
        finally:
            generators.update(dropped)

    runner._sample, runner._bookkeeping_sync = sampled, accounted
