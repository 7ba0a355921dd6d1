from __future__ import annotations

import pytest

from spotray.cloud.gcp.errors import (
    OperationFailed,
    foreign_errors,
    gcp_errors,
    operation_error,
)
from spotray.errors import (
    ConfigError,
    MarketError,
    NoCapacityError,
    NotOfferedError,
    NotPermittedError,
    QuotaError,
    SpotrayError,
    ThrottledError,
)
from tests.cluster.emulated_gce import http_error

MARKET = "gcp/us-central1-a/g2-standard-4/spot"


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacityError),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoCapacityError),
        ("QUOTA_EXCEEDED", QuotaError),
        ("PERMISSIONS_ERROR", NotPermittedError),
        ("RATE_LIMIT_EXCEEDED", ThrottledError),
        ("INVALID_FIELD_VALUE", ConfigError),
    ],
)
def test_a_failed_operation_says_what_to_do_next(code: str, ours: type[SpotrayError]) -> None:
    failed = operation_error({"error": {"errors": [{"code": code, "message": "words"}]}})
    assert failed is not None
    with pytest.raises(ours) as caught, gcp_errors(MARKET):
        raise failed
    assert type(caught.value) is ours
    assert str(caught.value) == f"{MARKET}: {code}: words"
    if isinstance(caught.value, MarketError):
        assert (caught.value.market, caught.value.code) == (MARKET, code)


@pytest.mark.parametrize(
    ("status", "reason", "words", "ours"),
    [
        (403, "quotaExceeded", "Quota 'PREEMPTIBLE_NVIDIA_L4_GPUS' exceeded", QuotaError),
        (403, "rateLimitExceeded", "slow down", ThrottledError),
        (403, "forbidden", "compute.instances.create", NotPermittedError),
        (403, "aNewReason", "no", NotPermittedError),
        (401, "aNewReason", "who are you", NotPermittedError),
        (429, "aNewReason", "slow down", ThrottledError),
        (503, "aNewReason", "a bad minute", ThrottledError),
        (400, "invalid", "Invalid value for field 'resource.disks'", ConfigError),
        (
            400,
            "invalid",
            "Machine type with name 'g2-standard-4' does not exist in zone 'us-central1-f'.",
            NotOfferedError,
        ),
        (
            404,
            "notFound",
            "The resource '.../acceleratorTypes/nvidia-l4' was not found",
            NotOfferedError,
        ),
        (404, "notFound", "The resource '.../images/mine' was not found", ConfigError),
    ],
)
def test_a_refused_call_says_what_to_do_next(
    status: int, reason: str, words: str, ours: type[SpotrayError]
) -> None:
    with pytest.raises(ours) as caught, gcp_errors(MARKET):
        raise http_error(status, reason, words)
    assert type(caught.value) is ours
    assert words in str(caught.value)


def test_what_nobody_knows_passes_through_untouched() -> None:
    for error in (OperationFailed("NEW", "words"), http_error(418, "teapot")):
        with pytest.raises(foreign_errors()) as caught, gcp_errors(MARKET):
            raise error
        assert caught.value is error


def test_no_way_to_google_is_a_reason_to_ask_later() -> None:
    with pytest.raises(ThrottledError) as caught, gcp_errors(MARKET):
        raise ConnectionResetError("gone")
    assert caught.value.code == "ConnectionResetError"


def test_an_operation_without_an_error_has_none() -> None:
    assert operation_error({"status": "DONE"}) is None


def test_an_answer_that_is_no_json_is_told_by_its_status() -> None:
    import httplib2
    from googleapiclient.errors import HttpError

    with pytest.raises(ThrottledError) as caught, gcp_errors(MARKET):
        raise HttpError(httplib2.Response({"status": 502}), b"<html>bad gateway</html>")
    assert caught.value.code == "502"
