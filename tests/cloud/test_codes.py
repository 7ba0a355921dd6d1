"""One code is one error, and an error says which market it came from."""

from __future__ import annotations

import pytest

from spotray.cloud.aws import errors as aws
from spotray.cloud.codes import error_of, table_of
from spotray.cloud.gcp import errors as gcp
from spotray.errors import ConfigError, NoCapacityError, QuotaError, ThrottledError


def test_a_code_in_two_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="stockout is NoCapacityError and QuotaError"):
        table_of((["stockout"], NoCapacityError), (["stockout"], QuotaError))


def test_each_kind_is_built_with_what_it_carries() -> None:
    told = {"market": "m", "code": "c", "words": "no"}
    waits = error_of(ThrottledError, **told, retry_after_s=7.0)
    assert isinstance(waits, ThrottledError)
    assert (waits.retry_after_s, waits.market, waits.code) == (7.0, "m", "c")
    assert type(error_of(NoCapacityError, **told)) is NoCapacityError
    assert str(error_of(ConfigError, **told)) == "m: c: no"


def test_the_clouds_agree_on_what_a_lack_of_quota_is() -> None:
    assert aws.class_of("VcpuLimitExceeded") is gcp.class_of("QUOTA_EXCEEDED") is QuotaError
