"""The README's settings table matches the code."""

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from app.settings import Settings

README = Path(__file__).parent.parent.parent / "README.md"


def rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from rows(annotation, f"{prefix}{name.upper()}__")
            continue
        default = field.get_default(call_default_factory=True)
        shown = "" if default in (None, "", (), frozenset()) else f"`{default}`"
        yield f"| `{prefix}{name.upper()}` | {shown} | {field.description} |"


def table() -> str:
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows(Settings, "TENORA_")])


def test_the_readme_lists_every_setting_with_its_default_and_meaning() -> None:
    found = re.search(r"<!-- settings -->\n(.*)\n<!-- /settings -->", README.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == table(), f"the table should be:\n{table()}"
