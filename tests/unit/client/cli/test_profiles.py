"""Profiles: a saved address and key, the order of sources, and files that are open, broken or cannot be written."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenora_client.profiles import Profile, Profiles, config_file, load_profiles, save_profiles
from tests.support.cli import Tenora

DEAD = "http://127.0.0.1:9"


@pytest.fixture
def saved(alone: Tenora, site: tuple[str, str]) -> Path:
    """File of a profile that `tenora login` has saved."""
    url, key = site
    alone("login", "--url", url, "--key", key)
    return config_file()


def test_login_saves_a_profile_for_the_owner_alone(alone: Tenora, saved: Path, site: tuple[str, str]) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
    assert saved.parent.stat().st_mode & 0o777 == 0o700
    assert list(saved.parent.iterdir()) == [saved]
    shown = alone("whoami")
    assert "the profile default" in shown.stdout
    assert site[1] not in shown.stdout + shown.stderr
    assert alone.json("whoami")["tenant"] is None
    assert alone.json("tenants", "list") is not None


def test_login_reads_the_key_from_stdin_and_keeps_it_secret(site: tuple[str, str], tmp_path: Path) -> None:
    url, key = site
    done = _run(["login", "--url", url, "--key", "-", "--profile", "work"], tmp_path, text=f"{key}\n")
    assert done.returncode == 0
    assert "profile work" in done.stderr
    assert key not in done.stdout + done.stderr


def test_login_without_a_terminal_asks_for_options(alone: Tenora) -> None:
    assert "--key -" in alone("login", exit_code=2).stderr


def test_a_wrong_key_is_not_saved(alone: Tenora, site: tuple[str, str]) -> None:
    assert "did not accept the key" in alone("login", "--url", site[0], "--key", "tnr_x", exit_code=1).stderr
    alone("login", "--url", DEAD, "--key", "tnr_x", exit_code=3)
    assert not config_file().exists()


def test_logout_removes_the_profile(alone: Tenora, saved: Path) -> None:
    assert "still works" in alone("logout").stderr
    assert load_profiles() == Profiles()
    assert "No profile is saved" in alone("logout", exit_code=2).stderr
    assert "There is no key" in alone("whoami", exit_code=2).stderr


def test_sources_of_server_and_key_have_an_order(alone: Tenora, saved: Path, site: tuple[str, str]) -> None:
    url, _ = site
    alone("login", "--url", url, "--key", site[1], "--profile", "other")
    save_profiles(load_profiles().with_profile(Profile("dead", DEAD, "tnr_x")))
    alone("tenants", "list", exit_code=3)
    alone("tenants", "list", "--profile", "other")
    alone("tenants", "list", TENORA_PROFILE="other")
    # An option comes before the environment, and the environment before the current profile.
    alone("tenants", "list", "--profile", "other", TENORA_URL=DEAD, TENORA_KEY="tnr_x")
    assert "from TENORA_KEY" in alone("tenants", "list", exit_code=1, TENORA_URL=url, TENORA_KEY="tnr_x").stderr
    alone("use", "other")
    alone("tenants", "list")
    listed = alone.json("profiles")
    assert {row["name"]: row["current"] for row in listed} == {"default": False, "other": True, "dead": False}
    assert site[1] not in str(listed)


def test_a_key_goes_to_the_address_of_its_profile_only(alone: Tenora, saved: Path) -> None:
    error = alone("tenants", "list", "--url", DEAD, exit_code=2).stderr
    assert f"There is no key for {DEAD}. The profile default is for http://127.0.0.1:" in error


def test_a_mistyped_profile_gets_a_proposal(alone: Tenora, saved: Path) -> None:
    assert "Did you mean 'default'?" in alone("whoami", "--profile", "defalt", exit_code=2).stderr


def test_a_revoked_key_names_its_profile(alone: Tenora, tenora: Tenora, site: tuple[str, str]) -> None:
    made = tenora.json("keys", "create", "x", "--platform")
    alone("login", "--url", site[0], "--key", made["key"], "--profile", "ending")
    tenora("keys", "revoke", made["id"], "--platform")
    error = alone("whoami", exit_code=1).stderr
    assert f"Key tnr_{made['id']} from the profile ending is wrong, expired or revoked." in error
    assert "tenora login --profile ending" in error
    assert made["key"] not in error


def test_a_malformed_key_is_not_shown(alone: Tenora, site: tuple[str, str]) -> None:
    error = alone("whoami", "--url", site[0], "--key", "tnr_secretwithoutanid", exit_code=1).stderr
    assert "secretwithoutanid" not in error


def test_open_permissions_are_refused(alone: Tenora, saved: Path) -> None:
    saved.chmod(0o640)
    assert f"Run `chmod 600 {saved}`" in alone("whoami", exit_code=2).stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("url = x\n", "Line 1"),
        ("[profile a]\nurl = x\nkey\n", "Line 3"),
        ("[profile a]\nurl = x\nurl = y\n", "Line 3"),
        ("[profile a]\nurl = x\nkey = k\n[profile a]\n", "Line 4"),
        ("# mine\n[profile a]\nurl = x\n", "Line 2"),
        ("[profile a]\nurl = \u00fc\nkey = k\n", "no usable 'url'"),
    ],
)
def test_a_broken_file_names_its_line(alone: Tenora, saved: Path, content: str, words: str) -> None:
    saved.write_text(content)
    error = alone("whoami", exit_code=2).stderr
    assert words in error
    assert "run `tenora login`" in error
    assert error.count("\n") == 1


def test_bytes_that_are_no_text_are_named(alone: Tenora, saved: Path) -> None:
    saved.write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in alone("whoami", exit_code=2).stderr


def test_a_full_disk_keeps_the_old_file(saved: Path, site: tuple[str, str], tmp_path: Path) -> None:
    before = saved.read_bytes()

    def no_space() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

    done = _run(["login", "--url", site[0], "--key", site[1], "--profile", "b"], tmp_path, preexec_fn=no_space)
    assert done.returncode == 1
    assert "The old file is unchanged." in done.stderr
    assert "Traceback" not in done.stderr
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_link_to_the_file_stays_a_link(alone: Tenora, saved: Path, site: tuple[str, str], tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.ini"
    saved.rename(target)
    saved.symlink_to(target)
    alone("login", "--url", site[0], "--key", site[1], "--profile", "b")
    assert saved.is_symlink()
    assert set(load_profiles().by_name) == {"default", "b"}


def test_profiles_show_no_secret() -> None:
    assert "tnr_secret" not in repr(Profile("a", "http://x", "tnr_secret"))


def _run(
    arguments: list[str], tmp_path: Path, *, text: str = "", **options: object
) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-B", "-m", "tenora_client", *arguments]
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "TENORA_HOME": str(tmp_path / "home")}
    return subprocess.run(
        program,
        env=environment,
        cwd=tmp_path,
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )
