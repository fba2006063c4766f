"""Certificates of a cluster, read by OpenSSL."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.engines import app
from app.ray.certificates import CertificateFailed, Files, create_authority, issue

ADDRESS = "10.1.2.3"


def openssl(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("openssl")
    assert found is not None
    return subprocess.run([found, *arguments], capture_output=True, text=True)


def verified(authority: Path, own: Path, *options: str) -> bool:
    ca, certificate = Files(authority).certificate, Files(own).certificate
    return openssl("verify", "-x509_strict", "-CAfile", str(ca), *options, str(certificate)).returncode == 0


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    authority, own = tmp_path / "authority", tmp_path / "own"
    create_authority(authority)
    issue(authority, own, [ADDRESS], days=30)
    return authority, own


@pytest.mark.parametrize("purpose", ["sslserver", "sslclient"])
def test_a_certificate_serves_both_sides_of_its_address(folders: tuple[Path, Path], purpose: str) -> None:
    assert verified(*folders, "-purpose", purpose, "-verify_ip", "10.1.2.3")
    assert not verified(*folders, "-purpose", purpose, "-verify_ip", "10.1.2.4")


def test_another_authority_does_not_verify_it(folders: tuple[Path, Path], tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    assert not verified(tmp_path / "other", folders[1])


def test_a_certificate_cannot_issue_others(folders: tuple[Path, Path], tmp_path: Path) -> None:
    issue(folders[1], tmp_path / "forged", [ADDRESS], days=1)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(Files(folders[0]).certificate.read_bytes() + Files(folders[1]).certificate.read_bytes())
    forged = str(Files(tmp_path / "forged").certificate)
    assert openssl("verify", "-CAfile", str(chain), forged).returncode != 0


def test_it_expires_after_its_days(folders: tuple[Path, Path]) -> None:
    def lasts(seconds: int) -> bool:
        certificate = str(Files(folders[1]).certificate)
        return openssl("x509", "-noout", "-checkend", str(seconds), "-in", certificate).returncode == 0

    assert lasts(29 * 86400)
    assert not lasts(31 * 86400)


def test_keys_are_for_their_user_alone(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        assert stat.S_IMODE(Files(folder).key.stat().st_mode) == 0o600


def test_an_authority_is_made_once(folders: tuple[Path, Path]) -> None:
    before = Files(folders[0]).certificate.read_bytes()
    create_authority(folders[0])
    assert Files(folders[0]).certificate.read_bytes() == before


def test_a_damaged_authority_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    Files(folders[0]).key.write_bytes(Files(tmp_path / "other").key.read_bytes())
    with pytest.raises(CertificateFailed, match="do not belong together"):
        issue(*folders, [ADDRESS], days=1)
    Files(folders[0]).key.write_text("no key")
    with pytest.raises(CertificateFailed, match="cannot be read"):
        issue(*folders, [ADDRESS], days=1)


def test_the_command_prints_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENORA_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["certificate", "--address", "10.1.2.3", "--address", "fd00::5"])
    assert result.exit_code == 0, result.output
    lines = dict(line.removeprefix("export ").split("=", 1) for line in result.stdout.splitlines())
    assert lines["RAY_USE_TLS"] == "1"
    own, authority = Path(lines["RAY_TLS_SERVER_CERT"]).parent, Path(lines["RAY_TLS_CA_CERT"]).parent
    for address in ("10.1.2.3", "fd00::5", "127.0.0.1"):
        assert verified(authority, own, "-verify_ip", address)


def test_a_certificate_may_name_hosts(folders: tuple[Path, Path]) -> None:
    issue(*folders, [ADDRESS, "engines-head-svc.ai.svc.cluster.local"], days=1)
    assert verified(*folders, "-verify_hostname", "engines-head-svc.ai.svc.cluster.local")
    assert not verified(*folders, "-verify_hostname", "other.ai.svc.cluster.local")


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--address", "10.0.0.0/8"], 1, "'10.0.0.0/8' is neither an IP address nor a host name."),
        ([], 2, "The certificate would name no address of the network. Add --address"),
    ],
)
def test_the_command_refuses_what_names_no_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, sentence: str
) -> None:
    monkeypatch.setenv("TENORA_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["certificate", *options])
    assert result.exit_code == code
    assert sentence in " ".join(result.stderr.split())
    assert not (tmp_path / "secrets" / "ray-tls").exists()
