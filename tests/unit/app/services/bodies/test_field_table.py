"""The list of fields: each field of an API is supported, ignored or refused, and never two of these."""

import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies import field_table
from app.services.bodies.field_table import COUNT_TOKENS, MESSAGES, RESPONSES, FieldTable
from app.settings import LimitSettings

LIMITS = LimitSettings()
TABLES = {name: table for name, table in vars(field_table).items() if isinstance(table, FieldTable)}
REFUSED = [(name, field) for name, table in TABLES.items() for field in table.refused]
#: Fields of the SDKs that no list has, as this server does not know what they change.
UNKNOWN = {"access_programs", "image", "moderation", "user_profile_id", "workspace_id"}


def test_the_tables_are_found() -> None:
    assert {"CHAT", "COMPLETIONS", "COUNT_TOKENS", "DETOKENIZE", "LORAX", "MESSAGES", "RESPONSES"} < TABLES.keys()


@pytest.mark.parametrize("name", TABLES)
def test_a_field_is_in_one_list_only(name: str) -> None:
    table = TABLES[name]
    assert not table.supported.keys() & table.ignored
    assert not table.names & table.refused.keys()
    assert set(table.required) <= table.supported.keys()


@pytest.mark.parametrize(
    ("table", "params"),
    [
        (RESPONSES, ResponseCreateParamsBase),
        (MESSAGES, MessageCreateParamsBase),
        (COUNT_TOKENS, MessageCountTokensParams),
    ],
)
def test_every_field_of_the_sdk_has_its_place(table: FieldTable, params: type) -> None:
    known = table.names | table.refused.keys() | {"stream"}
    assert params.__annotations__.keys() - known <= UNKNOWN


@pytest.mark.parametrize(("name", "field"), REFUSED)
def test_a_refused_field_is_named_with_the_way_out(name: str, field: str) -> None:
    table = TABLES[name]
    with pytest.raises(UnsupportedField) as refused:
        table.checked({field: "x"}, LIMITS)
    assert refused.value.param == field
    assert refused.value.message == f"{field} is not supported. {table.refused[field]}"


@pytest.mark.parametrize("name", TABLES)
def test_an_ignored_field_takes_any_value(name: str) -> None:
    table = TABLES[name]
    body = {field: {"any": ["value"]} for field in table.ignored}
    if table.required:
        with pytest.raises(InvalidRequest, match="is missing"):
            table.checked(body, LIMITS)
    assert set(table.ignored_in(body | {"model": "x"})) == table.ignored


@pytest.mark.parametrize("name", TABLES)
def test_null_counts_as_not_sent(name: str) -> None:
    table = TABLES[name]
    body = dict.fromkeys((*table.names, *table.refused, "absent"))
    if table.required:
        with pytest.raises(InvalidRequest, match=f"{table.required[0]} is missing"):
            table.checked(body, LIMITS)
    else:
        assert table.checked(body, LIMITS) == {}
    assert list(table.ignored_in(body)) == []


@pytest.mark.parametrize("name", TABLES)
def test_an_unknown_field_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedField, match="cache_salt"):
        TABLES[name].checked({"cache_salt": "x"}, LIMITS)
