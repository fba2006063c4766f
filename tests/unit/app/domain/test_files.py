"""Names of files as they are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.files import MAX_NAME, shown_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("in.jsonl", "in.jsonl"),
        ("my table.jsonl", "my table.jsonl"),
        ("größe.jsonl", "größe.jsonl"),
        ("/etc/passwd", "passwd"),
        ("..\\..\\in.jsonl", "in.jsonl"),
        ("in\r\nx-evil: 1.jsonl", "inx-evil: 1.jsonl"),
        ("in\u202elnosj.exe", "inlnosj.exe"),
        ("in\x00\ud800.jsonl", "in.jsonl"),
        ("", "file"),
        ("a/", "file"),
        (" \n", "file"),
        ("x" * 300, "x" * 255),
    ],
)
def test_odd_names_are_cleaned(name: str, shown: str) -> None:
    assert shown_name(name) == shown


@given(st.text())
def test_a_shown_name_is_printable_and_has_no_path(name: str) -> None:
    shown = shown_name(name)
    assert 1 <= len(shown) <= MAX_NAME
    assert shown.isprintable()
    assert not set(shown) & set("/\\")
    assert shown_name(shown) == shown
