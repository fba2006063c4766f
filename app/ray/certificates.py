"""Certificates of a cluster's TLS: a certificate authority, and one certificate for each machine.

Each process of Ray is client and server at once, and checks the address of its peer. A certificate therefore names the
addresses of its machine, and serves both sides.
"""

import datetime as dt
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_Key = ec.EllipticCurvePrivateKey

_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII | re.IGNORECASE)
_AUTHORITY_DAYS = 3650
_AUTHORITY_NAME = "Tenora cluster"
#: Clocks of two machines may differ by this much.
_SKEW = dt.timedelta(hours=1)


class CertificateFailed(ValueError):
    """The certificate authority or an address cannot be used."""


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of one certificate and its key, by the names that a Secret of the type ``kubernetes.io/tls`` uses."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: _Key


def create_authority(folder: Path) -> None:
    """Create the cluster's certificate authority in a folder, unless it is there. Blocks.

    Raises:
        OSError: the folder cannot be read or written.
    """
    files = Files(folder)
    if files.certificate.exists() and files.key.exists():
        return
    key, name = _new_key(), _name(_AUTHORITY_NAME)
    certificate = (
        _builder(name, name, key, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(files, certificate, key)


def issue(authority: Path, folder: Path, addresses: Iterable[str], *, days: int) -> None:
    """Issue the certificate of a machine into a folder. Blocks.

    Args:
        addresses: IP addresses and host names of the machine.

    Raises:
        CertificateFailed: also if an address is not valid.
        OSError: a folder cannot be read or written.
    """
    issuer, key = _read(Files(authority)), _new_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(issuer.key.public_key())
    names = [_alternative_name(address) for address in dict.fromkeys(addresses)]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(_name("Tenora node"), issuer.certificate.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(issuer.key, hashes.SHA256())
    )
    _write(Files(folder), certificate, key)


def _alternative_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    if not _HOST.fullmatch(address):
        raise CertificateFailed(
            f"{address[:60]!r} is neither an IP address nor a host name. Write one such as 10.0.0.5."
        )
    return x509.DNSName(address)


def _read(files: Files) -> _Authority:
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise CertificateFailed(f"The certificate authority in {files.folder} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise CertificateFailed(
            f"The certificate and the key in {files.folder} do not belong together, or the key is not an EC key. "
            "Copy both files from the machine that created them."
        )
    return _Authority(certificate, key)


def _builder(subject: x509.Name, issuer: x509.Name, key: _Key, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _new_key() -> _Key:
    return ec.generate_private_key(ec.SECP256R1())


def _write(files: Files, certificate: x509.Certificate, key: _Key) -> None:
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    _replace(files.key, key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    _replace(files.certificate, certificate.public_bytes(encoding))


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
