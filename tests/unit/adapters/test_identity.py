import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import InvalidName
from adapters.identity import (
    MAX_VERSION_NUMBER,
    RESERVED_NAMES,
    ModelName,
    VersionKey,
    content_digest,
    parse_adapter_slug,
    parse_model_name,
    parse_slug,
)

SLUGS = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", fullmatch=True)
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)


@given(SLUGS)
def test_slugs_come_back_unchanged(slug: str) -> None:
    assert parse_slug(slug, field="tenant") == slug


@given(st.text(max_size=80))
def test_any_text_is_a_slug_exactly_if_it_fits_the_grammar(text: str) -> None:
    letters = set("abcdefghijklmnopqrstuvwxyz0123456789")
    if 1 <= len(text) <= 63 and set(text) <= letters | set("._-") and {text[0], text[-1]} <= letters:
        assert parse_slug(text, field="tenant") == text
    else:
        with pytest.raises(InvalidName) as raised:
            parse_slug(text, field="tenant")
        assert (raised.value.field, raised.value.found) == ("tenant", text[:80])
        assert repr(text[:80]) in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "A", "a" * 64, "-a", "a-", ".", "..", "a/b", "a b", "a\n", "é", "\u0661", "a:b", "a@1", "a\x00"]
)
def test_ambiguous_names_are_no_slugs(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_slug(text, field="adapter")


@given(SLUGS, SLUGS)
def test_an_alias_is_parsed(adapter: str, alias: str) -> None:
    assert parse_model_name(f"{adapter}:{alias}") == ModelName(adapter, alias=alias)


@given(SLUGS)
def test_a_bare_name_means_the_default_alias(adapter: str) -> None:
    assert parse_model_name(adapter) == ModelName(adapter, alias="default", number=None)


@given(SLUGS, st.integers(1, MAX_VERSION_NUMBER))
def test_a_version_number_is_parsed(adapter: str, number: int) -> None:
    assert parse_model_name(f"{adapter}@{number}") == ModelName(adapter, alias=None, number=number)


@given(SLUGS, st.integers(max_value=0) | st.integers(MAX_VERSION_NUMBER + 1))
def test_numbers_out_of_range_are_refused(adapter: str, number: int) -> None:
    with pytest.raises(InvalidName):
        parse_model_name(f"{adapter}@{number}")


@pytest.mark.parametrize(
    "text",
    ["", ":", "@", "a:", "a@", ":a", "@1", "a@01", "a@+1", "a@1.0", "a@\u0661", "a@1:b", "a:b@1", "a:b:c", "a@1@1"],
)
def test_malformed_model_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_model_name(text)


@given(SLUGS, SLUGS, SLUGS, st.integers(1, MAX_VERSION_NUMBER))
def test_an_owner_may_come_first(owner: str, adapter: str, alias: str, number: int) -> None:
    assert parse_model_name(f"{owner}/{adapter}:{alias}") == ModelName(adapter, alias=alias, owner=owner)
    assert parse_model_name(f"{owner}/{adapter}@{number}") == ModelName(adapter, None, number, owner)


@pytest.mark.parametrize("text", ["/", "/a", "a/", "a//b", "a/b/c", "A/b", "a:b/c", "a@1/c", "../a", "a/\u0430"])
def test_malformed_owners_are_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_model_name(text)


def _written(name: ModelName) -> list[str]:
    """Return all spellings of a model name."""
    owner = "" if name.owner is None else f"{name.owner}/"
    if name.number is not None:
        return [f"{owner}{name.adapter}@{name.number}"]
    return [f"{owner}{name.adapter}:{name.alias}", *([f"{owner}{name.adapter}"] if name.alias == "default" else [])]


@given(st.text(max_size=120) | st.text("ab1.:@/", max_size=12))
def test_any_text_is_a_model_name_or_an_error(text: str) -> None:
    try:
        name = parse_model_name(text)
    except InvalidName as error:
        name, found = None, error.found
    if name is None:
        assert len(found) <= 80
    else:
        assert (name.alias is None) != (name.number is None)
        assert text in _written(name)
        assert str(name) in _written(name)


@pytest.mark.parametrize("text", [*sorted(RESERVED_NAMES), "llama"])
def test_new_adapters_cannot_take_reserved_names_or_the_base_s(text: str) -> None:
    with pytest.raises(InvalidName, match="any name but"):
        parse_adapter_slug(text, base_model="llama")


def test_a_new_adapter_s_name_comes_back_unchanged() -> None:
    assert parse_adapter_slug("texts", base_model="llama") == "texts"


@given(DIGESTS, DIGESTS)
def test_the_digest_covers_both_files_in_their_order(config: str, weights: str) -> None:
    digest = content_digest(config, weights)
    assert digest == hashlib.sha256(f"tenora-adapter\n{config}\n{weights}\n".encode()).hexdigest()
    assert (content_digest(weights, config) == digest) is (config == weights)


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1), DIGESTS, DIGESTS)
def test_versions_of_the_same_bytes_have_own_engine_names(one: int, other: int, config: str, weights: str) -> None:
    keys = [VersionKey(number, config, weights, config_bytes=10, weights_bytes=20) for number in (one, other)]
    assert (keys[0].lora_name == keys[1].lora_name) is (one == other)
    assert re.fullmatch(rf"{one}@[0-9a-f]{{16}}", keys[0].lora_name)
    assert keys[0].size == 30
