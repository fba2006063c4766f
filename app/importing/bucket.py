"""S3 source: objects of buckets by their exact keys, read with this server's credentials."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from adapters.errors import StoreUnavailable
from adapters.stores.files import disk_errors, new_file
from adapters.stores.s3_calls import ATTEMPTS, download, status_of, vendor_errors
from app.domain.errors import SourceUnavailable, TooLarge
from app.importing.source import Absent, BucketSource, absent
from app.support.spool import SpooledFile

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 5.0, 20.0
_ABSENT = frozenset({400, 403, 404})
_UNAVAILABLE = "The server of the bucket did not answer, or refused. Try again later."


class Buckets:
    """The buckets that this server can read. Connects on first use."""

    def __init__(self, *, endpoint_url: str | None, region: str | None) -> None:
        self._endpoint_url, self._region = endpoint_url, region

    def fetch(self, source: BucketSource, name: str, path: Path, cap: int, deadline: float) -> SpooledFile:
        """Download an object to a new file. Blocks.

        Args:
            cap: most bytes of the object.
            deadline: time of ``time.monotonic()`` in seconds.

        Raises:
            InvalidRequest: there is no such object, or this server may not read it.
            TooLarge: the object has more bytes than ``cap``.
            SourceUnavailable: the bucket's server did not answer in time.
            DiskFull, StoreUnavailable: this node's disk failed.
        """
        digest, size = hashlib.sha256(), 0

        def receive(chunk: bytes) -> None:
            nonlocal size
            size += len(chunk)
            if size > cap:
                raise TooLarge(f"{name} has more than {cap} bytes, which is the limit.", param=name)
            if time.monotonic() > deadline:
                raise SourceUnavailable("The import took too long. Try again later.")
            digest.update(chunk)

        with disk_errors("spool the import"), new_file(path) as file:
            try:
                with vendor_errors("read an import"), _absence(source, name):
                    download(self._client, source.bucket, source.key(name), file, receive)
            except StoreUnavailable as error:
                raise SourceUnavailable(_UNAVAILABLE, retry_after=30) from error
        return SpooledFile(path, digest.hexdigest(), size)

    def has(self, source: BucketSource, name: str) -> bool:
        """Return whether there is an object that this server may read. Blocks.

        Raises:
            SourceUnavailable: the bucket's server did not answer.
        """
        try:
            with vendor_errors("look for an import"), _absence(source, name):
                self._client.head_object(Bucket=source.bucket, Key=source.key(name))
        except Absent:
            return False
        except StoreUnavailable as error:
            raise SourceUnavailable(_UNAVAILABLE, retry_after=30) from error
        return True

    @cached_property
    def _client(self) -> "S3Client":
        config = Config(
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            s3={"addressing_style": "path" if self._endpoint_url else "auto"},
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client(
            "s3", endpoint_url=self._endpoint_url, region_name=self._region, config=config
        )


@contextmanager
def _absence(source: BucketSource, name: str) -> Iterator[None]:
    """Translate responses about a missing or unreadable object to ``Absent``, an error of the caller."""
    try:
        yield
    except ClientError as error:
        if status_of(error) in _ABSENT:
            raise absent(source, name, "the bucket does not return it") from None
        raise
