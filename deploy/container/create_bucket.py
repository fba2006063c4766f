"""Create the bucket of the compose stack, once its S3 server answers."""

import os
import time

import boto3
from botocore.exceptions import ClientError, EndpointConnectionError

TRIES = 60


def main() -> None:
    endpoint, region = os.environ["TENORA_S3_ENDPOINT_URL"], os.environ["TENORA_S3_REGION"]
    bucket = os.environ["TENORA_STORE_URL"].removeprefix("s3://").partition("/")[0]
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name=region)
    for _ in range(TRIES):
        try:
            s3.create_bucket(Bucket=bucket)
        except EndpointConnectionError:
            time.sleep(1)
        except ClientError as error:
            if error.response["Error"]["Code"] not in {"BucketAlreadyExists", "BucketAlreadyOwnedByYou"}:
                raise
            return
        else:
            return
    raise SystemExit(f"{endpoint} does not answer.")


if __name__ == "__main__":
    main()
