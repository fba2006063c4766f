"""``demo.json``, which ``tenora server serve --demo`` leaves in HOME: address and keys of the demo."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union


@dataclass(frozen=True)
class TenantAccess:
    """Key of one demo tenant, with the names of its adapters."""

    key: str
    adapters: tuple[str, ...]


@dataclass(frozen=True)
class DemoAccess:
    """Content of ``demo.json``."""

    base_url: str
    base_model: str
    admin_key: str
    tenants: Mapping[str, TenantAccess]

    @classmethod
    def parse(cls, content: Union[str, bytes]) -> "DemoAccess":
        """Parse the file's content.

        Raises:
            ValueError: the content is not that of a demo.
        """
        try:
            value = json.loads(content)
            tenants = {name: _tenant(access) for name, access in value["tenants"].items()}
            return cls(_text(value["base_url"]), _text(value["base_model"]), _text(value["admin_key"]), tenants)
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"A field is missing or has another type: {error}.") from None


def _tenant(access: Any) -> TenantAccess:
    return TenantAccess(_text(access["key"]), tuple(_text(name) for name in access["adapters"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
