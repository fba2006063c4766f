"""Debian's nginx with the shipped configuration, in front of servers on the test's ports."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import free_port

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx" / "tenora.conf"
PUBLIC = CONFIGURATION.with_name("tls.conf")
_FRAME = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; user root;
events {{ worker_connections 1024; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/tenora.conf;
}}
"""


@contextmanager
def running_nginx(folder: Path, ports: Sequence[int]) -> Iterator[str]:
    """Run nginx in front of the two servers on these ports; yield its URL."""
    port = free_port()
    text = CONFIGURATION.read_text()
    for written, taken in zip((8000, 8001, 8002), (port, *ports), strict=True):
        assert text.count(f"127.0.0.1:{written}") == 1
        text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{taken}")
    with _running(folder, text):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running_public_nginx(folder: Path, ports: Sequence[int], changes: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run nginx with TLS in front of the servers on these ports; yield its URL.

    The certificate is ``certificate.pem`` in the folder.

    Args:
        changes: texts of the configuration, and what stands in their place.
    """
    certificate, key, port = folder / "certificate.pem", folder / "key.pem", free_port()
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    text = PUBLIC.read_text()
    places = {
        "listen 8443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/run/secrets/tls_certificate;": f"{certificate};",
        "/run/secrets/tls_key;": f"{key};",
    }
    for written, taken in (places | dict(changes or {})).items():
        assert text.count(written) == 1
        text = text.replace(written, taken)
    servers = "".join(f"server 127.0.0.1:{server} max_fails=0;" for server in ports)
    with _running(folder, f"upstream tenora {{ {servers} }}\n{text}"):
        yield f"https://127.0.0.1:{port}"


@contextmanager
def _running(folder: Path, text: str) -> Iterator[None]:
    program = shutil.which("nginx")
    if program is None:
        raise SystemExit("nginx is not installed: run deploy/ci/prepare.sh")
    (folder / "tenora.conf").write_text(text)
    (folder / "nginx.conf").write_text(_FRAME.format(folder=folder))
    process = subprocess.Popen([program, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()
