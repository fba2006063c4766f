"""OpenAI's list of models."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tenora_client.errors import foreign_answer


@dataclass(frozen=True)
class Model:
    """Model that a request may name.

    Attributes:
        id: its name.
        owner: ``tenora`` for the base, else the tenant that owns the adapter.
        parent: the model that it adapts, None for the base.
    """

    id: str
    owner: str
    parent: str | None


def model_list(answer: Any) -> list[Model]:
    """Read OpenAI's list of models.

    Raises:
        ForeignAnswer: the answer is no such list.
    """
    try:
        return [Model(model["id"], model["owned_by"], model.get("parent")) for model in answer["data"]]
    except (AttributeError, KeyError, TypeError):
        raise foreign_answer(HTTPStatus.OK, str(answer)) from None
