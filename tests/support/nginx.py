"""Debian's nginx with the shipped configuration, in front of servers on the test's ports."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import free_port

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx" / "tenora.conf"
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
    program, port = shutil.which("nginx"), free_port()
    if program is None:
        raise SystemExit("nginx is not installed: run deploy/ci/prepare.sh")
    text = CONFIGURATION.read_text()
    for written, taken in zip((8000, 8001, 8002), (port, *ports), strict=True):
        assert text.count(f"127.0.0.1:{written}") == 1
        text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{taken}")
    (folder / "tenora.conf").write_text(text)
    (folder / "nginx.conf").write_text(_FRAME.format(folder=folder))
    process = subprocess.Popen([program, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
