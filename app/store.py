"""The blob store that the settings name."""

from adapters.stores import open_store
from adapters.stores.base import BlobStore
from app.settings import Settings


def configured_store(settings: Settings) -> BlobStore:
    """Open the store: ``store_url``, or a folder in HOME. Blocks.

    Raises:
        adapters.errors.InvalidName: the URL, or the endpoint's, is not of the right shape.
        adapters.errors.StorageError: a local folder cannot be made, or boto3 finds no usable configuration.
    """
    return open_store(
        settings.store_url or (settings.home.resolve() / "blobs").as_uri(),
        endpoint_url=settings.s3_endpoint_url,
        region=settings.s3_region,
        public_endpoint_url=settings.s3_public_endpoint_url,
    )
