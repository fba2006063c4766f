"""S3 calls and error translation shared by the store and its staging area."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from adapters.errors import BlobNotFound, StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

#: Attempts of botocore for a request, and of ``download`` for a body.
ATTEMPTS = 3
_CHUNK_BYTES = 2**20
_ABSENT = frozenset({"NoSuchKey", "NoSuchUpload"})


#: Reasons by HTTP status, for answers without a body, as to a HEAD.
_REASONS = {
    301: "the bucket is in another region: set TENORA_S3_REGION",
    403: "the credentials may not use the bucket",
    404: "there is no such bucket",
}


class AlreadyThere(Exception):
    """412: the write condition failed."""


class WriteConflict(Exception):
    """409: another write of this key is under way."""


@contextmanager
def vendor_errors(doing: str) -> Iterator[None]:
    """Translate errors of boto3. Only their code is logged, because their text may hold an endpoint or an account.

    Raises:
        BlobNotFound: the object or upload does not exist.
        StoreUnavailable: the store refused or did not answer.
    """
    try:
        yield
    except ClientError as error:
        code = code_of(error)
        if code in _ABSENT:
            raise BlobNotFound("The S3 store has no such bytes.") from None
        logger.warning("The S3 store refused to %s: %.80s (HTTP %s)", doing, code, status_of(error))
        reason = _REASONS.get(status_of(error), f"{code:.80} (HTTP {status_of(error)})")
        raise StoreUnavailable(f"The S3 store refused to {doing}.", reason=reason) from None
    except (BotoCoreError, ResponseParserError, HTTPError, KeyError, RecursionError) as error:
        # KeyError: a 200 without the fields that the protocol requires, from a server that does not speak S3.
        # RecursionError: botocore asks for the bucket's region on a redirect, and follows that call's redirect too.
        logger.warning("The S3 store did not %s: %s", doing, type(error).__name__)
        raise StoreUnavailable("The S3 store did not answer.", reason=_no_answer(error)) from None


@contextmanager
def condition() -> Iterator[None]:
    """Translate the two refusals of a conditional write.

    Raises:
        AlreadyThere: the object exists (412).
        WriteConflict: another write is under way (409).
    """
    try:
        yield
    except ClientError as error:
        if status_of(error) == 412:
            raise AlreadyThere from None
        if status_of(error) == 409:
            raise WriteConflict from None
        raise


def download(
    client: "S3Client", bucket: str, key: str, file: BinaryIO, on_chunk: Callable[[bytes], None] | None = None
) -> None:
    """Download an object to an empty file, resuming if the body breaks off.

    botocore retries the request, but not an interrupted body.

    Args:
        on_chunk: callback that receives every byte of the object once, in order.
    """
    done = 0
    for left in reversed(range(ATTEMPTS)):
        try:
            start = {"Range": f"bytes={done}-"} if done else {}
            body = client.get_object(Bucket=bucket, Key=key, **start)["Body"]  # type: ignore[arg-type]
            with body:
                for chunk in body.iter_chunks(_CHUNK_BYTES):
                    file.write(chunk)
                    done += len(chunk)
                    if on_chunk is not None:
                        on_chunk(chunk)
        except (ResponseStreamingError, IncompleteReadError):
            if not left:
                raise
        else:
            return


def _no_answer(error: Exception) -> str:
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            return "there are no credentials: boto3 looks for AWS_ACCESS_KEY_ID, a profile, or a role"
        case EndpointConnectionError():
            return "no server answers at this address, or its name is unknown"
        case ConnectTimeoutError() | ReadTimeoutError():
            return "it did not answer in time"
        case _:
            return f"{type(error).__name__}: this may not be an S3 server"


def code_of(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def status_of(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
