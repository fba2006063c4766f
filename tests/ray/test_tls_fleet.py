"""TLS of a cluster on an address of the network: what it encrypts, and which clients it refuses."""

import ipaddress
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from app.ray import cluster
from app.ray.certificates import create_authority, issue
from app.ray.library import Unsafe, tls_variables
from app.settings import Settings
from tests.support.light_cluster import light_cluster
from tests.support.light_processes import Listener, clean_environment, listeners

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: Ray's metrics and its agents speak HTTP without TLS. No request and no answer of a tenant passes them.
PLAIN = {"dashboard.py", "monitor.py", "ray::DashboardAgent", "ray::RuntimeEnvAgent"}


@dataclass(frozen=True)
class TlsFleet:
    home: Path
    host: str
    #: Variables of a process with a certificate of the cluster's authority, and with one of another authority.
    trusted: dict[str, str]
    foreign: dict[str, str]

    def client(self, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.support.light_client", str(self.home)]
        environment = clean_environment() | {"TENORA_RAY__HOST": self.host, "TENORA_RAY__ADDRESS": "local"} | variables
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def own_address() -> str:
    """Return an IPv4 address of this machine that is not loopback."""
    found = [one.address for ones in psutil.net_if_addrs().values() for one in ones if one.family is socket.AF_INET]
    return next(address for address in found if not ipaddress.ip_address(address).is_loopback)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsFleet]:
    home, host = tmp_path_factory.mktemp("tls"), own_address()
    variables = []
    for name in ("trusted", "foreign"):
        authority, own = home / name / "authority", home / name / "own"
        create_authority(authority)
        issue(authority, own, [host, "127.0.0.1"], days=1)
        variables.append(tls_variables(authority, own))
    with patch.dict(os.environ, variables[0]), light_cluster(home, "2", host=host):
        yield TlsFleet(home, host, *variables)


def test_requests_are_answered_over_tls(fleet: TlsFleet) -> None:
    done = fleet.client(fleet.trusted)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "events 1\nevents 21\n"


def test_a_client_in_plain_text_is_refused(fleet: TlsFleet) -> None:
    done = fleet.client({})
    assert (done.returncode, done.stdout) == (1, "")
    assert "prompts and answers would cross the network unencrypted" in done.stderr
    done = fleet.client({"TENORA_RAY__PLAINTEXT": "true"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not answer to plain text. It may run with TLS" in done.stderr


def test_certificates_of_another_authority_are_refused(fleet: TlsFleet) -> None:
    own = {name: fleet.foreign[name] for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY")}
    for variables in (fleet.foreign, fleet.trusted | own):
        done = fleet.client(variables)
        assert (done.returncode, done.stdout) == (1, "")
        assert "Check that both sides use TLS, with certificates of one authority" in done.stderr


def test_engines_up_off_loopback_demands_tls(tmp_path: Path) -> None:
    sentence, host = "Run `tenora engines certificate`, which prints the variables of TLS", own_address()
    with patch.dict(os.environ, clean_environment(), clear=True):
        with pytest.raises(Unsafe, match=sentence), cluster.head(Settings(home=tmp_path, ray={"host": host})):
            pass
        with pytest.raises(Unsafe, match=sentence):
            cluster.connect(Settings(home=tmp_path, ray={"address": f"{host}:6379"}))


def handshake(listener: Listener, context: ssl.SSLContext) -> bool:
    """Return whether a connection with TLS stays open. A server refuses a client's certificate after its handshake."""
    try:
        with (
            socket.create_connection((listener.address, listener.port), 10) as connection,
            context.wrap_socket(connection, server_hostname=listener.address) as secured,
        ):
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            return secured.recv(1) != b""
    except (ssl.SSLError, ConnectionResetError):
        return False


def context(variables: dict[str, str], *, authority: str, certificate: bool = True) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority)
    made.set_alpn_protocols(["h2"])
    made.check_hostname = False
    if certificate:
        made.load_cert_chain(variables["RAY_TLS_SERVER_CERT"], variables["RAY_TLS_SERVER_KEY"])
    return made


def test_every_port_of_requests_demands_a_certificate(fleet: TlsFleet) -> None:
    authority = fleet.trusted["RAY_TLS_CA_CERT"]
    trusted = context(fleet.trusted, authority=authority)
    found = listeners(fleet.home, fleet.host)
    encrypted = [listener for listener in found if handshake(listener, trusted)]
    assert sum(listener.process.startswith("ray::ServeReplica") for listener in encrypted) >= 2
    assert {listener.process for listener in found if listener not in encrypted} <= PLAIN
    for listener in encrypted:
        assert not handshake(listener, context(fleet.foreign, authority=authority))
        assert not handshake(listener, context(fleet.trusted, authority=authority, certificate=False))
