"""Formats of results: tables at a terminal, plain columns in a pipe, JSON, YAML and names for programs."""

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from rich.text import Text

from tenora_client.cli.cells import short_cell
from tenora_client.cli.yaml_text import yaml_text
from tests.support.cli import Tenora

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


#: As a key it takes more than 1,024 characters, because each letter is written as an escape of six.
LONG = "\u0160" * 200


@given(VALUES)
@example({LONG: None})
@example([{LONG: {LONG: [1]}, "short": LONG}])
def test_yaml_reads_back_as_the_same_value(value: object) -> None:
    # PyYAML reads numbers such as 1e16 as text: YAML 1.1 wants a dot.
    assert yaml.safe_load(yaml_text(value)) == _as_yaml_11(value)


def _as_yaml_11(value: object) -> object:
    if isinstance(value, dict):
        return {name: _as_yaml_11(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_yaml_11(item) for item in value]
    if isinstance(value, float) and "e" in (text := json.dumps(value)):
        return yaml.safe_load(text)
    return value


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("created_at", "2026-11-29T11:58:00Z", "2m ago"),
        ("created_at", "2026-11-26T12:00:00.5+00:00", "2d ago"),
        ("expires_at", "2026-11-29T15:00:01Z", "in 3h"),
        ("created_at", "soon", "soon"),
        ("created_at", None, "-"),
        ("size_bytes", 14502, "14.5 kB"),
        ("rank", 4, "4"),
        ("digest", "sha256:" + "0123456789ab" + "c" * 52, "0123456789ab"),
        ("disabled", False, "no"),
    ],
)
def test_people_get_short_values(name: str, value: object, shown: str) -> None:
    assert short_cell(name, value, NOW) == shown


@given(st.timedeltas(min_value=timedelta(days=-9999), max_value=timedelta(days=9999)))
def test_an_age_is_one_number_with_a_unit(distance: timedelta) -> None:
    words = short_cell("at_at", (NOW - distance).isoformat(), NOW).split()
    assert {"ago", "in"} & set(words)
    assert len(words) == 2


@pytest.fixture
def tenant(tenora: Tenora, new_slug: object) -> str:
    slug: str = new_slug()  # type: ignore[operator]
    tenora("tenants", "create", slug)
    return slug


def test_a_pipe_gets_plain_columns(tenora: Tenora, tenant: str) -> None:
    lines = tenora("tenants", "list").stdout.splitlines()
    assert lines[0].split() == ["tenant", "name", "disabled", "weight", "created"]
    row = next(line for line in lines if line.startswith(tenant))
    assert not set("│┃━|") & set("".join(lines))
    assert all(line == line.rstrip() for line in lines)
    assert datetime.fromisoformat(row.split()[-1]).tzinfo


def test_programs_get_json_yaml_and_names(tenora: Tenora, tenant: str) -> None:
    rows = tenora.json("tenants", "list")
    assert json.loads(tenora("tenants", "list", "-o", "json").stdout) == rows
    assert yaml.safe_load(tenora("tenants", "list", "-o", "yaml").stdout) == rows
    assert tenora("tenants", "list", "-o", "name").stdout.split() == [row["slug"] for row in rows]
    assert tenora("tenants", "show", tenant, "--output", "name").stdout == f"{tenant}\n"


def test_a_result_without_a_name_says_so(tenora: Tenora, tenant: str) -> None:
    assert "Use -o json" in tenora("tenants", "quota", tenant, "-o", "name", exit_code=2).stderr


def test_errors_are_json_where_results_are(tenora: Tenora) -> None:
    for output in ("json", "yaml"):
        assert json.loads(tenora("tenants", "show", "none", "-o", output, exit_code=1).stderr)["error"]["code"]
    assert tenora("tenants", "show", "none", "-o", "name", exit_code=1).stderr.startswith("error: ")


def at_a_terminal(arguments: list[str], environment: dict[str, str], cwd: Path) -> str:
    """Run the command with a terminal as stdout and return what it showed."""
    parent, child = pty.openpty()
    try:
        program = [sys.executable, "-B", "-m", "tenora_client", *arguments]
        variables = {"PATH": os.environ["PATH"], "TERM": "xterm", **environment}
        done = subprocess.run(program, stdout=child, stderr=subprocess.PIPE, env=variables, cwd=cwd, timeout=60)
        os.close(child)
        child = -1
        shown = b""
        try:
            while piece := os.read(parent, 65536):
                shown += piece
        except OSError:
            pass  # Linux ends a terminal without writers with an error.
        assert done.returncode == 0, done.stderr
        return shown.decode()
    finally:
        os.close(parent)
        if child >= 0:
            os.close(child)


def test_a_terminal_gets_a_frame_and_ages(tenora: Tenora, tenant: str, tmp_path: Path) -> None:
    shown = at_a_terminal(["tenants", "list"], tenora.environment, tmp_path)
    assert "┃" in shown
    assert "s ago" in shown
    wide = at_a_terminal(["tenants", "list", "-o", "wide"], tenora.environment, tmp_path)
    assert "ago" not in wide


def test_a_narrow_terminal_gets_records(tenora: Tenora, tenant: str, tmp_path: Path) -> None:
    shown = at_a_terminal(["tenants", "list"], tenora.environment | {"COLUMNS": "24"}, tmp_path)
    assert "┃" not in shown
    lines = Text.from_ansi(shown).plain.splitlines()
    assert all(len(line) <= 24 for line in lines), lines
    assert tenant in shown


def test_a_dumb_terminal_gets_no_colours(tenora: Tenora, tenant: str, tmp_path: Path) -> None:
    assert "\x1b" not in at_a_terminal(["tenants", "list"], tenora.environment | {"TERM": "dumb"}, tmp_path)
