from collections.abc import Iterator

import pytest

from tests.support.s3server import s3_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint
