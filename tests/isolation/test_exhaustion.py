"""Resource exhaustion: one tenant takes all it can get of a shared resource, and the others are still served."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.support.serving import peft_files
from tests.support.site import Site, make_unit, parts

BOUNDARY = "x"


@contextmanager
def unfinished_upload(site: Site, key: str, adapter: str) -> Iterator[None]:
    """Upload that has begun to arrive and stalls."""
    place = urlsplit(site.url)
    head = (
        f"POST /v1/adapters/{adapter}/versions HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: multipart/form-data; boundary={BOUNDARY}\r\ncontent-length: 1000000\r\n\r\n"
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="adapter_config.json"; filename="x"\r\n\r\n'
    )
    with socket.create_connection((place.hostname or "", place.port or 0)) as connection:
        connection.sendall(head.encode() + b"{" * 1000)
        yield


def test_all_places_of_uploads(site: Site, admin: httpx.Client, tmp_path: Path) -> None:
    attacker, victim = make_unit(admin), make_unit(admin)
    with ExitStack() as held, site.client(victim.key) as own:
        for number in range(3 * site.settings.limits.uploads):
            held.enter_context(unfinished_upload(site, attacker.key, f"slow-{number}"))
        for seed in range(3):
            mine = peft_files(tmp_path / str(seed), seed=seed)
            assert own.post(f"/v1/adapters/mine-{seed}/versions", files=parts(mine)).status_code == 201
        with site.client(attacker.key) as theirs:
            assert theirs.get("/v1/models").status_code == 200
