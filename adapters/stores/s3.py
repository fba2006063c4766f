"""Blob store in an S3 bucket, or on any S3-compatible server: ``<prefix>/sha256/<digest>``.

Writes are conditional (``If-None-Match: *``). S3 answers 412 if the object exists, and 409 if another write of the same
key is under way. boto3's transfer manager does not support this condition for uploads, so the multipart upload is
implemented here. S3 verifies a SHA-256 checksum of each body. This module verifies the digest of the whole before the
object becomes visible.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

import base64
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from adapters.errors import DigestMismatch, InvalidName, StoreUnavailable
from adapters.stores.base import OWNER_NAME, BlobInfo, check_digest, is_digest, read_owner
from adapters.stores.files import disk_errors, new_file
from adapters.stores.s3_calls import (
    ATTEMPTS,
    AlreadyThere,
    WriteConflict,
    code_of,
    condition,
    download,
    status_of,
    vendor_errors,
)
from adapters.stores.s3_staging import S3Staging

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, ObjectTypeDef

logger = logging.getLogger(__name__)

#: Multipart threshold and part size, in bytes. One part is in memory at a time.
PART_BYTES = 16 * 2**20
_CONNECT_TIMEOUT_S = 5.0
_CONNECTIONS = 64
#: Read limit in bytes, above the length of a registry's id.
_OWNER_BYTES = 1024

Style = Literal["auto", "virtual", "path"]
_CONFLICT_PAUSES_S = (0.1, 0.4, 1.6)


class S3Store:
    """:class:`adapters.stores.base.BlobStore` in an existing bucket, with credentials from boto3's default chain.

    Args:
        prefix: prefix of every key; may be empty.
        endpoint_url: URL of an S3 server other than AWS; its buckets are addressed by path.
        public_endpoint_url: URL of the same server for clients, if it differs.
        timeout_s: seconds of silence after which a call times out; each call is attempted 3 times.

    Raises:
        InvalidName: the endpoint is not a URL.
        StoreUnavailable: boto3's configuration or credentials are invalid.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        endpoint_url: str | None,
        region: str | None,
        public_endpoint_url: str | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._client = _client(endpoint_url, region, timeout_s, style="path" if endpoint_url else "auto")
        # boto3's automatic style would sign for AWS's global host name, which redirects to the bucket's region.
        style: Style = "path" if public_endpoint_url or endpoint_url or "." in bucket else "virtual"
        signer = _client(public_endpoint_url or endpoint_url, region, timeout_s, style=style)
        self._staging = S3Staging(self._client, bucket, prefix, adopt_as=self._key, signer=signer)

    @property
    def staging(self) -> S3Staging:
        return self._staging

    def put(self, digest: str, source: Path) -> bool:
        key = self._key(digest)
        with disk_errors("read the upload"), source.open("rb") as file:
            for pause_s in (*_CONFLICT_PAUSES_S, None):
                file.seek(0)
                try:
                    self._put_new(key, digest, file)
                except AlreadyThere:
                    return False
                except WriteConflict:
                    if pause_s is not None:
                        time.sleep(pause_s)
                else:
                    return True
        raise StoreUnavailable("The S3 store is busy with another write of the same bytes. Try again.")

    def fetch(self, digest: str, destination: Path) -> None:
        key = self._key(digest)
        with disk_errors("fetch the bytes"), new_file(destination) as file, vendor_errors("fetch"):
            download(self._client, self._bucket, key, file)

    def size(self, digest: str) -> int | None:
        key = self._key(digest)
        with vendor_errors("read a size"):
            try:
                return self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"]
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise

    def delete(self, digest: str) -> None:
        key = self._key(digest)
        with vendor_errors("delete"):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def list_blobs(self) -> Iterator[BlobInfo]:
        start = self._key("0" * 64).removesuffix("0" * 64)
        pages = iter(self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=start))
        while True:
            # Translate errors of this request only, not errors that the caller raises at the yield.
            with vendor_errors("list the blobs"):
                page = next(pages, None)
                infos = [] if page is None else [_info(entry, start) for entry in page.get("Contents", [])]
            if page is None:
                return
            yield from (info for info in infos if is_digest(info.digest))

    def owner(self) -> str | None:
        with vendor_errors("read the store's owner"):
            try:
                body = self._client.get_object(Bucket=self._bucket, Key=self._owner_key)["Body"]
            except ClientError as error:
                if status_of(error) == 404 and code_of(error) != "NoSuchBucket":
                    return None
                raise
            with body:
                return read_owner(body.read(_OWNER_BYTES))

    def claim(self, owner: str) -> str:
        # 409: another server is writing its id at this moment.
        with suppress(AlreadyThere, WriteConflict), vendor_errors("record the store's owner"), condition():
            self._client.put_object(
                Bucket=self._bucket, Key=self._owner_key, Body=owner.encode() + b"\n", IfNoneMatch="*"
            )
        if (stands := self.owner()) is None:
            raise StoreUnavailable("The S3 store is busy with another write of the same bytes. Try again.")
        return stands

    def take_over(self, owner: str) -> None:
        with vendor_errors("record the store's owner"):
            self._client.put_object(Bucket=self._bucket, Key=self._owner_key, Body=owner.encode() + b"\n")

    @property
    def _owner_key(self) -> str:
        return f"{self._prefix}/{OWNER_NAME}".lstrip("/")

    def check(self) -> None:
        with vendor_errors("check"):
            self._client.head_bucket(Bucket=self._bucket)

    def _key(self, digest: str) -> str:
        return f"{self._prefix}/sha256/{check_digest(digest)}".lstrip("/")

    def _put_new(self, key: str, digest: str, file: BinaryIO) -> None:
        if os.fstat(file.fileno()).st_size > PART_BYTES:
            if self.size(digest) is not None:
                raise AlreadyThere
            with vendor_errors("put"), condition():
                self._put_parts(key, digest, file)
            return
        body = file.read()
        sha256 = hashlib.sha256(body)
        _require_digest(sha256.hexdigest(), digest)
        with vendor_errors("put"), condition():
            self._client.put_object(
                Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*", ChecksumSHA256=_base64(sha256.digest())
            )

    def _put_parts(self, key: str, digest: str, file: BinaryIO) -> None:
        created = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256")
        upload_id = created["UploadId"]
        try:
            parts, actual = self._send_parts(key, upload_id, file)
            _require_digest(actual, digest)
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
            # Report the original failure. A lifecycle rule of the bucket removes the parts.
            logger.warning("A multipart upload of %s could not be aborted: %s", key, type(error).__name__)


def _client(endpoint_url: str | None, region: str | None, timeout_s: float, *, style: Style) -> "S3Client":
    config = Config(
        connect_timeout=min(timeout_s, _CONNECT_TIMEOUT_S),
        read_timeout=timeout_s,
        # There are more upload and fetch threads than botocore's default of 10 connections.
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        s3={"addressing_style": style},
        # Callers of ``fetch`` verify the digest, so a second hash would add nothing.
        response_checksum_validation="when_required",
        # boto3's older way to sign URLs covers no headers.
        signature_version="s3v4",
    )
    with vendor_errors("open the store"):
        try:
            return boto3.session.Session().client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
        except ValueError:
            raise InvalidName("s3_endpoint_url", "no URL", "http:// or https:// and a host") from None


def _require_digest(actual: str, digest: str) -> None:
    if actual != digest:
        raise DigestMismatch(f"The SHA-256 of the file is not {digest}.")


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


def _info(entry: "ObjectTypeDef", start: str) -> BlobInfo:
    return BlobInfo(entry["Key"].removeprefix(start), entry["Size"], entry["LastModified"])
