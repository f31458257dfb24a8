"""Make the bucket that POCKFARM_STORAGE_URL names, if need be. Credentials come from the usual AWS variables."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import ClientError

from service.base.settings import Settings

THERE = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}


def main() -> int:
    settings = Settings()
    parts = urlsplit(settings.storage)
    if parts.scheme != "s3":
        print(f"POCKFARM_STORAGE_URL is {settings.storage!r}, expected s3://bucket/prefix", file=sys.stderr)
        return 2
    client = boto3.client("s3", endpoint_url=settings.s3_endpoint_url or None)
    try:
        client.create_bucket(Bucket=parts.netloc)
    except ClientError as error:
        if error.response["Error"]["Code"] not in THERE:
            raise
    print(f"bucket {parts.netloc} is there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
