"""Training settings of the demo, and the stamp that invalidates a demo trained with other settings."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

_SOURCES = ("corpus.toml", "chat_template.jinja", "corpus.py", "models.py")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes and lengths of the training.

    Attributes:
        context_length: context in tokens. Rotary positions allow far more than the training texts have.
        rank: rank of both adapters.
        base_steps, adapter_steps: number of optimizer steps.
    """

    seed: int = 7
    vocab_size: int = 768
    hidden_size: int = 128
    layers: int = 2
    context_length: int = 2048
    rank: int = 8
    batch_size: int = 16
    base_steps: int = 400
    base_learning_rate: float = 5e-3
    adapter_steps: int = 220
    adapter_learning_rate: float = 1e-2

    @property
    def stamp(self) -> str:
        """SHA-256 (hex) over these settings, the training texts and the training code."""
        digest = hashlib.sha256(repr(self).encode())
        for name in _SOURCES:
            digest.update(hashlib.sha256(Path(__file__).with_name(name).read_bytes()).digest())
        return digest.hexdigest()
