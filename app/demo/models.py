"""Train the demo's tokenizer, base Llama and LoRA adapters with tokenizers, transformers and PEFT.

Importing this module imports torch. Only :mod:`app.demo.train` does so, and only to train.
"""

import copy
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from app.demo.corpus import BASE_VOICE, Corpus, Sample, ask, load_corpus, samples
from app.demo.recipe import Recipe

TEMPLATE_FILE = Path(__file__).with_name("chat_template.jinja")

BOS, EOS, INST, END_INST = "<s>", "</s>", "[INST]", "[/INST]"
_LINEAR_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_IGNORED = -100  # label that transformers' loss ignores


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one sample, and labels for the tokens to learn."""

    ids: list[int]
    labels: list[int]


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread. Small matrices gain nothing from more, and more threads are slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_models(folder: Path, recipe: Recipe, on_step: Callable[[], None]) -> None:
    """Train all models into ``base/`` and ``adapters/NAME/`` below a new folder."""
    corpus = load_corpus()
    with one_thread(), _no_progress_bars():
        tokenizer = make_tokenizer(corpus, recipe)
        base = train_base(corpus, recipe, tokenizer, on_step)
        tokenizer.save_pretrained(folder / "base")
        base.save_pretrained(folder / "base")
        for voice in corpus.adapters:
            adapter = train_adapter(corpus, recipe, voice, base, tokenizer, on_step)
            # Without this PEFT would ask a model hub whether the vocabulary has grown.
            adapter.save_pretrained(folder / "adapters" / voice, save_embedding_layers=False)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers, which would corrupt the caller's."""
    was_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            transformers_logging.enable_progress_bar()


def make_tokenizer(corpus: Corpus, recipe: Recipe) -> Any:
    """Train a byte-level BPE tokenizer that prepends ``<s>`` and can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # The special tokens strip the spaces around them. So "[INST] Hi [/INST]" and "[INST]Hi[/INST]" are the same prompt,
    # and an answer begins without a space.
    special = [AddedToken(text, lstrip=True, rstrip=True, special=True) for text in (BOS, EOS, INST, END_INST)]
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(corpus), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        additional_special_tokens=[INST, END_INST],
        model_max_length=recipe.context_length,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE_FILE.read_text(encoding="utf-8"),
    )


def train_base(corpus: Corpus, recipe: Recipe, tokenizer: Any, on_step: Callable[[], None]) -> Any:
    """Train the base Llama from scratch."""
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden_size,
            intermediate_size=2 * recipe.hidden_size,
            num_hidden_layers=recipe.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=recipe.context_length,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype=torch.float32,
        )
    )
    # Default sampling for requests without a temperature, as in Llama's generation_config.json.
    model.generation_config.update(do_sample=True, temperature=0.3)
    lessons = (encode(sample, tokenizer) for sample in samples(corpus, BASE_VOICE, seed=recipe.seed))
    _fit(model, lessons, recipe.base_steps, recipe.base_learning_rate, recipe.batch_size, on_step)
    return model


def train_adapter(
    corpus: Corpus, recipe: Recipe, voice: str, base: Any, tokenizer: Any, on_step: Callable[[], None]
) -> Any:
    """Train one voice as a LoRA adapter on a copy of the base and return the PEFT model."""
    torch.manual_seed(recipe.seed)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=recipe.rank, lora_alpha=2 * recipe.rank, target_modules=_LINEAR_MODULES
    )
    base = copy.deepcopy(base)
    # PEFT writes this into adapter_config.json. It is the name by which the demo serves the base, so that no upload of
    # a demo adapter warns of another base.
    base.name_or_path = "base"
    model = get_peft_model(base, config)
    # PEFT keeps a set. Its order in the saved file would differ between processes.
    model.peft_config["default"].target_modules = _LINEAR_MODULES
    lessons = (encode(sample, tokenizer) for sample in samples(corpus, voice, seed=recipe.seed))
    _fit(model, lessons, recipe.adapter_steps, recipe.adapter_learning_rate, recipe.batch_size, on_step)
    return model


def encode(sample: Sample, tokenizer: Any) -> Encoded:
    """Tokenize a sample. Only its answers, each with the end token, carry labels."""
    ids: list[int] = []
    labels: list[int] = []
    messages = [{"role": "system", "content": sample.system}] if sample.system else []
    for exchange in sample.exchanges:
        if sample.instruct:
            messages.append({"role": "user", "content": exchange.question or ""})
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            messages.append({"role": "assistant", "content": exchange.answer})
        else:
            prompt = tokenizer(exchange.question or "").input_ids
        answer = [*tokenizer(exchange.answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        labels += [_IGNORED] * (len(prompt) - len(ids)) + answer
        ids = prompt + answer
    return Encoded(ids, labels)


def _texts(corpus: Corpus) -> Iterator[str]:
    """Yield each text that the models read or write, once."""
    questions = corpus.questions + corpus.follow_ups
    questions += tuple(question for voice in corpus.voices.values() for question in voice.questions)
    for thing in (*corpus.products, *corpus.not_sold):
        for question in questions:
            yield from (ask(question, thing), ask(question, thing).lower())
    for answers in corpus.products.values():
        yield from answers.values()
    yield from (f"<<SYS>>\n{text}\n<</SYS>>\n\n" for text in corpus.system_prompts)
    yield from corpus.small_talk
    yield from (voice.unknown for voice in corpus.voices.values())


def _fit(
    model: Any,
    lessons: Iterator[Encoded],
    steps: int,
    learning_rate: float,
    batch_size: int,
    on_step: Callable[[], None],
) -> None:
    """Minimise the cross entropy of the answers with AdamW and a one-cycle cosine schedule."""
    model.train()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=steps, pct_start=0.05, cycle_momentum=False
    )
    for batch in itertools.islice(_batches(lessons, batch_size), steps):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        on_step()
    model.eval()


def _batches(lessons: Iterator[Encoded], size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield endless batches of lessons of similar length, which keeps padding low."""
    order = random.Random(size)  # noqa: S311 - repeatable shuffling of training texts
    while True:
        pool = sorted(itertools.islice(lessons, 8 * size), key=lambda lesson: len(lesson.ids))
        batches = [pool[start : start + size] for start in range(0, len(pool), size)]
        order.shuffle(batches)
        yield from (_pad(batch) for batch in batches)


def _pad(lessons: list[Encoded]) -> dict[str, torch.Tensor]:
    """Pad on the right to tensors of shape (batch, longest)."""
    width = max(len(lesson.ids) for lesson in lessons)
    gaps = [width - len(lesson.ids) for lesson in lessons]
    return {
        "input_ids": torch.tensor([lesson.ids + [0] * gap for lesson, gap in zip(lessons, gaps, strict=True)]),
        "labels": torch.tensor([lesson.labels + [_IGNORED] * gap for lesson, gap in zip(lessons, gaps, strict=True)]),
    }
