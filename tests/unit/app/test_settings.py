"""Settings: known names are accepted, and an unknown one gives an error with the nearest name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.settings import (
    CLIENT_NAMES,
    ImportSettings,
    Settings,
    UnknownSetting,
    check_environment,
    may_hold_secret,
    secret_setting_names,
    setting_names,
)


def test_every_field_has_its_name():
    names = setting_names()
    assert {"TENORA_HOME", "TENORA_ENGINE__MAX_LORAS", "TENORA_LIMITS__N"} <= set(names)
    assert len(names) == len(set(names))
    assert "TENORA_ENGINE" not in names
    groups = {"engine", "queue", "limits", "imports", "batch", "ray", "log"}
    assert {f"TENORA_{name.upper()}" for name in Settings.model_fields.keys() - groups} <= set(names)


def test_every_setting_and_the_clients_names_are_accepted():
    check_environment(dict.fromkeys([*setting_names(), *CLIENT_NAMES], "x"))
    check_environment({"TENORA_ENGINE": "{}", "TENORA_ENGINE__EXTRA_ARGS__MAX_NUM_SEQS": "8", "tenora_home": "x"})
    check_environment({"HOME": "/", "PATH": "", "NOT_TENORA_PORT": "1"})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TENORA_PROT", "TENORA_PORT"),
        ("TENORA_ENGINE__MAX_LORA", "TENORA_ENGINE__MAX_LORAS"),
        ("TENORA_ENGINE_MAX_LORAS", "TENORA_ENGINE__MAX_LORAS"),
        ("TENORA_DATABSE_URL", "TENORA_DATABASE_URL"),
        ("TENORA_KEYS", "TENORA_KEY"),
        ("tenora_hom", "TENORA_HOME"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(UnknownSetting, match=rf"{name} is not a setting\. Did you mean [\w ]*{nearest}"):
        check_environment({name: "secret value"})


def test_all_unknown_names_are_told_but_no_values():
    with pytest.raises(UnknownSetting) as caught:
        check_environment({"TENORA_A": "hunter2", "TENORA_ZZZZ": "hunter2", "TENORA_PORT": "1"})
    assert str(caught.value).count("is not a setting") == 2
    assert "hunter2" not in str(caught.value)


#: Variables that Kubernetes sets in each pod for the Services ``tenora`` (port named ``http``) and ``tenora-db``.
SERVICE_LINKS = {
    "TENORA_SERVICE_HOST": "10.96.0.7",
    "TENORA_SERVICE_PORT": "8000",
    "TENORA_SERVICE_PORT_HTTP": "8000",
    "TENORA_PORT": "tcp://10.96.0.7:8000",
    "TENORA_PORT_8000_TCP": "tcp://10.96.0.7:8000",
    "TENORA_PORT_8000_TCP_PROTO": "tcp",
    "TENORA_PORT_8000_TCP_PORT": "8000",
    "TENORA_PORT_8000_TCP_ADDR": "10.96.0.7",
    "TENORA_DB_PORT": "tcp://10.96.0.8:5432",
    "TENORA_DB_PORT_5432_TCP": "tcp://10.96.0.8:5432",
    "TENORA_DB_SERVICE_HOST": "10.96.0.8",
}


@pytest.mark.parametrize("names", [list(SERVICE_LINKS), ["TENORA_PORT"], ["TENORA_DB_PORT"], ["TENORA_SERVICE_HOST"]])
def test_what_kubernetes_sets_gets_one_hint(names):
    links = {name: SERVICE_LINKS[name] for name in names}
    with pytest.raises(UnknownSetting, match="enableServiceLinks: false") as caught:
        check_environment(links | {"TENORA_HOME": "/var/lib/tenora"})
    (line,) = str(caught.value).splitlines()
    assert all(name in line for name in names)
    with pytest.raises(UnknownSetting, match="TENORA_PROT is not a setting"):
        check_environment(links | {"TENORA_PROT": "8000"})


def test_a_port_is_no_service_link():
    check_environment({"TENORA_PORT": "8000"})


def test_which_variables_may_hold_a_secret():
    """Secrets, URLs with room for a password, groups of these as JSON, and the client's variables; in any case."""
    secret = {name for name in [*setting_names(), *CLIENT_NAMES] if may_hold_secret(name)}
    assert secret == {
        "TENORA_PEPPER",
        "TENORA_ACCEPTED_PEPPERS",
        "TENORA_IMPORTS__HF_TOKEN",
        "TENORA_DATABASE_URL",
        "TENORA_RAY__DATABASE_URL",
        "TENORA_STORE_URL",
        "TENORA_S3_ENDPOINT_URL",
        "TENORA_S3_PUBLIC_ENDPOINT_URL",
        "TENORA_URL",
        "TENORA_KEY",
        "TENORA_PROFILE",
    }
    assert may_hold_secret("tenora_pepper")
    groups = ["ENGINE", "QUEUE", "LIMITS", "IMPORTS", "RAY", "LOG"]
    assert [group for group in groups if may_hold_secret(f"TENORA_{group}")] == ["IMPORTS", "RAY"]
    assert not any(map(may_hold_secret, ["HOME", "PATH", "HF_TOKEN", "TENORA", "TENORA_"]))


def test_where_to_import_from(monkeypatch):
    assert Settings().imports == ImportSettings()
    assert not Settings().imports.hf
    monkeypatch.setenv("TENORA_IMPORTS__HF", "true")
    monkeypatch.setenv("TENORA_IMPORTS__HF_TOKEN", "hf_secret")
    monkeypatch.setenv("TENORA_IMPORTS__HF_OWNERS", '["org"]')
    monkeypatch.setenv("TENORA_IMPORTS__S3_PREFIXES", '["s3://bucket/prefix/", "s3://other-bucket"]')
    found = Settings().imports
    assert (found.hf, found.hf_owners) == (True, {"org"})
    assert found.s3_prefixes == ("s3://bucket/prefix/", "s3://other-bucket")
    assert "hf_secret" not in repr(found)


@pytest.mark.parametrize(
    "given",
    [
        {"hf_endpoint": "ftp://mirror"},
        {"hf_endpoint": "https://user:password@mirror"},
        {"hf_endpoint": "https://mirror?x"},
        {"s3_prefixes": ["bucket/prefix"]},
        {"s3_prefixes": ["s3://"]},
        {"s3_prefixes": ["s3://bucket//x"]},
        {"s3_prefixes": ["s3://bucket/../x"]},
        {"s3_prefixes": ["s3://Bucket"]},
        {"token": "x"},
    ],
)
def test_imports_from_nowhere(given):
    with pytest.raises(ValidationError):
        ImportSettings(**given)


@given(st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ_", max_size=30))
def test_only_known_names_pass(rest):
    name = f"TENORA_{rest}"
    prefixes = {known[:end] for known in setting_names() for end in range(len(known)) if known[end:].startswith("__")}
    files = {"TENORA_CONFIG_FILE", *(f"{secret}_FILE" for secret in secret_setting_names())}
    known = name in {*setting_names(), *CLIENT_NAMES, *prefixes, *files} or name.startswith(
        "TENORA_ENGINE__EXTRA_ARGS__"
    )
    try:
        check_environment({name: "x"})
    except UnknownSetting:
        assert not known
    else:
        assert known
