"""What tests of every folder share."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes an example slow, not wrong.
settings.register_profile(
    "spotray",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # What CI says of a commit does not change from run to run; people's runs look further.
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("spotray")

# A shell that runs something in the background lets it ignore Ctrl-C, and all that it starts
# as well: tests that press Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_gpu() -> bool:
    import torch  # late: most runs collect no test for a GPU

    return torch.cuda.is_available()


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A server on loopback that speaks S3, with one empty bucket for this test."""

    endpoint_url: str
    bucket: str


@pytest.fixture(scope="session")
def _moto_url() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_server(_moto_url: str, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An S3 server, and the environment that leads pyarrow, boto3 and child processes to it."""
    import boto3

    settings = {
        "AWS_ENDPOINT_URL": _moto_url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",  # no waiting for a metadata server
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return S3Server(endpoint_url=_moto_url, bucket=bucket)
