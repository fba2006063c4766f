"""Ray as an extra, and the environment in which it may start."""

import stat
from pathlib import Path

import pytest

from app.ray.certificates import create_authority, issue
from app.ray.library import RayMissing, Unsafe, check_network, is_loopback, prepare, require_ray, tls_variables
from app.ray.token import token_path


def test_without_ray_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(RayMissing, match=r"pip install 'tenora\[ray\]'"):
        require_ray()


@pytest.mark.parametrize("mode", ["disabled", "", "Disabled", "k8s"])
def test_a_cluster_without_tokens_is_refused(mode: str, tmp_path: Path) -> None:
    with pytest.raises(Unsafe, match="RAY_AUTH_MODE"):
        prepare(tmp_path, {"RAY_AUTH_MODE": mode})


def test_the_token_lies_in_home_and_reports_are_off(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    prepare(tmp_path, environment)
    path = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert path == tmp_path.resolve() / "secrets" / "ray-token"
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text()) == 64


def test_a_token_of_the_operator_is_kept(tmp_path: Path) -> None:
    environment = {"RAY_AUTH_TOKEN_PATH": "/run/secrets/token"}
    prepare(tmp_path, environment)
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/token"
    assert not (tmp_path / "secrets").exists()


def test_the_token_is_made_once(tmp_path: Path) -> None:
    assert token_path(tmp_path).read_text() == token_path(tmp_path).read_text()


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "example.org", "[2001:db8::1]"])  # noqa: S104 - refused
def test_plain_text_off_loopback_is_refused(host: str) -> None:
    with pytest.raises(Unsafe, match="unencrypted"):
        check_network(host, {}, plaintext=False)
    with pytest.raises(Unsafe):
        check_network(host, {"RAY_USE_TLS": "0"}, plaintext=False)
    check_network(host, {}, plaintext=True)


def test_tls_needs_three_files_that_can_be_read(tmp_path: Path) -> None:
    authority, own = tmp_path / "authority", tmp_path / "own"
    variables = tls_variables(authority, own)
    with pytest.raises(Unsafe, match=r"RAY_TLS_SERVER_CERT is .*/own/tls.crt, which cannot be read: No such file"):
        check_network("10.0.0.1", variables, plaintext=False)
    create_authority(authority)
    issue(authority, own, ["10.0.0.1"], days=1)
    for host in ("10.0.0.1", "127.0.0.1"):
        check_network(host, variables, plaintext=False)
        for name in list(variables)[1:]:
            with pytest.raises(Unsafe, match=f"{name} is not set. Run `tenora engines certificate`"):
                check_network(host, variables | {name: ""}, plaintext=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_tls(host: str) -> None:
    assert is_loopback(host)
    check_network(host, {}, plaintext=False)
