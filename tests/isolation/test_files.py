"""Files and uploads of another tenant: every answer equals the answer for an id that never existed."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.support.file_calls import ABSENT_FILE, ABSENT_PART, ABSENT_UPLOAD, LINE, add_part, begin, content, create
from tests.support.foreign_ids import masked
from tests.support.site import Site, Unit, make_unit
from tests.support.timing import Stopwatch, assert_alike

SECRET = b"the owner's prompt"


@dataclass(frozen=True)
class Owned:
    """Ids that the attacker has learned."""

    file: str
    upload: str
    part: str


@pytest.fixture(scope="module")
def owner(site: Site, admin: httpx.Client) -> Iterator[httpx.Client]:
    with site.client(make_unit(admin).key) as client:
        yield client


@pytest.fixture(scope="module")
def attacking(admin: httpx.Client) -> Unit:
    return make_unit(admin)


@pytest.fixture(scope="module")
def attacker(site: Site, attacking: Unit) -> Iterator[httpx.Client]:
    with site.client(attacking.key) as client:
        yield client


@pytest.fixture(scope="module")
def owned(owner: httpx.Client) -> Owned:
    upload = begin(owner, 4)["id"]
    return Owned(create(owner, SECRET, name="secret.jsonl")["id"], upload, add_part(owner, upload, b"part"))


def calls(file: str, upload: str, part: str) -> list[tuple[str, Callable[[httpx.Client], httpx.Response]]]:
    """Return every call that names a file, an upload or a part."""
    return [
        ("show", lambda client: client.get(f"/v1/files/{file}")),
        ("download", lambda client: client.get(f"/v1/files/{file}/content")),
        ("delete", lambda client: client.delete(f"/v1/files/{file}")),
        ("cursor", lambda client: client.get("/v1/files", params={"after": file})),
        ("add part", lambda client: client.post(f"/v1/uploads/{upload}/parts", files={"data": ("x", b"x")})),
        ("complete", lambda client: client.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]})),
        ("cancel", lambda client: client.post(f"/v1/uploads/{upload}/cancel")),
    ]


def test_each_answer_equals_that_for_an_absent_id(attacker: httpx.Client, owner: httpx.Client, owned: Owned) -> None:
    foreign = calls(owned.file, owned.upload, owned.part)
    absent = calls(ABSENT_FILE, ABSENT_UPLOAD, ABSENT_PART)
    for (name, call), (_, twin) in zip(foreign, absent, strict=True):
        answer = call(attacker)
        assert answer.status_code == 404, name
        assert masked(answer) == masked(twin(attacker)), name
    assert content(owner, owned.file) == SECRET


def test_a_foreign_part_cannot_be_joined(attacker: httpx.Client, owned: Owned) -> None:
    upload = begin(attacker, 4)["id"]
    answers = [
        attacker.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]}) for part in (owned.part, ABSENT_PART)
    ]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert masked(answers[0]) == masked(answers[1])
    attacker.post(f"/v1/uploads/{upload}/cancel")


def test_lists_have_own_files_only(attacker: httpx.Client, owned: Owned) -> None:
    own = create(attacker)["id"]
    for params in ({}, {"purpose": "batch"}, {"order": "asc"}, {"limit": 1}):
        text = attacker.get("/v1/files", params=params).text
        assert own in text
        assert owned.file not in text
        assert "secret" not in text


def test_a_deletion_of_a_foreign_file_is_hidden(attacker: httpx.Client, owner: httpx.Client) -> None:
    deletion = owner.delete(f"/v1/files/{create(owner)['id']}").json()["deletion"]
    absent = "0" * 32
    answers = [attacker.get(f"/v1/deletions/{identity}") for identity in (deletion, absent)]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text.replace(deletion, absent) == answers[1].text
    assert deletion not in attacker.get("/v1/deletions").text


def test_equal_contents_share_nothing(site: Site, attacker: httpx.Client, owner: httpx.Client) -> None:
    before = site.blobs
    theirs, own = create(owner, SECRET * 100), create(attacker, SECRET * 100)
    assert len(site.blobs - before) == 2
    assert attacker.delete(f"/v1/files/{own['id']}").status_code == 200
    assert content(owner, theirs["id"]) == SECRET * 100


def test_a_name_cannot_leave_its_header(attacker: httpx.Client) -> None:
    body = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    body += b'--b\r\ncontent-disposition: form-data; name="file"; filename="a\\"; x=\r\n\t y.jsonl"\r\n\r\n'
    body += LINE + b"\r\n--b--\r\n"
    answer = attacker.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    if answer.status_code == 200:
        headers = attacker.get(f"/v1/files/{answer.json()['id']}/content").headers
        assert re.fullmatch(r'attachment; filename="[^"\\\r\n]*"(; filename\*=UTF-8\'\'[\w%.~-]*)?',
                            headers["content-disposition"])  # fmt: skip
    else:
        assert answer.status_code == 400


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/content"), ("DELETE", "")])
def test_foreign_and_absent_files_take_the_same_time(
    site: Site, attacking: Unit, owned: Owned, method: str, path: str
) -> None:
    with Stopwatch(site.url) as watch:

        def ask(file: str) -> Callable[[], float]:
            return lambda: watch.seconds(method, f"/v1/files/{file}{path}", key=attacking.key, status=404)

        assert_alike(f"{method} {path}", ask(owned.file), ask(ABSENT_FILE))
