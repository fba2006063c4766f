"""Cost model of the simulated engine: seconds of a step, a load and a copy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost parameters in seconds. See docs/decisions/0041-cost-model-of-the-simulator.md for the defaults.

    The cost of a step is linear in its work. To model another machine:

    - Fit the four step parameters to the engine's steps with different batches.
    - Fit the three of a load to ``LoadPhases`` of its answers.

    Attributes:
        step_s: fixed cost of a step.
        sequence_s: cost of each sequence that decodes a token.
        prefill_token_s: cost of each prompt token.
        adapter_s: cost of each distinct adapter in the batch.
        fetch_s: transfer from the blob store to the node's disk, once per version.
        stage_s_per_byte: transfer from the disk to host memory.
        copy_s, copy_s_per_byte: transfer from host memory to a slot, during which the engine computes nothing.
        copy_chunk_s: maximum copy time between two steps.
    """

    step_s: float = 3.5e-3
    sequence_s: float = 0.11e-3
    prefill_token_s: float = 0.01e-3
    adapter_s: float = 0.4e-3
    fetch_s: float = 0.2
    stage_s_per_byte: float = 0.14 / 40e6
    copy_s: float = 0.5e-3
    copy_s_per_byte: float = 0.022 / 40e6
    copy_chunk_s: float = 8e-3

    def step(self, sequences: int, prefill_tokens: int, adapters: int) -> float:
        """Seconds of one step, in which every sequence gets one token."""
        return (
            self.step_s
            + self.sequence_s * sequences
            + self.prefill_token_s * prefill_tokens
            + self.adapter_s * adapters
        )

    def requests_per_s(self, window: int, prompt_tokens: float, output_tokens: float) -> float:
        """Requests per second with one adapter and a full batch of ``window`` sequences of these mean lengths."""
        decode = output_tokens * self.step(window, 0, 1) / window
        return 1 / (decode + self.prefill_token_s * prompt_tokens)
