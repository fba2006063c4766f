"""Blobs in an S3 bucket, or any server that speaks its protocol: ``<prefix>/sha256/<digest>``.

Writes are conditional (``If-None-Match: *``): S3 answers 412 when the object is there, and 409 when another
write of the same key is under way. boto3's own transfer manager knows no such condition for uploads, so the
multipart upload is written out here. S3 verifies a SHA-256 checksum of each body; the digest of the whole
is verified here before the object becomes visible.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

import base64
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ResponseStreamingError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from adapters.errors import BlobNotFound, DigestMismatch, InvalidName, StoreUnavailable
from adapters.stores.base import check_digest
from adapters.stores.files import disk_errors, new_file

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

logger = logging.getLogger(__name__)

#: Larger objects go in parts of this many bytes, one in memory at a time.
PART_BYTES = 16 * 2**20
_CHUNK_BYTES = 2**20
_CONNECT_TIMEOUT_S = 5.0
_ATTEMPTS = 3
_CONFLICT_PAUSES_S = (0.1, 0.4, 1.6)


class _AlreadyThereError(Exception):
    """412: the condition failed."""


class _ConflictError(Exception):
    """409: another write of this key is under way."""


class S3Store:
    """A :class:`adapters.stores.base.BlobStore` in a bucket, which must exist. Credentials come by boto3's own chain.

    Args:
        prefix: put before every key; may be empty.
        endpoint_url: an S3 server other than AWS; its buckets are addressed by path.
        timeout_s: seconds of silence after which an answer is given up; each call is tried 3 times.

    Raises:
        InvalidName: the endpoint is not a URL.
        StoreUnavailable: boto3's configuration or credentials are broken.
    """

    def __init__(
        self, bucket: str, prefix: str, *, endpoint_url: str | None, region: str | None, timeout_s: float = 20.0
    ) -> None:
        self._bucket, self._prefix = bucket, prefix
        config = Config(
            connect_timeout=min(timeout_s, _CONNECT_TIMEOUT_S),
            read_timeout=timeout_s,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            s3={"addressing_style": "path" if endpoint_url else "auto"},
            # Whoever fetches verifies the digest: hashing twice would gain nothing.
            response_checksum_validation="when_required",
        )
        with _vendor_errors("open the store"):
            try:
                self._client: S3Client = boto3.session.Session().client(
                    "s3", endpoint_url=endpoint_url, region_name=region, config=config
                )
            except ValueError:
                raise InvalidName("s3_endpoint_url", "no URL", "http:// or https:// and a host") from None

    def put(self, digest: str, source: Path) -> bool:
        key = self._key(digest)
        with disk_errors("read the upload"), source.open("rb") as file:
            for pause_s in (*_CONFLICT_PAUSES_S, None):
                file.seek(0)
                try:
                    self._put_new(key, digest, file)
                except _AlreadyThereError:
                    return False
                except _ConflictError:
                    if pause_s is not None:
                        time.sleep(pause_s)
                else:
                    return True
        raise StoreUnavailable("the S3 store is busy with another write of the same bytes")

    def fetch(self, digest: str, destination: Path) -> None:
        key = self._key(digest)
        with disk_errors("fetch the bytes"), new_file(destination) as file, _vendor_errors("fetch"):
            # botocore retries the request, but not a body that breaks off.
            for left in reversed(range(_ATTEMPTS)):
                try:
                    self._download(key, file)
                    break
                except (ResponseStreamingError, IncompleteReadError):
                    if not left:
                        raise
                    file.seek(0)
                    file.truncate()

    def size(self, digest: str) -> int | None:
        key = self._key(digest)
        with _vendor_errors("read a size"):
            try:
                return self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"]
            except ClientError as error:
                if _status(error) == 404:
                    return None
                raise

    def delete(self, digest: str) -> None:
        key = self._key(digest)
        with _vendor_errors("delete"):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def check(self) -> None:
        with _vendor_errors("check"):
            self._client.head_bucket(Bucket=self._bucket)

    def _key(self, digest: str) -> str:
        return f"{self._prefix}/sha256/{check_digest(digest)}".lstrip("/")

    def _put_new(self, key: str, digest: str, file: BinaryIO) -> None:
        if os.fstat(file.fileno()).st_size > PART_BYTES:
            if self.size(digest) is not None:
                raise _AlreadyThereError
            with _vendor_errors("put"), _condition():
                self._put_parts(key, digest, file)
            return
        body = file.read()
        found = hashlib.sha256(body)
        _require_digest(found.hexdigest(), digest)
        with _vendor_errors("put"), _condition():
            self._client.put_object(
                Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*", ChecksumSHA256=_base64(found.digest())
            )

    def _put_parts(self, key: str, digest: str, file: BinaryIO) -> None:
        created = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256")
        upload_id = created["UploadId"]
        try:
            parts, found = self._send_parts(key, upload_id, file)
            _require_digest(found, digest)
            self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
        except BaseException:
            self._abort(key, upload_id)
            raise

    def _send_parts(self, key: str, upload_id: str, file: BinaryIO) -> "tuple[list[CompletedPartTypeDef], str]":
        whole = hashlib.sha256()
        parts: list[CompletedPartTypeDef] = []
        while body := file.read(PART_BYTES):
            whole.update(body)
            checksum, number = _base64(hashlib.sha256(body).digest()), len(parts) + 1
            sent = self._client.upload_part(
                Bucket=self._bucket,
                Key=key,
                UploadId=upload_id,
                PartNumber=number,
                Body=body,
                ChecksumSHA256=checksum,
            )
            parts.append({"ETag": sent["ETag"], "PartNumber": number, "ChecksumSHA256": checksum})
        return parts, whole.hexdigest()

    def _abort(self, key: str, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
        except (BotoCoreError, ClientError) as error:
            # The failure that led here is the one to report; a lifecycle rule of the bucket sweeps the parts.
            logger.warning("a multipart upload of %s could not be aborted: %s", key, type(error).__name__)

    def _download(self, key: str, file: BinaryIO) -> None:
        body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
        with body:
            file.writelines(body.iter_chunks(_CHUNK_BYTES))


@contextmanager
def _vendor_errors(doing: str) -> Iterator[None]:
    """Let no error of boto3 out. Its text may hold an endpoint or an account, so only its code is logged.

    Raises:
        BlobNotFound, StoreUnavailable
    """
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code == "NoSuchKey":
            raise BlobNotFound("the S3 store holds no such bytes") from None
        logger.warning("the S3 store refused to %s: %.80s (HTTP %s)", doing, code, _status(error))
        raise StoreUnavailable(f"the S3 store refused to {doing}") from None
    except (BotoCoreError, ResponseParserError, HTTPError, KeyError, RecursionError) as error:
        # KeyError: a 200 without the fields that the protocol promises, from something that is no S3 server.
        # RecursionError: botocore asks for the bucket's region on a redirect, and follows that call's redirect too.
        logger.warning("the S3 store did not %s: %s", doing, type(error).__name__)
        raise StoreUnavailable("the S3 store did not answer") from None


@contextmanager
def _condition() -> Iterator[None]:
    """Tell the two answers to a conditional write from errors."""
    try:
        yield
    except ClientError as error:
        if _status(error) == 412:
            raise _AlreadyThereError from None
        if _status(error) == 409:
            raise _ConflictError from None
        raise


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _require_digest(found: str, digest: str) -> None:
    if found != digest:
        raise DigestMismatch(f"the file's bytes are not those of {digest}")


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")
