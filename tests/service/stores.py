"""An S3-compatible store for a test: moto in this process, one request after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.session import get_session
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber

S3_URL = "s3://farm/files"


@contextmanager
def s3_store() -> Iterator[str]:
    """URL of an empty one, that any client of this process reaches meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setattr(BotocoreStubber, "process_request", _one_after_the_other())
        with mock_aws():
            session = get_session()
            session.register_component("data_loader", _descriptions())
            boto3.setup_default_session(botocore_session=session)
            boto3.client("s3").create_bucket(Bucket="farm")
            yield S3_URL


def _one_after_the_other() -> Callable[..., Any]:
    """Two of its requests at once may find an object that the other has just taken away (moto 5.2: a closed file)."""
    lock, answer = threading.Lock(), BotocoreStubber.process_request

    def in_turn(self: BotocoreStubber, request: Any) -> Any:
        with lock:
            return answer(self, request)

    return in_turn


@cache
def _descriptions() -> Any:
    """Of S3's operations, read once: that takes a quarter of a second, and each test has a session of its own."""
    return get_session().get_component("data_loader")
