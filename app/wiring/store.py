"""Blob store selected by the settings."""

from urllib.parse import urlsplit

from adapters.errors import StorageError, StoreUnavailable
from adapters.stores import open_store
from adapters.stores.base import BlobStore
from app.settings import Settings


def configured_store(settings: Settings) -> BlobStore:
    """Open the store at ``store_url``, or in a folder of HOME. Blocks.

    Raises:
        adapters.errors.InvalidName: the store's or the endpoint's URL is malformed.
        adapters.errors.StorageError: a local folder cannot be created, or boto3 finds no usable configuration.
    """
    return open_store(
        _url(settings),
        endpoint_url=settings.s3_endpoint_url,
        region=settings.s3_region,
        public_endpoint_url=settings.s3_public_endpoint_url,
    )


def check_store(settings: Settings) -> None:
    """Check that the store answers; the error tells an operator where the store is and why it fails. Blocks.

    Raises:
        adapters.errors.InvalidName: the store's or the endpoint's URL is malformed.
        adapters.errors.StoreUnavailable: the store cannot be used.
    """
    try:
        configured_store(settings).check()
    except StorageError as error:
        reason = error.reason or getattr(error.__cause__, "strerror", None) or str(error)
        raise StoreUnavailable(f"The store {_place(settings)} cannot be used: {reason.rstrip('.')}.") from error


def _url(settings: Settings) -> str:
    return settings.store_url or (settings.home.resolve() / "blobs").as_uri()


def _place(settings: Settings) -> str:
    url = _url(settings)
    if not url.startswith("s3:"):
        return url
    if settings.s3_endpoint_url is None:
        return f"{url} at AWS"
    endpoint = urlsplit(settings.s3_endpoint_url)
    port = endpoint.port or {"http": 80, "https": 443}[endpoint.scheme]
    return f"{url} at {endpoint.hostname}:{port}"
