"""Blob stores: the port in ``base``, a local folder, and S3."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from adapters.errors import InvalidName
from adapters.stores.base import BlobStore
from adapters.stores.local import LocalStore
from adapters.stores.s3 import S3Store

_URLS = "file:///absolute/path or s3://bucket/prefix, without credentials, query or fragment"


def open_store(
    url: str, *, endpoint_url: str | None, region: str | None, public_endpoint_url: str | None = None
) -> BlobStore:
    """Open the store that a URL names: ``file:///absolute/path`` or ``s3://bucket/prefix``.

    Args:
        endpoint_url: URL of an S3 server other than AWS; used by ``s3://`` only.
        region: the bucket's region; used by ``s3://`` only.
        public_endpoint_url: URL of the same server for clients, if it differs; used by ``s3://`` only.

    Raises:
        InvalidName: the store URL, or the endpoint's, has another form.
        StoreUnavailable, DiskFull: a local folder cannot be created, or boto3 finds no usable configuration.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidName("store_url", url[:80], _URLS) from None
    if "@" in parts.netloc:
        # The URL holds a secret, so the error does not repeat it.
        raise InvalidName("store_url", f"{parts.scheme}:// with credentials", _URLS)
    path = unquote(parts.path)
    if not parts.query and not parts.fragment and "\0" not in path:
        if parts.scheme == "file" and not parts.netloc and path.startswith("/"):
            return LocalStore(Path(path))
        if parts.scheme == "s3" and parts.netloc:
            return S3Store(
                parts.netloc,
                path.strip("/"),
                endpoint_url=endpoint_url,
                region=region,
                public_endpoint_url=public_endpoint_url,
            )
    raise InvalidName("store_url", url[:80], _URLS)
