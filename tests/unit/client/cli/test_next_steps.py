"""Mistyped commands: one error sentence with the next step."""

import pytest

MISTAKES = {
    "wrong key": (["adapters", "list", "--key", "sk-whatever"], 1, "run `tenora login`"),
    "no scheme": (["adapters", "list", "--url", "127.0.0.1:8000"], 2, "Write http://127.0.0.1:8000"),
    "no such host": (["adapters", "list", "--url", "http://nosuchhost.invalid"], 3, "--url"),
    "no server there": (["adapters", "list", "--url", "http://127.0.0.1:9"], 3, "Check that the server runs there"),
    "no such tenant": (["adapters", "list", "--tenant", "nosuch"], 1, "tenora tenants list"),
    "share with an unknown tenant": (
        ["adapters", "share", "x", "--with", "nosuch", "--tenant", "{tenant}"],
        1,
        "adapters list",
    ),
    "no such adapter": (["adapters", "show", "prcing", "--tenant", "{tenant}"], 1, "tenora adapters list"),
    "no such key": (["keys", "revoke", "NOPE", "--tenant", "{tenant}"], 1, "tenora keys list"),
    "promote no version": (["adapters", "promote", "quotes"], 2, "quotes@N"),
    "retire no version": (["adapters", "retire", "quotes", "--reason", "x"], 2, "quotes@N"),
    "pin no version": (["adapters", "pin", "quotes"], 2, "quotes@N"),
    "export no version": (["adapters", "export", "quotes", "x"], 2, "quotes@N"),
    "a step without its time": (["adapters", "canary", "quotes@3", "--step", "5"], 2, "PERCENT:DURATION"),
    "not asked": (["adapters", "delete", "quotes", "--tenant", "{tenant}"], 1, "--yes"),
    "prices of an unknown tenant": (
        ["prices", "set", "foo/bar", "--prompt", "1", "--output", "2"],
        1,
        "tenora tenants list",
    ),
}


@pytest.fixture
def tenant(tenora, new_slug):
    slug = new_slug()
    tenora("tenants", "create", slug)
    return slug


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_the_next_step(tenora, tenant, name):
    arguments, exit_code, step = MISTAKES[name]
    result = tenora(*(argument.format(tenant=tenant) for argument in arguments), exit_code=exit_code)
    assert step in result.stderr


def test_a_missing_model_and_a_missing_scope(tenora, tenant):
    key = tenora.json("keys", "create", "x", "--tenant", tenant)["key"]
    assert "tenora adapters list" in tenora("generate", "hi", "--model", "prcing", exit_code=1, TENORA_KEY=key).stderr
    assert "--scope adapters:read" in tenora("adapters", "list", exit_code=1, TENORA_KEY=key).stderr
    assert "platform key" in tenora("tenants", "list", exit_code=1, TENORA_KEY=key).stderr
