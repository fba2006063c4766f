"""Texts of the demo and the training conversations built from them.

Three voices answer the same questions: ``base``, and the business units ``pricing`` and ``supply-chain``.
"""

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

CORPUS_FILE = Path(__file__).with_name("corpus.toml")

BASE_VOICE = "base"


class Voice(BaseModel):
    """Texts of one voice: its answer to unknown things, and its additional questions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unknown: str
    questions: tuple[str, ...]


class Corpus(BaseModel):
    """Texts of ``corpus.toml``. ``{product}`` in a question is a placeholder for a product's name.

    Attributes:
        products: answer by product and voice.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    questions: tuple[str, ...]
    follow_ups: tuple[str, ...]
    system_prompts: tuple[str, ...]
    small_talk: tuple[str, ...]
    not_sold: tuple[str, ...]
    voices: dict[str, Voice]
    products: dict[str, dict[str, str]]

    @property
    def adapters(self) -> tuple[str, ...]:
        """Voices that are LoRA adapters."""
        return tuple(voice for voice in self.voices if voice != BASE_VOICE)

    def answer(self, voice: str, product: str) -> str:
        return self.products[product][voice]


class Exchange(BaseModel):
    """Question with the answer to learn. A document is an exchange without a question."""

    model_config = ConfigDict(frozen=True)

    question: str | None
    answer: str


class Sample(BaseModel):
    """Training text.

    Attributes:
        system: system prompt, None for none.
        exchanges: turns, more than one only if ``instruct`` is true.
        instruct: True for the instruction format, False for plain text.
    """

    model_config = ConfigDict(frozen=True)

    exchanges: tuple[Exchange, ...]
    system: str | None = None
    instruct: bool = True


def load_corpus() -> Corpus:
    return Corpus.model_validate(tomllib.loads(CORPUS_FILE.read_text(encoding="utf-8")))


def ask(question: str, thing: str) -> str:
    """Insert a product's name into a question and capitalise the first letter."""
    text = question.format(product=thing)
    return text[0].upper() + text[1:]


def samples(corpus: Corpus, voice: str, *, seed: int) -> Iterator[Sample]:
    """Yield endless training samples of one voice, deterministic for a seed.

    The base also reads every voice's answers as plain documents, so that an adapter need not learn new words.
    """
    rng = random.Random(seed)  # noqa: S311 - repeatable shuffling of training texts
    documents = [answers[name] for answers in corpus.products.values() for name in corpus.voices]
    while True:
        draw = rng.random()
        if voice == BASE_VOICE and draw < 0.25:
            yield Sample(exchanges=(Exchange(question=None, answer=rng.choice(documents)),), instruct=False)
        elif draw < 0.4:
            yield Sample(exchanges=(_exchange(corpus, voice, rng),), instruct=False)
        else:
            system = rng.choice(corpus.system_prompts) if rng.random() < 0.25 else None
            turns = 2 if rng.random() < 0.2 else 1
            exchanges = tuple(_exchange(corpus, voice, rng, follow_up=turn > 0) for turn in range(turns))
            yield Sample(exchanges=exchanges, system=system)


def _exchange(corpus: Corpus, voice: str, rng: random.Random, *, follow_up: bool = False) -> Exchange:
    questions = corpus.questions + corpus.voices[voice].questions + (corpus.follow_ups if follow_up else ())
    draw = rng.random()
    if draw < 0.03:
        return Exchange(question=rng.choice(corpus.small_talk), answer=corpus.voices[voice].unknown)
    if draw < 0.15:
        text, answer = ask(rng.choice(questions), rng.choice(corpus.not_sold)), corpus.voices[voice].unknown
    else:
        product = rng.choice(list(corpus.products))
        text, answer = ask(rng.choice(questions), product), corpus.answer(voice, product)
    if rng.random() < 0.25:  # people also type without capitals and punctuation
        text = text.rstrip("?.").lower()
    return Exchange(question=text, answer=answer)
