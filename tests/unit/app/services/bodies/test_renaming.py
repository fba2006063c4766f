"""Field names in errors of a chat become those of the client's API."""

import pytest

from app.domain.errors import InvalidRequest
from app.services.bodies import anthropic, responses

CASES = [
    ("max_tokens", "max_output_tokens", "max_tokens"),
    ("max_completion_tokens", "max_output_tokens", "max_tokens"),
    (
        "'max_tokens' or 'max_completion_tokens' is too large",
        "max_output_tokens is too large",
        "max_tokens is too large",
    ),
    ("messages", "input", "messages"),
    ("messages.3.content.0.text", "input", "messages"),
    ("messages.3.role is 'user'", "input.role is 'user'", "messages.role is 'user'"),
    ("tools.2.function.name", "tools.2.name", "tools.2.name"),
    ("tools.2.function.parameters.$ref", "tools.2.parameters.$ref", "tools.2.input_schema.$ref"),
    ("tool_choice.function.name", "tool_choice.name", "tool_choice.name"),
    ("response_format", "text.format", "output_config.format"),
    ("response_format.json_schema.schema", "text.format.schema", "output_config.format.schema"),
    ("temperature", "temperature", "temperature"),
    ("tokens_per_minute would be 5", "tokens_per_minute would be 5", "tokens_per_minute would be 5"),
]


@pytest.mark.parametrize(("chat", "in_responses", "in_messages"), CASES)
def test_a_name_becomes_the_clients(chat: str, in_responses: str, in_messages: str) -> None:
    assert responses.RENAMING.text(chat) == in_responses
    assert anthropic.RENAMING.text(chat) == in_messages


def test_an_error_keeps_its_class_and_its_wait() -> None:
    error = InvalidRequest("messages is empty.", param="messages", retry_after=3)
    renamed = responses.RENAMING.error(error)
    assert isinstance(renamed, InvalidRequest)
    assert (renamed.message, renamed.param, renamed.retry_after) == ("input is empty.", "input", 3)
    assert str(renamed) == "input is empty."
    assert responses.RENAMING.param(None) is None
