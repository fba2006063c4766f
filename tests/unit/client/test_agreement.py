"""The client repeats a few small rules of the server. Both give the same results."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters import identity, manifest
from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.errors import InvalidName
from app.api.errors import NO_ROUTE
from app.cli.commands import COMMANDS
from app.demo import publish
from app.domain.access import Scope
from app.domain.adapters import VersionState
from app.domain.batches import BatchState
from app.domain.files import Purpose
from app.services.batches.endpoints import ENDPOINTS
from app.settings import CLIENT_NAMES
from app.support import chat_template
from tenora_client import digests, folders, names
from tenora_client.batches import lines, requests
from tenora_client.cli import batch, descriptions, files, keys, next_steps
from tenora_client.cli.demo_access import DemoAccess
from tenora_client.cli.plugins import OF_THE_SERVER

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
CONFIG = st.one_of(
    TEXT,
    st.builds('{{"chat_template": "{}"}}'.format, st.text(alphabet="ab {}%\\", max_size=9)),
    st.sampled_from(
        [
            '{"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]}',
            '{"chat_template": [{"name": "rag", "template": "b"}, 7]}',
            '{"chat_template": 7}',
            '{"chat_template": " "}',
            "[]",
            "[" * 100_000,
        ]
    ),
)


def is_the_servers_slug(text: str) -> bool:
    try:
        identity.parse_slug(text, field="adapter")
    except InvalidName:
        return False
    return True


@given(st.one_of(st.text(), st.text(alphabet="az09._-", max_size=66), st.from_regex(r"[a-z0-9._-]{60,66}\n?")))
@example("a" * 63)
@example("a" * 64)
@example("a\n")
def test_both_accept_the_same_names(text: str) -> None:
    assert names.is_slug(text) == is_the_servers_slug(text)


def test_both_describe_names_alike() -> None:
    assert names.SLUG_WORDS == identity.SLUG_WORDS


@given(st.text(alphabet="0123456789abcdef", max_size=64), st.text(alphabet="0123456789abcdef", max_size=64))
def test_both_give_a_version_the_same_digest(config: str, weights: str) -> None:
    assert digests.content_digest(config, weights) == identity.content_digest(config, weights)


@given(st.none() | TEXT, st.none() | CONFIG)
def test_both_find_the_same_chat_template(template: str | None, config: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("chat_template.jinja", template), ("tokenizer_config.json", config)):
            if text is not None:
                (folder / file).write_text(text, encoding="utf-8", newline="")
        assert digests.template_digest(folder) == chat_template.template_digest(folder)


def test_both_name_an_adapters_files_alike() -> None:
    assert (folders.CONFIG_FILE, folders.WEIGHTS_FILE) == (CONFIG_NAME, WEIGHTS_NAME)
    assert manifest.CONFIG_FILE == folders.CONFIG_FILE


def test_the_client_reads_what_the_demo_writes() -> None:
    tenants = {"pricing": publish.TenantAccess(key="tnr_a", adapters=("pricing", "more"))}
    written = publish.DemoAccess(base_url="http://x", base_model="tiny", admin_key="tnr_b", tenants=tenants)
    read = DemoAccess.parse(written.model_dump_json())
    assert (read.base_url, read.base_model, read.admin_key) == ("http://x", "tiny", "tnr_b")
    assert {name: (access.key, access.adapters) for name, access in read.tenants.items()} == {
        "pricing": ("tnr_a", ("pricing", "more"))
    }


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"base_url": 7, "base_model": "", "admin_key": "", "tenants": {}}', "[" * 9999]
)
def test_another_file_is_no_demo(content: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        DemoAccess.parse(content)


def test_the_client_knows_the_names_of_the_servers_commands() -> None:
    assert {command.name for command in COMMANDS} == OF_THE_SERVER


def test_the_client_knows_the_servers_closed_values() -> None:
    assert set(keys.SCOPES) == {scope.value for scope in Scope}
    assert set(batch.STATES) == {state.value for state in BatchState}
    assert {state.value for state in BatchState if state.final} == requests.FINAL_STATES
    assert set(files.PURPOSES) == {purpose.value for purpose in Purpose}
    assert set(lines.ENDPOINTS) == set(ENDPOINTS)
    assert set(descriptions.STATES) == {state.value for state in VersionState} - {VersionState.DELETED.value}


def test_the_client_knows_the_servers_answer_to_an_unknown_route() -> None:
    assert NO_ROUTE.startswith(next_steps.NO_ROUTE)


def test_the_server_ignores_what_the_client_reads() -> None:
    assert {"TENORA_URL", "TENORA_KEY", "TENORA_PROFILE"} == CLIENT_NAMES
