"""Upload options: defaults, validation and permissions."""

import pytest

from adapters.errors import InvalidName
from app.domain.errors import Forbidden, InvalidRequest, UnsupportedField
from app.services.catalog.options import PublishOptions, read_options
from app.settings import LimitSettings

LIMITS = LimitSettings()


def read(raw: object, *, admin: bool = False) -> PublishOptions:
    return read_options(raw, LIMITS, admin=admin, source={"kind": "upload"}, uploaded_from="192.0.2.1")


def test_nothing_said_means_the_default_alias_and_a_wait() -> None:
    assert read({}) == PublishOptions(uploaded_from="192.0.2.1")


def test_everything_said_arrives() -> None:
    options = read(
        {
            "alias": "canary",
            "labels": {"team": "retail"},
            "card": "# Prices\n<b>bold</b>",
            "training_run": "https://runs.example/7",
            "defaults": {"temperature": 0.2},
            "allow_no_effect": True,
            "wait": False,
        }
    )
    assert (options.alias, options.labels, options.card) == ("canary", {"team": "retail"}, "# Prices\n<b>bold</b>")
    assert (options.training_run, dict(options.defaults)) == ("https://runs.example/7", {"temperature": 0.2})
    assert (options.allow_no_effect, options.wait) == (True, False)


def test_no_alias_is_a_choice() -> None:
    assert read({"alias": None}).alias is None


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ([], "options"),
        ("canary", "options"),
        ({"aliases": "canary"}, "aliases"),
        ({"source": {"kind": "merge"}}, "source"),
        ({"uploaded_from": "10.0.0.1"}, "uploaded_from"),
        ({"alias": 3}, "alias"),
        ({"wait": "yes"}, "wait"),
        ({"allow_no_effect": 1}, "allow_no_effect"),
        ({"labels": ["a"]}, "labels"),
        ({"card": 5}, "card"),
        ({"training_run": "javascript:alert(1)"}, "training_run"),
        ({"defaults": {"cache_salt": "x"}}, "cache_salt"),
    ],
)
def test_what_is_not_allowed_is_named(raw: object, field: str) -> None:
    with pytest.raises((InvalidRequest, UnsupportedField), match=field):
        read(raw)


def test_an_alias_is_a_slug() -> None:
    with pytest.raises(InvalidName, match="alias"):
        read({"alias": "Canary!"})


def test_only_a_platform_key_sets_a_template() -> None:
    with pytest.raises(Forbidden):
        read({"defaults": {"chat_template": "{{ messages }}"}})
