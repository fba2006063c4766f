import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest
from app.importing.addresses import NotPublic, is_public, public_addresses
from app.importing.source import BucketSource, HubSource, read_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"hf://org/repo@{COMMIT}", HubSource("org/repo", COMMIT, "")),
        (f"hf://org/repo@{COMMIT}/", HubSource("org/repo", COMMIT, "")),
        (f"hf://Org-1/re.po_2@{COMMIT}/a/b c", HubSource("Org-1/re.po_2", COMMIT, "a/b c")),
        ("s3://bucket/pre/fix/", BucketSource("bucket", ("pre", "fix"))),
        ("s3://bucket/pre/fix", BucketSource("bucket", ("pre", "fix"))),
        ("s3://bucket", BucketSource("bucket", ())),
        ("s3://my.bucket-1/Größe/", BucketSource("my.bucket-1", ("Größe",))),
    ],
)
def test_sources(text: str, expected: object) -> None:
    found = read_source(text)
    assert found == expected
    assert read_source(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hf://org/repo",
        "hf://org/repo@main",
        f"hf://org/repo@{COMMIT[:39]}",
        f"hf://org/repo@{COMMIT.upper()}",
        f"hf://org/repo@{COMMIT}0",
        f"hf://repo@{COMMIT}",
        f"hf://org/../repo@{COMMIT}",
        f"hf://../repo@{COMMIT}",
        f"hf://org/re..po@{COMMIT}",
        f"hf://org/re--po@{COMMIT}",
        f"hf://org/.repo@{COMMIT}",
        f"hf://org/repo@{COMMIT}/../x",
        f"hf://org/repo@{COMMIT}/a//b",
        f"hf://org/repo@{COMMIT}/a?b=c",
        f"hf://org/repo@{COMMIT}/a%2e%2e",
        f"hf://org/repo@{COMMIT}/./a",
        f"hf://user:secret@host/org/repo@{COMMIT}",
        f"https://huggingface.co/org/repo@{COMMIT}",
        "s3://",
        "s3://B/x",
        "s3://b/../x",
        "s3://bucket/../x",
        "s3://bucket//x",
        "s3://bucket/a/./b",
        "s3://bucket/a\nb",
        "s3://bucket/" + "a" * 1000,
        "S3://bucket/x",
        "file:///etc/passwd",
        "/etc/passwd",
        "./folder",
    ],
)
def test_other_text(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_source(text)
    assert caught.value.param == "source"


def test_a_commit_is_named_in_the_provenance() -> None:
    found = read_source(f"hf://org/repo@{COMMIT}/sub")
    assert found.provenance() == {"kind": "import", "from": f"hf://org/repo@{COMMIT}/sub", "commit": COMMIT}
    assert read_source("s3://bucket/x").provenance() == {"kind": "import", "from": "s3://bucket/x/"}


@pytest.mark.parametrize(
    ("asked", "allowed", "is_under"),
    [
        ("s3://bucket/pre", "s3://bucket/pre/", True),
        ("s3://bucket/pre/deeper/", "s3://bucket/pre", True),
        ("s3://bucket/prefix", "s3://bucket/pre", False),
        ("s3://bucket", "s3://bucket/pre", False),
        ("s3://bucket/x/pre", "s3://bucket/pre", False),
        ("s3://bucket2/pre", "s3://bucket/pre", False),
        ("s3://bucket/pre", "s3://bucket", True),
    ],
)
def test_prefixes_match_whole_segments(asked: str, allowed: str, is_under: bool) -> None:
    one, other = read_source(asked), read_source(allowed)
    assert isinstance(one, BucketSource)
    assert isinstance(other, BucketSource)
    assert one.is_under(other) is is_under


SEGMENTS = st.lists(st.text("ab.", min_size=1, max_size=3).filter(lambda s: s not in {".", ".."}), max_size=4)


@given(SEGMENTS, SEGMENTS)
def test_under_means_that_every_key_starts_with_the_prefix(asked: list[str], allowed: list[str]) -> None:
    one, other = BucketSource("b", tuple(asked)), BucketSource("b", tuple(allowed))
    prefix = "".join(f"{segment}/" for segment in allowed)
    assert one.is_under(other) is one.key("name").startswith(prefix)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),  # noqa: S104
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fd00::1", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:a00:1::", "64:ff9b::a00:1", "2001:0:4136:e378::1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "a" * 70 + ".com", "127.1", ""])
async def test_hosts_of_this_network_have_no_public_address(host: str) -> None:
    with pytest.raises(NotPublic):
        await public_addresses(host, 443)


async def test_an_address_may_stand_for_itself() -> None:
    assert await public_addresses("8.8.8.8", 443) == ["8.8.8.8"]
