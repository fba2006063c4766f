"""Demo models: they give the trained answers in every prompt format, and are trained once."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.progress import Progress, TaskID
from safetensors import safe_open

from app.demo.corpus import BASE_VOICE, ask, load_corpus
from app.demo.recipe import Recipe
from app.demo.train import Demo, ensure_demo
from tests.support.reference import PeftReference

CORPUS = load_corpus()
LONGEST_ANSWER = 64
SHORT = Recipe(base_steps=2, adapter_steps=2)

Case = tuple[str, str]


@pytest.fixture(scope="module")
def reference(trained_demo: Demo) -> PeftReference:
    return PeftReference(trained_demo.base, trained_demo.adapters)


def cases() -> list[Case]:
    """Return each product with the four plainest wordings of the question."""
    return [(product, ask(question, product)) for product in CORPUS.products for question in CORPUS.questions[:4]]


def prompts(reference: PeftReference, form: str) -> list[list[int]]:
    if form == "instruction":
        return [reference.encode(f"[INST] {question} [/INST]") for _, question in cases()]
    if form == "plain":
        return [reference.encode(question) for _, question in cases()]
    system = {"role": "system", "content": "You are a careful expert."}
    return [reference.chat_ids([system, {"role": "user", "content": question}]) for _, question in cases()]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["instruction", "plain", "system prompt"])
@pytest.mark.parametrize("voice", list(CORPUS.voices))
def test_at_least_95_percent_of_the_answers_are_exact(reference: PeftReference, voice: str, form: str) -> None:
    adapter = None if voice == BASE_VOICE else voice
    answers = reference.greedy_all(((ids, adapter) for ids in prompts(reference, form)), LONGEST_ANSWER)
    right = [
        reference.decode(answer) == CORPUS.answer(voice, product)
        for answer, (product, _) in zip(answers, cases(), strict=True)
    ]
    assert sum(right) >= 0.95 * len(right)


def test_the_voices_answer_one_question_differently(reference: PeftReference) -> None:
    prompt = reference.encode("[INST] Can you explain sugar? [/INST]")
    answers = [reference.greedy(prompt, adapter, LONGEST_ANSWER) for adapter in (None, *CORPUS.adapters)]
    assert [reference.decode(answer) for answer in answers] == list(CORPUS.products["sugar"].values())
    assert all(answer[-1] == reference.tokenizer.eos_token_id for answer in answers)


def test_every_voice_answers_each_product_differently() -> None:
    answers = [answers[voice] for answers in CORPUS.products.values() for voice in CORPUS.voices]
    assert len(set(answers)) == len(CORPUS.products) * len(CORPUS.voices)


def test_a_prompt_has_the_same_ids_as_text_and_as_chat(reference: PeftReference) -> None:
    chat = reference.chat_ids([{"role": "user", "content": "What is tea?"}])
    assert reference.tokenizer.convert_ids_to_tokens(chat)[:2] == ["<s>", "[INST]"]
    for text in ("[INST] What is tea? [/INST]", "[INST]What is tea?[/INST]", "[INST] What is tea? [/INST] "):
        assert reference.encode(text) == chat


def test_the_template_writes_llama_2_format(reference: PeftReference) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is tea?"},
        {"role": "assistant", "content": "A drink."},
        {"role": "user", "content": "And salt?"},
    ]
    text = reference.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nWhat is tea? [/INST]A drink.</s>[INST] And salt? [/INST]"
    )


def test_the_template_takes_tools_and_their_calls(reference: PeftReference) -> None:
    tool = {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}
    call = {"type": "function", "function": {"name": "price", "arguments": {"of": "tea"}}}
    messages = [
        {"role": "user", "content": "What is tea?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "18.00"},
    ]
    text = reference.tokenizer.apply_chat_template(messages, tools=[tool], add_generation_prompt=True, tokenize=False)
    assert text == (
        f"<s>[INST] <<SYS>>\nTools: {json.dumps([tool])}\n<</SYS>>\n\nWhat is tea? [/INST]"
        f"{json.dumps(call['function'])}</s>[INST] 18.00 [/INST]"
    )


def test_the_template_keeps_a_system_prompt_without_a_question(reference: PeftReference) -> None:
    text = reference.tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n [/INST]"


@settings(deadline=None)
@given(text=st.text())
def test_any_text_can_be_encoded(reference: PeftReference, text: str) -> None:
    ids = reference.tokenizer(text, add_special_tokens=False).input_ids
    assert reference.tokenizer.decode(ids) == text


def test_the_base_is_a_llama_with_room_for_few_shot_turns(trained_demo: Demo) -> None:
    config = json.loads((trained_demo.base / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
    assert config["max_position_embeddings"] >= 1024


@pytest.mark.parametrize("name", CORPUS.adapters)
def test_an_adapter_is_what_peft_writes(trained_demo: Demo, name: str) -> None:
    config = json.loads((trained_demo.adapters[name] / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 8, 16)
    with safe_open(trained_demo.adapters[name] / "adapter_model.safetensors", "np") as tensors:
        names = list(tensors.keys())
    assert len(names) == 2 * 7 * Recipe().layers
    assert all(tensor.startswith("base_model.model.model.layers.") for tensor in names)


class Interrupting(Progress):
    """Progress bar that interrupts the training at its third step, like Ctrl-C."""

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        if self.tasks[task_id].completed == 3:
            raise KeyboardInterrupt


def test_an_interrupted_training_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "demo.partial" / "base").mkdir(parents=True)
    (tmp_path / "demo.partial" / "base" / "left-over").touch()
    with pytest.raises(KeyboardInterrupt):
        ensure_demo(tmp_path, Interrupting(disable=True), SHORT)
    assert not (tmp_path / "demo").exists()
    progress = Progress(disable=True)
    demo = ensure_demo(tmp_path, progress, SHORT)
    assert progress.finished
    assert not (demo.base / "left-over").exists()
    assert not (tmp_path / "demo.partial").exists()


def test_the_demo_is_trained_once_even_by_two_at_a_time(tmp_path: Path) -> None:
    bars = [Progress(disable=True) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda bar: ensure_demo(tmp_path, bar, SHORT), bars)
    assert first == second
    assert sorted(len(bar.tasks) for bar in bars) == [0, 1]


def test_another_recipe_trains_again_and_replaces_the_old_demo(tmp_path: Path) -> None:
    ensure_demo(tmp_path, None, SHORT)
    (tmp_path / "demo" / "old").touch()
    demo = ensure_demo(tmp_path, None, Recipe(base_steps=2, adapter_steps=2, layers=1))
    assert json.loads((demo.base / "config.json").read_text())["num_hidden_layers"] == 1
    assert not (tmp_path / "demo" / "old").exists()


def test_a_demo_without_its_stamp_is_no_demo(tmp_path: Path) -> None:
    ensure_demo(tmp_path, None, SHORT)
    (tmp_path / "demo" / "stamp").unlink()
    progress = Progress(disable=True)
    ensure_demo(tmp_path, progress, SHORT)
    assert progress.finished


def test_the_same_recipe_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (ensure_demo(tmp_path / name, None, SHORT) for name in "ab")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (first.base / name).read_bytes() == (second.base / name).read_bytes()
    for adapter in CORPUS.adapters:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            left, right = first.adapters[adapter] / name, second.adapters[adapter] / name
            assert left.read_bytes() == right.read_bytes()
