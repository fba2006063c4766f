"""Multipart inputs: parts as clients send them, mutated at the structural points of the format."""

import random

from tests.fuzz.adapter_inputs import GOOD_WEIGHTS, MANIFEST
from tests.fuzz.archive_inputs import SEEDS
from tests.fuzz.mutations import dump, mutate_bytes

_FORM_CONFIG, _FORM_WEIGHTS = dump(random.Random(7), MANIFEST)[:120], GOOD_WEIGHTS[:200]
BOUNDARY = b"----boundary"


def form_input(rng: random.Random) -> tuple[bytes, bytes]:
    """Generate a ``content-type`` and a body."""
    parts = [(b"adapter_config.json", _FORM_CONFIG), (b"adapter_model.safetensors", _FORM_WEIGHTS)]
    if rng.random() < 0.15:
        parts = [(b"archive", rng.choice(SEEDS))]
    if rng.random() < 0.3:
        parts.append((b"options", rng.choice((b"{}", b'{"alias": null}', b"[]", b"", b'{"a":' * 9, b"\xff"))))
    if rng.random() < 0.2:
        parts = rng.choices(parts, k=rng.choice((1, 2, 3, 4, 20)))
    pieces = [_form_part(rng, name, data) for name, data in parts]
    pieces.append(
        rng.choice((b"--%s--\r\n", b"--%s--", b"--%s--\r\n", b"--%s", b"--%s--\r\nepilogue", b"", b"--%s\r\n"))
    )
    body = b"".join(piece.replace(b"%s", BOUNDARY) for piece in pieces)
    if rng.random() < 0.3:
        body = mutate_bytes(rng, body, (b"\r\n--" + BOUNDARY, *SEEDS))
    content_type = b"multipart/form-data; boundary=" + BOUNDARY
    return (mutate_bytes(rng, content_type) if rng.random() < 0.1 else content_type), body


def _form_part(rng: random.Random, name: bytes, data: bytes) -> bytes:
    if rng.random() < 0.1:
        name = mutate_bytes(rng, name)
    lines = [b'Content-Disposition: form-data; name="' + name + b'"']
    if rng.random() < 0.3:
        lines.append(b"Content-Type: application/octet-stream")
    if rng.random() < 0.1:
        lines.insert(
            rng.randrange(2), rng.choice((b"X: y", b"x" * 9000 + b": y", b": ", b"Content-Disposition", b"", b"\0: "))
        )
    if rng.random() < 0.1:
        lines[0] += rng.choice(
            (b'; filename="../../evil"', b"; name=other", b"; filename*=UTF-8''%ff", b'; name="', b";;;=" * 50)
        )
    newline = b"\n" if rng.random() < 0.05 else b"\r\n"
    return newline.join((b"--%s", *lines, b"", data, b""))
