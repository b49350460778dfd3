"""An S3 server for tests, in this process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "artifacts"
KEYS = {"access_key": "test-access", "secret_key": "test-secret", "region": "us-east-1"}


@contextmanager
def serving() -> Iterator[str]:
    """Start it with an empty bucket and return its URL; skip the test without its library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that are the tests' alone
        pytest.importorskip("moto.server", reason="moto is not installed")
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = _client(url)
        client.create_bucket(Bucket=BUCKET)
        client.close()
    try:
        yield url
    finally:
        server.stop()


def list_unfinished_uploads(url: str) -> list[str]:
    """Return the keys of unfinished uploads."""
    client = _client(url)
    try:
        return [one["Key"] for one in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]
    finally:
        client.close()


def _client(url: str) -> Any:
    """Return a client that is independent of the tested code."""
    import boto3
    from botocore.config import Config

    keys = {"aws_access_key_id": KEYS["access_key"], "aws_secret_access_key": KEYS["secret_key"]}
    return boto3.client("s3", endpoint_url=url, region_name=KEYS["region"], config=Config(proxies={}), **keys)
