from __future__ import annotations

import pytest

from spotray.cloud.aws.errors import aws_errors, boto_errors, class_of
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

MARKET = "aws/us-west-2a/g5.xlarge/spot"


def client_error(code: str, message: str = "EC2's own words") -> Exception:
    from botocore.exceptions import ClientError

    error: Exception = ClientError({"Error": {"Code": code, "Message": message}}, "RunInstances")
    return error


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        ("InsufficientInstanceCapacity", NoCapacityError),
        ("SpotMaxPriceTooLow", NoCapacityError),
        ("UnfulfillableCapacity", NoCapacityError),
        ("InsufficientHostCapacity", NoCapacityError),
        ("InsufficientFreeAddressesInSubnet", NoCapacityError),
        ("MaxSpotInstanceCountExceeded", QuotaError),
        ("VcpuLimitExceeded", QuotaError),
        ("InstanceLimitExceeded", QuotaError),
        ("Unsupported", NotOfferedError),
        ("UnauthorizedOperation", NotPermittedError),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", NotPermittedError),
        ("InvalidClientTokenId", NotPermittedError),
        ("RequestLimitExceeded", ThrottledError),
        ("InternalError", ThrottledError),
        ("ExpiredToken", ThrottledError),
        ("InvalidAMIID.NotFound", ConfigError),
        ("InvalidSubnetID.NotFound", ConfigError),
        ("InvalidParameterValue", ConfigError),
        ("MissingParameter", ConfigError),
    ],
)
def test_a_code_becomes_the_error_that_says_what_to_do_next(
    code: str, ours: type[SpotrayError]
) -> None:
    with pytest.raises(ours) as caught, aws_errors(MARKET):
        raise client_error(code)
    assert type(caught.value) is ours
    assert str(caught.value) == f"{MARKET}: {code}: EC2's own words"
    assert caught.value.__cause__ is not None
    if isinstance(caught.value, MarketError):
        assert (caught.value.market, caught.value.code) == (MARKET, code)


def test_an_unknown_code_passes_through_untouched() -> None:
    assert class_of("SomethingNew") is None
    raised = client_error("SomethingNew")
    with pytest.raises(boto_errors()) as caught, aws_errors(MARKET):
        raise raised
    assert caught.value is raised


def test_credentials_that_may_come_back_are_asked_for_less_often_than_a_busy_service() -> None:
    with pytest.raises(ThrottledError) as expired, aws_errors(MARKET):
        raise client_error("RequestExpired")
    with pytest.raises(ThrottledError) as busy, aws_errors(MARKET):
        raise client_error("RequestLimitExceeded")
    assert expired.value.retry_after_s > busy.value.retry_after_s > 0


def test_what_boto_raises_without_an_answer_has_its_place_too() -> None:
    from botocore.exceptions import (
        EndpointConnectionError,
        NoCredentialsError,
        ParamValidationError,
    )

    with pytest.raises(ThrottledError, match="NoCredentials|credentials"), aws_errors(MARKET):
        raise NoCredentialsError()
    with pytest.raises(ThrottledError) as caught, aws_errors(MARKET):
        raise EndpointConnectionError(endpoint_url="https://ec2")
    assert caught.value.code == "EndpointConnectionError"
    with pytest.raises(ConfigError, match="Unknown parameter"), aws_errors(MARKET):
        raise ParamValidationError(report="Unknown parameter in input:\n InstnceType")


def test_an_error_of_nobodys_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError), aws_errors(MARKET):
        raise ZeroDivisionError


def test_it_loads_no_sdk_until_it_is_used() -> None:
    import subprocess
    import sys

    code = "import sys, spotray.cloud.aws.errors; print('botocore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
