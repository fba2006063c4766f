"""The client's typed answers are what the generator makes of the server's document."""

from deploy.client.types import TARGET, generated, server_document


def test_the_generator_writes_the_types_that_are_here() -> None:
    assert generated(server_document()) == TARGET.read_text(encoding="utf-8"), "run `make client-types`"
