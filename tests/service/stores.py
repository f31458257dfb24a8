"""An S3-compatible store for a test: moto in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto import mock_aws

S3_URL = "s3://farm/files"


@contextmanager
def s3_store() -> Iterator[str]:
    """URL of an empty one, that any client of this process reaches meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with mock_aws():
            boto3.client("s3").create_bucket(Bucket="farm")
            yield S3_URL
