"""What a step, a load and a copy cost on a machine: the parameters of the simulated engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, as measured; the defaults are those of 2 CPU cores with a toy Llama (hidden size 128, 4 layers): a step
    as it fits the cells of ``tenora bench adapters``, a load as ``tenora bench coldload`` shows it. Only the fetch is
    assumed, of a store beyond a network.

    A step's price is linear in what it computes. To take it from another machine, fit the four step parameters to
    steps of the engine with different batches, and the three of a load to ``LoadPhases`` of its answers.

    Attributes:
        step_s: a step, however little is in it.
        sequence_s: each sequence that decodes a token in it.
        prefill_token_s: each prompt token computed in it.
        adapter_s: each distinct adapter among its sequences.
        fetch_s: from the blob store to the node's disk, once per version.
        stage_s_per_byte: from the disk to host memory.
        copy_s, copy_s_per_byte: from host memory to a slot; the engine computes nothing meanwhile.
        copy_chunk_s: most that is copied between two steps.
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
        """Seconds of one step: every sequence gets one token."""
        return (
            self.step_s
            + self.sequence_s * sequences
            + self.prefill_token_s * prefill_tokens
            + self.adapter_s * adapters
        )

    def requests_per_s(self, window: int, prompt_tokens: float, output_tokens: float) -> float:
        """What the engine serves with one adapter and a full batch of ``window`` sequences of these mean lengths."""
        decode = output_tokens * self.step(window, 0, 1) / window
        return 1 / (decode + self.prefill_token_s * prompt_tokens)
