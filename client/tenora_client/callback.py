"""Publish what transformers' Trainer has trained.

::

    from tenora_client.callback import TenoraCallback

    trainer = Trainer(model, args, train_dataset=data, callbacks=[TenoraCallback("quotes")])
    trainer.train()

This module needs transformers, which the package does not install.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tenora_client._sync.client import Client
from tenora_client.errors import NotFound, TenoraError
from tenora_client.labels import metric_labels
from tenora_client.types import Version

logger = logging.getLogger(__name__)

#: Folder below the training's output that gets the final adapter.
FOLDER = "tenora-adapter"


class TenoraCallback(TrainerCallback):  # type: ignore[misc]  # transformers ships no types here
    """Publish the adapter at the end of the training, with its metrics as labels.

    A failure to publish is a warning and never ends the training: the files stay, and the warning says how to publish
    them by hand. Publishing again resumes an interrupted upload.

    Args:
        adapter: name of the adapter.
        client: client of the server; None: one made from ``url``, ``key`` and the environment.
        alias: the alias that moves to the final version; None moves none.
        labels: labels in addition to the metrics, which they replace under the same name.
        each_save: also publish each checkpoint, without moving an alias.
        options: further arguments of :meth:`Client.adapters.publish`, such as ``card`` or ``tenant``.

    Attributes:
        version: the version that was published last, None if there is none.
        error: the error of the last attempt, None if it succeeded.

    Raises:
        ConfigurationError: there is no key, or the address is malformed.
    """

    def __init__(
        self,
        adapter: str,
        client: Client | None = None,
        *,
        url: str | None = None,
        key: str | None = None,
        alias: str | None = "default",
        labels: Mapping[str, str] | None = None,
        each_save: bool = False,
        **options: Any,
    ) -> None:
        self._adapter, self._alias, self._labels = adapter, alias, dict(labels or {})
        self._each_save, self._options = each_save, options
        self._client = client or Client(url, key)
        self.version: Version | None = None
        self.error: Exception | None = None

    def on_train_begin(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_kwargs: Any
    ) -> None:
        """Warn before the training, not after it, if the server or the key does not work."""
        if not state.is_world_process_zero:
            return
        try:
            self._client.adapters.show(self._adapter, tenant=self._options.get("tenant"))
        except NotFound:
            pass  # the first version makes the adapter
        except TenoraError as error:
            logger.warning("Publishing to %s will fail unless this changes: %s", self._client.url, error)

    def on_save(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_kwargs: Any) -> None:
        """Publish a checkpoint, if each of them is wanted."""
        if self._each_save and state.is_world_process_zero:
            folder = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
            self._try(folder, None, metric_labels(state.log_history, state.global_step))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save and publish the final adapter: the best one where the Trainer loads the best model at the end."""
        if not state.is_world_process_zero:
            return
        folder = Path(str(args.output_dir), FOLDER)
        kwargs["model"].save_pretrained(folder)
        self._try(folder, self._alias, metric_labels(state.log_history, state.global_step))

    def publish(
        self, folder: str | os.PathLike[str], alias: str | None = "default", labels: Mapping[str, str] | None = None
    ) -> Version:
        """Publish a folder as the training does, for example again after a failure.

        Raises:
            TenoraError: the adapter was not published.
            OSError: a file cannot be read.
        """
        full = {**(labels or {}), **self._labels}
        self.version = self._client.adapters.publish(self._adapter, folder, alias=alias, labels=full, **self._options)
        return self.version

    def _try(self, folder: Path, alias: str | None, labels: Mapping[str, str]) -> None:
        try:
            version = self.publish(folder, alias, labels)
        except (TenoraError, OSError) as error:
            self.error = error
            logger.warning(
                "%s was not published: %s The adapter is in %s. Publish it with: tenora adapters push %s --adapter %s",
                *(self._adapter, error, folder, folder, self._adapter),
            )
        else:
            self.error = None
            logger.info("Published %s as %s.", folder, version.name)
