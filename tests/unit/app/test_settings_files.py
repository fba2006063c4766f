"""Settings from a configuration file, and secrets from files."""

import os
from pathlib import Path

import pytest

from app.settings import (
    CLIENT_NAMES,
    Settings,
    UnknownSetting,
    check_environment,
    may_hold_secret,
    secret_setting_names,
    setting_names,
)
from app.settings_files import SettingsFileError, make_paths_absolute

PEPPER = "a pepper of more than thirty-two bytes"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Write the configuration file and name it in the environment."""

    def write(text: str) -> Path:
        path = tmp_path / "tenora.toml"
        path.write_text(text)
        monkeypatch.setenv("TENORA_CONFIG_FILE", str(path))
        return path

    return write


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """Write a secret's file and name it in the environment."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name.lower()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        monkeypatch.setenv(f"TENORA_{name}_FILE", str(path))
        return path

    return write


def test_each_secret_may_come_from_a_file(secret):
    secret("PEPPER", f"{PEPPER}\n")
    secret("ACCEPTED_PEPPERS", '["one", "two"]\n')
    secret("DATABASE_URL", "postgresql://me:hunter2@db/tenora\r\n")
    secret("IMPORTS__HF_TOKEN", "hf_secret")
    settings = Settings()
    assert settings.pepper.get_secret_value() == PEPPER
    assert [one.get_secret_value() for one in settings.accepted_peppers] == ["one", "two"]
    assert settings.database_url == "postgresql://me:hunter2@db/tenora"
    assert settings.imports.hf_token.get_secret_value() == "hf_secret"


def test_only_secrets_have_the_suffix():
    secrets = secret_setting_names()
    assert {"TENORA_PEPPER", "TENORA_DATABASE_URL", "TENORA_IMPORTS__HF_TOKEN"} <= secrets
    assert secrets == {name for name in setting_names() if may_hold_secret(name)}
    check_environment(dict.fromkeys(["TENORA_CONFIG_FILE", *(f"{name}_FILE" for name in secrets)], "x"))
    for name in {*setting_names(), *CLIENT_NAMES} - secrets:
        with pytest.raises(UnknownSetting):
            check_environment({f"{name}_FILE": "x"})
    with pytest.raises(UnknownSetting, match="Did you mean TENORA_CONFIG_FILE"):
        check_environment({"TENORA_CONFIG": "x"})


def test_a_secret_has_one_source(secret, monkeypatch):
    secret("PEPPER", PEPPER)
    monkeypatch.setenv("TENORA_PEPPER", PEPPER)
    with pytest.raises(SettingsFileError, match="TENORA_PEPPER and TENORA_PEPPER_FILE are both set"):
        Settings()


def test_an_empty_variable_names_no_file(monkeypatch):
    monkeypatch.setenv("TENORA_PEPPER_FILE", "")
    monkeypatch.setenv("TENORA_CONFIG_FILE", "")
    assert Settings().pepper is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b" \n", "is empty"), (b"\xff\xfe", "not text in UTF-8"), (b"x" * (2**20 + 1), "more than 1048576 bytes")],
)
def test_a_secret_that_cannot_be_used(secret, content, reason):
    path = secret("PEPPER", content)
    with pytest.raises(SettingsFileError, match=f"TENORA_PEPPER_FILE names {path}, which.*{reason}"):
        Settings()


def test_files_that_do_not_exist(tmp_path, monkeypatch):
    for name in ("TENORA_PEPPER_FILE", "TENORA_CONFIG_FILE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(tmp_path / "none"))
            with pytest.raises(SettingsFileError, match=f"{name} names .*/none, which cannot be read: No such file"):
                Settings()
            patch.setenv(name, str(tmp_path))
            with pytest.raises(SettingsFileError, match="which cannot be read: Is a directory"):
                Settings()


def test_a_configuration_file_sets_any_setting(config):
    config(
        """
        base_model = "/models/llama"
        port = 8080
        preload = ["retail/quotes"]
        [engine]
        max_loras = 16
        extra_args = { max_num_seqs = 64 }
        [limits]
        n = 4
        """
    )
    settings = Settings()
    assert (settings.base_model, settings.port, settings.preload) == ("/models/llama", 8080, ("retail/quotes",))
    assert (settings.engine.max_loras, settings.engine.extra_args) == (16, {"max_num_seqs": 64})
    assert (settings.limits.n, settings.limits.stop) == (4, 16)


def test_the_environment_wins_over_files(config, secret, monkeypatch):
    config('database_url = "sqlite+aiosqlite:////config"\nport = 1\n[limits]\nn = 2\nstop = 3\n')
    secret("DATABASE_URL", "sqlite+aiosqlite:////secret")
    assert Settings().database_url == "sqlite+aiosqlite:////secret"
    monkeypatch.delenv("TENORA_DATABASE_URL_FILE")
    monkeypatch.setenv("TENORA_DATABASE_URL", "sqlite+aiosqlite:////environment")
    monkeypatch.setenv("TENORA_LIMITS__N", "5")
    monkeypatch.setenv("TENORA_PORT", "6")
    settings = Settings(port=7)
    assert settings.database_url == "sqlite+aiosqlite:////environment"
    assert (settings.limits.n, settings.limits.stop, settings.port, Settings().port) == (5, 3, 7, 6)


def test_a_configuration_file_names_files_of_secrets(config, tmp_path):
    (tmp_path / "pepper").write_text(PEPPER)
    (tmp_path / "token").write_text("hf_secret")
    config(f'pepper_file = "pepper"\n[imports]\nhf_token_file = "{tmp_path}/token"\n')
    settings = Settings()
    assert settings.pepper.get_secret_value() == PEPPER
    assert settings.imports.hf_token.get_secret_value() == "hf_secret"


def test_a_configuration_file_holds_no_secret(config):
    config(f'pepper = "{PEPPER}"\naccepted_peppers = ["{PEPPER}"]\n[imports]\nhf_token = "{PEPPER}"\n')
    with pytest.raises(SettingsFileError) as caught:
        Settings()
    assert [line.split()[-1] for line in str(caught.value).splitlines()] == [
        "pepper_file.",
        "accepted_peppers_file.",
        "hf_token_file.",
    ]
    assert PEPPER not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "has prot, which is not a setting. Did you mean port"),
        ("[limits]\nstops = 1", "has stops, which is not a setting. Did you mean stop or"),
        ("[ports]\nx = 1", "has ports, which is not a setting. Did you mean port"),
        ("PORT = 1", "has PORT, which is not a setting."),
        ("port_file = 'x'", "has port_file, which is not a setting."),
        ("port = ", "which is not valid TOML"),
    ],
)
def test_a_configuration_file_with_mistakes(config, text, said):
    path = config(text)
    with pytest.raises(SettingsFileError) as caught:
        Settings()
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_paths_hold_in_other_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = {"TENORA_CONFIG_FILE": "a.toml", "tenora_pepper_file": "b", "TENORA_HOME": "c", "X_FILE": "d"}
    make_paths_absolute(environ, secret_setting_names())
    assert environ == {
        "TENORA_CONFIG_FILE": f"{tmp_path}/a.toml",
        "tenora_pepper_file": f"{tmp_path}/b",
        "TENORA_HOME": "c",
        "X_FILE": "d",
    }
    assert os.environ.get("TENORA_CONFIG_FILE") is None
