"""Saved profiles in the library: which key goes to which server."""

import pytest

from tenora_client import Client, ConfigurationError
from tenora_client.configuration import key_id, resolve
from tenora_client.profiles import Profile, Profiles, config_file, save_profiles
from tests.support.site import Site, Unit


@pytest.fixture
def saved(site: Site, unit: Unit) -> None:
    elsewhere = Profile("elsewhere", "http://tenora.invalid", "tnr_elsewhere")
    save_profiles(Profiles().with_profile(elsewhere).with_profile(Profile("here", site.url, unit.key)))


@pytest.mark.usefixtures("saved")
def test_the_current_profile_is_used_without_arguments(site: Site) -> None:
    with Client() as tenora:
        assert tenora.url == site.url
        assert list(tenora.adapters.list()) == []


@pytest.mark.usefixtures("saved")
def test_a_named_profile_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch, site: Site, unit: Unit) -> None:
    monkeypatch.setenv("TENORA_URL", "http://other.invalid")
    monkeypatch.setenv("TENORA_KEY", "tnr_other")
    monkeypatch.setenv("TENORA_PROFILE", "elsewhere")
    access = resolve(None, None, "here")
    assert (access.url, access.key) == (site.url, unit.key)
    access = resolve(None, None)
    assert (access.url, access.key) == ("http://other.invalid", "tnr_other")
    monkeypatch.delenv("TENORA_URL")
    monkeypatch.delenv("TENORA_KEY")
    assert resolve(None, None).url == "http://tenora.invalid"


@pytest.mark.usefixtures("saved")
def test_a_saved_key_goes_to_its_own_address_only(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    with pytest.raises(ConfigurationError, match=r"no key for http://attacker\.invalid"):
        resolve("http://attacker.invalid", None)
    monkeypatch.setenv("TENORA_URL", "http://attacker.invalid")
    with pytest.raises(ConfigurationError, match=r"no key for http://attacker\.invalid"):
        resolve(None, None)
    assert resolve(f"{site.url}/", None, "here").url == site.url


@pytest.mark.usefixtures("saved")
def test_an_unknown_or_open_profile_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'here'"):
        Client(profile="her")
    config_file().chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Client()


@pytest.mark.parametrize("key", ["tnr_secret", "tnr_1234567890123456789_x", "sk-secret", "tnr_ab_secret", ""])
def test_no_part_of_a_malformed_key_is_shown(key: str) -> None:
    assert key_id(key) == "tnr_..."


def test_the_public_part_of_a_key_is_shown(unit: Unit) -> None:
    assert unit.key.startswith(key_id(unit.key))
    assert len(key_id(unit.key)) == len("tnr_") + 16
