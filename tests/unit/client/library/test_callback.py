"""The Trainer's callback: a real training, published to a live server."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from tenora_client import AuthenticationError, Client
from tenora_client.callback import FOLDER, TenoraCallback
from tenora_client.labels import metric_labels
from tests.support.peft_adapters import tiny_llama
from tests.support.site import Site, Unit

TOKENS = [1, 2, 3, 4]
DATA = [{"input_ids": TOKENS, "labels": TOKENS}] * 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and PEFT on a machine without a GPU
        yield


def train(callback: TenoraCallback, folder: Path) -> Trainer:
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    arguments = TrainingArguments(
        str(folder),
        max_steps=2,
        save_steps=1,
        logging_steps=1,
        learning_rate=0.1,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(get_peft_model(tiny_llama(), lora), arguments, train_dataset=DATA, callbacks=[callback])
    trainer.train()
    return trainer


@pytest.mark.slow
def test_a_training_ends_as_a_version_with_its_metrics(tenora: Client, tmp_path: Path) -> None:
    callback = TenoraCallback("quotes", tenora, labels={"run": "17"}, each_save=True, card="from the Trainer")
    train(callback, tmp_path)
    assert callback.error is None
    assert callback.version is not None
    version = tenora.adapters.version("quotes", callback.version.number)
    assert (version.state, version.aliases, version.card) == ("ready", ["default"], "from the Trainer")
    assert (version.labels["run"], version.labels["step"]) == ("17", "2")
    assert float(version.labels["train_loss"]) > 0
    # The last checkpoint has the bytes of the final adapter, so it is the same version.
    assert [version.number for version in tenora.adapters.versions("quotes")] == [2, 1]
    assert tenora.adapters.version("quotes", 1).labels["step"] == "1"


@pytest.mark.slow
def test_a_training_survives_a_refused_publication(
    site: Site, unit: Unit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(site.url, f"{unit.key[:-6]}AAAAAA") as refused, caplog.at_level(logging.WARNING, "tenora_client"):
        callback = TenoraCallback("quotes", refused)
        trainer = train(callback, tmp_path)
    assert trainer.state.global_step == 2
    assert callback.version is None
    assert isinstance(callback.error, AuthenticationError)
    folder = tmp_path / FOLDER
    assert f"tenora adapters push {folder} --adapter quotes" in caplog.text
    assert "will fail unless this changes" in caplog.text
    with Client(site.url, unit.key) as tenora:
        assert TenoraCallback("quotes", tenora).publish(folder).number == 1


def test_metrics_become_labels() -> None:
    history = [
        {"loss": 2.0, "learning_rate": 0.1, "epoch": 0.5, "step": 1},
        {"eval_loss": 1.23456789, "eval_runtime": 3.0, "eval_rouge/l": 0.5, "step": 2},
        {"train_loss": 1.5, "train_samples_per_second": 2.0, "total_flos": 1e9, "epoch": 1.0, "step": 2},
    ]
    assert metric_labels(history, 2) == {
        "step": "2",
        "loss": "2",
        "epoch": "1",
        "eval_loss": "1.23457",
        "eval_rouge.l": "0.5",
        "train_loss": "1.5",
    }
    assert len(metric_labels([{f"eval_{number}": 1 for number in range(50)}], 3)) == 20
