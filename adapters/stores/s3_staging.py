"""Staging area in a bucket: multipart uploads of ``<prefix>/uploads/<upload>/<file>``.

Clients send parts directly to the bucket by presigned URLs. A URL's signature covers the upload, the part's number, its
length and its SHA-256, so the bucket refuses any other bytes. The whole object is copied to its digest's key inside the
bucket. That copy does not pass through this process.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html
"""

import base64
import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from adapters.errors import BlobNotFound, DigestMismatch
from adapters.stores.files import disk_errors, new_file
from adapters.stores.s3_calls import code_of, download, status_of, vendor_errors
from adapters.stores.staging import PartUrl, Staged

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, PartTypeDef

#: S3's minimum size of every part but the last, in bytes.
LEAST_PART_BYTES = 5 * 2**20

#: Range size in bytes for copies of larger objects, several ranges at once. S3 copies at most 5 GiB in one request, and
#: computes a SHA-256 of the whole copy only for a single request.
COPY_BYTES = 5 * 2**30
_COPIERS = 4

#: Seconds between checks for an object whose upload another caller has just completed.
_APPEARING_S = (0.05, 0.1, 0.2, 0.4)


class S3Staging:
    """:class:`adapters.stores.staging.StagingArea` in a store's bucket.

    Args:
        prefix: prefix of every key; may be empty.
        adopt_as: function from a digest to its blob's key.
        signer: client that signs URLs, for the address at which clients reach the bucket.
    """

    direct = True
    least_part_bytes = LEAST_PART_BYTES

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        prefix: str,
        *,
        adopt_as: Callable[[str], str],
        signer: "S3Client",
    ) -> None:
        self._client, self._bucket, self._adopt_as, self._signer = client, bucket, adopt_as, signer
        self._start = f"{prefix}/uploads/".lstrip("/")
        self._prefix = f"{prefix}/".lstrip("/")

    def begin(self, upload_id: str, file: str) -> Staged:
        key = self._key(Staged(upload_id, file))
        with vendor_errors("begin an upload"):
            made = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256")
            return Staged(upload_id, file, made["UploadId"])

    def put_part(self, staged: Staged, number: int, source: Path, sha256: str) -> None:
        with disk_errors("read a part"), source.open("rb") as body, vendor_errors("store a part"):
            self._client.upload_part(
                Bucket=self._bucket,
                Key=self._key(staged),
                UploadId=staged.token,
                PartNumber=number,
                Body=body,
                ChecksumSHA256=_base64(sha256),
            )

    def part_url(self, staged: Staged, number: int, *, size: int, sha256: str, lifetime_s: int) -> PartUrl:
        checksum = _base64(sha256)
        signed = {
            "Bucket": self._bucket,
            "Key": self._key(staged),
            "UploadId": staged.token,
            "PartNumber": number,
            "ContentLength": size,
            "ChecksumSHA256": checksum,
        }
        with vendor_errors("sign a URL"):
            url = self._signer.generate_presigned_url("upload_part", Params=signed, ExpiresIn=lifetime_s)
        return PartUrl(url, {"content-length": str(size), "x-amz-checksum-sha256": checksum})

    def parts(self, staged: Staged) -> dict[int, int] | None:
        listed = self._list(staged)
        return None if listed is None else {part["PartNumber"]: part["Size"] for part in listed}

    def complete(self, staged: Staged, sizes: Sequence[int]) -> tuple[int, ...]:
        listed = self._list(staged)
        if listed is None:
            return ()
        stored = {part["PartNumber"]: part for part in listed}
        missing = tuple(n for n, size in enumerate(sizes, 1) if n not in stored or stored[n]["Size"] != size)
        if missing:
            return missing
        parts = [_completed(stored[number]) for number in range(1, len(sizes) + 1)]
        with vendor_errors("join the parts"):
            try:
                self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=self._key(staged),
                    UploadId=staged.token,
                    MultipartUpload={"Parts": parts},
                )
            except ClientError as error:
                # Another caller may have completed the upload after the parts were listed.
                if code_of(error) != "NoSuchUpload" or not self._appears(staged):
                    raise
        return ()

    def fetch(self, staged: Staged, destination: Path) -> str:
        whole = hashlib.sha256()
        with disk_errors("fetch an upload"), new_file(destination) as file, vendor_errors("fetch an upload"):
            download(self._client, self._bucket, self._key(staged), file, whole.update)
        return whole.hexdigest()

    def adopt(self, staged: Staged, digest: str) -> None:
        key = self._adopt_as(digest)
        with vendor_errors("copy an upload"):
            # No condition is needed: every writer of this key writes the same bytes.
            if self._object_size(key) is not None:
                return
            size = self._size(staged)
            if size is None:
                raise _gone()
            if size <= COPY_BYTES:
                self._copy(staged, key, digest)
            else:
                self._copy_ranges(staged, key, size)

    def abort(self, staged: Staged) -> None:
        key = self._key(staged)
        with vendor_errors("remove an upload"):
            self._abort(key, staged.token)
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def sweep(self, *, before: datetime, keep: Collection[str]) -> int:
        swept = 0
        with vendor_errors("sweep old uploads"):
            for key, token in list(self._old_multiparts(before, keep)):
                self._abort(key, token)
                swept += 1
            for key in list(self._old_objects(before, keep)):
                self._client.delete_object(Bucket=self._bucket, Key=key)
                swept += 1
        return swept

    def _key(self, staged: Staged) -> str:
        return f"{self._start}{staged.upload_id}/{staged.file}"

    def _list(self, staged: Staged) -> "list[PartTypeDef] | None":
        """List all parts; None if the object is complete."""
        pages = self._client.get_paginator("list_parts")
        with vendor_errors("list the parts"):
            try:
                return [
                    part
                    for page in pages.paginate(Bucket=self._bucket, Key=self._key(staged), UploadId=staged.token)
                    for part in page.get("Parts", [])
                ]
            except ClientError as error:
                if code_of(error) != "NoSuchUpload" or not self._appears(staged):
                    raise
                return None

    def _appears(self, staged: Staged) -> bool:
        """Return whether the complete object exists, with a few retries.

        Some servers end the upload before the object becomes visible.
        """
        for wait_s in _APPEARING_S:
            if self._size(staged) is not None:
                return True
            time.sleep(wait_s)
        return self._size(staged) is not None

    def _size(self, staged: Staged) -> int | None:
        return self._object_size(self._key(staged))

    def _object_size(self, key: str) -> int | None:
        try:
            return self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"]
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise

    def _copy(self, staged: Staged, key: str, digest: str) -> None:
        """Copy in one request. S3 then hashes the copy as one body, which confirms the digest of ``fetch``."""
        copied = self._client.copy_object(
            Bucket=self._bucket,
            Key=key,
            CopySource={"Bucket": self._bucket, "Key": self._key(staged)},
            ChecksumAlgorithm="SHA256",
        )
        checksum = copied.get("CopyObjectResult", {}).get("ChecksumSHA256")
        # Some servers return no checksum, or a composite one of the parts, which ends with a hyphen and their number.
        if checksum and "-" not in checksum and checksum != _base64(digest):
            self._client.delete_object(Bucket=self._bucket, Key=key)
            raise DigestMismatch(f"The SHA-256 of the copy is not {digest}.")

    def _copy_ranges(self, staged: Staged, key: str, size: int) -> None:
        made = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256")
        token = made["UploadId"]

        def copy(number: int) -> "CompletedPartTypeDef":
            first = (number - 1) * COPY_BYTES
            done = self._client.upload_part_copy(
                Bucket=self._bucket,
                Key=key,
                UploadId=token,
                PartNumber=number,
                CopySource={"Bucket": self._bucket, "Key": self._key(staged)},
                CopySourceRange=f"bytes={first}-{min(first + COPY_BYTES, size) - 1}",
            )["CopyPartResult"]
            part: CompletedPartTypeDef = {"ETag": done["ETag"], "PartNumber": number}
            return part | {"ChecksumSHA256": done["ChecksumSHA256"]} if "ChecksumSHA256" in done else part

        try:
            with ThreadPoolExecutor(_COPIERS) as pool:
                parts = list(pool.map(copy, range(1, -(-size // COPY_BYTES) + 1)))
            self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=key, UploadId=token, MultipartUpload={"Parts": parts}
            )
        except BaseException:
            self._abort(key, token)
            raise

    def _abort(self, key: str, token: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=token)
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise

    def _old_multiparts(self, before: datetime, keep: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield old multipart uploads below the prefix, including those of blobs that a killed process left."""
        pages = self._client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
            for upload in page.get("Uploads", []):
                if upload["Initiated"] < before and self._upload_of(upload["Key"]) not in keep:
                    yield upload["Key"], upload["UploadId"]

    def _old_objects(self, before: datetime, keep: Collection[str]) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._start):
            for entry in page.get("Contents", []):
                if entry["LastModified"] < before and self._upload_of(entry["Key"]) not in keep:
                    yield entry["Key"]

    def _upload_of(self, key: str) -> str:
        return key.removeprefix(self._start).partition("/")[0] if key.startswith(self._start) else ""


def _completed(part: "PartTypeDef") -> "CompletedPartTypeDef":
    done: CompletedPartTypeDef = {"ETag": part["ETag"], "PartNumber": part["PartNumber"]}
    return done | {"ChecksumSHA256": part["ChecksumSHA256"]} if "ChecksumSHA256" in part else done


def _base64(digest: str) -> str:
    return base64.b64encode(bytes.fromhex(digest)).decode("ascii")


def _gone() -> BlobNotFound:
    return BlobNotFound("The S3 store has no such upload.")
