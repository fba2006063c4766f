"""Labels, cards and links to training runs."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest
from app.services.catalog.labels import (
    MAX_CARD_BYTES,
    MAX_LABELS,
    checked_card,
    checked_labels,
    checked_training_run,
    label_filters,
)

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=200).filter(str.isprintable)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(NAMES, VALUES, max_size=MAX_LABELS))
def test_labels_come_back_as_they_are_and_are_found_again(labels: dict[str, str]) -> None:
    assert checked_labels(labels) == labels
    assert label_filters([f"{name}={value}" for name, value in labels.items()]) == labels


@given(ANYTHING)
def test_anything_is_labels_a_card_and_a_link_or_a_clear_refusal(raw: object) -> None:
    for check in (checked_labels, checked_card, checked_training_run):
        with contextlib.suppress(InvalidRequest):
            assert check(raw) == raw


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ([], "labels"),
        ("team=x", "labels"),
        ({"": "x"}, "labels"),
        ({"Team": "x"}, "labels"),
        ({"team/x": "x"}, "labels"),
        ({"te\u0430m": "x"}, "labels"),
        ({"team\n": "x"}, "labels"),
        ({".team": "x"}, "labels"),
        ({"team-": "x"}, "labels"),
        ({"t" * 64: "x"}, "labels"),
        ({3: "x"}, "labels"),
        ({"team": 3}, "labels.team"),
        ({"team": None}, "labels.team"),
        ({"team": "x" * 201}, "labels.team"),
        ({"team": "a\nb"}, "labels.team"),
        ({"team": "a\0b"}, "labels.team"),
        ({"team": "\ud800"}, "labels.team"),
        ({"team": "\u202e"}, "labels.team"),
        ({f"l{number}": "" for number in range(MAX_LABELS + 1)}, "labels"),
    ],
)
def test_labels_that_are_refused(raw: object, param: str) -> None:
    message = r"^labels(\.team)? (is .*, but must be |has the name .*\. A name has |has 33 entries; the limit is 32)"
    with pytest.raises(InvalidRequest, match=message) as caught:
        checked_labels(raw)
    assert caught.value.param == param


def test_labels_at_the_bounds() -> None:
    most = {f"l{number}": "" for number in range(MAX_LABELS)}
    assert checked_labels(most) == most
    assert checked_labels({}) == {}
    assert checked_labels({"t" * 63: "x" * 200}) == {"t" * 63: "x" * 200}


def test_a_filter_is_split_at_its_first_equals_sign() -> None:
    assert label_filters(["run=a=b", "empty=", "run=a=b"]) == {"run": "a=b", "empty": ""}
    assert label_filters([]) == {}


@pytest.mark.parametrize(
    "written", [["team"], ["=x"], ["Team=x"], ["team=a\0"], ["team=" + "x" * 201], ["team=a", "team=b"], [""]]
)
def test_filters_that_are_refused(written: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="label") as caught:
        label_filters(written)
    assert caught.value.param == "label"


def test_a_card_is_any_text_and_stays_as_it_is() -> None:
    for text in ("", "# Prices\n\n<script>alert(1)</script>\r\n\t\x1b[31m \u202e", "\u20ac" * (MAX_CARD_BYTES // 3)):
        assert checked_card(text) == text


@pytest.mark.parametrize(
    "raw", ["x" * (MAX_CARD_BYTES + 1), "\u20ac" * (MAX_CARD_BYTES // 3 + 1), "a\0b", "\ud83d", None, 3, ["x"]]
)
def test_cards_that_are_refused(raw: object) -> None:
    message = r"^card (is .*, but must be a string|has .*; the limit is 65536|holds (half|the character NUL)).*\."
    with pytest.raises(InvalidRequest, match=message) as caught:
        checked_card(raw)
    assert caught.value.param == "card"


@pytest.mark.parametrize(
    "link",
    [
        None,
        "https://wandb.example/team/run-7",
        "http://mlflow.example:5000/#/experiments/1/runs/abc?x=1&y=@z",
        "https://[::1]:8080/run",
        "https://e/" + "x" * 490,
    ],
)
def test_links_to_training_runs(link: str | None) -> None:
    assert checked_training_run(link) == link


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "run-7",
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "//wandb.example/x",
        "https://",
        "https:///run",
        "https://:80/run",
        "https://me:secret@wandb.example/run",
        "https://secret@wandb.example/run",
        "https://wandb.example/a b",
        "https://wandb.example\\@other.example/",
        "https://wandb.example/\n",
        " https://wandb.example/",
        "https://wandb.example:99999/",
        "https://wandb.example:x/",
        "https://[::1/",
        "https://e/" + "x" * 491,
        7,
        {},
    ],
)
def test_links_that_are_refused_and_never_repeated(raw: object) -> None:
    message = "^training_run must be an http or https URL of at most 500 characters"
    with pytest.raises(InvalidRequest, match=message) as caught:
        checked_training_run(raw)
    assert caught.value.param == "training_run"
    assert "secret" not in caught.value.message
