import json
from pathlib import Path
from typing import Any

import pytest

from app.support.chat_template import read_template, template_digest

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write(folder: Path, jinja: str | None, config: Any) -> Path:
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("jinja", "config", "found"),
    [
        (TEMPLATE, None, TEMPLATE),
        (TEMPLATE, {"chat_template": "other"}, TEMPLATE),
        (None, {"chat_template": TEMPLATE}, TEMPLATE),
        (
            None,
            {"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]},
            TEMPLATE,
        ),
        (None, {"chat_template": [{"name": "tool_use", "template": "x"}]}, None),
        (None, {"chat_template": None}, None),
        (None, {"chat_template": 7}, None),
        (None, {}, None),
        (None, "[]", None),
        (None, "{", None),
        (" \n", None, None),
        (None, None, None),
    ],
)
def test_where_templates_are(tmp_path: Path, jinja: str | None, config: Any, found: str | None) -> None:
    assert read_template(write(tmp_path, jinja, config)) == found
    assert (template_digest(tmp_path) is None) is (found is None)


def test_the_two_places_have_one_digest(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    write(one, TEMPLATE + "\n", None)
    write(other, None, {"chat_template": TEMPLATE})
    assert template_digest(one) == template_digest(other) is not None
    write(other, "{{ other }}", None)
    assert template_digest(one) != template_digest(other)
