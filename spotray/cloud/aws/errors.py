"""EC2's error codes in our words: one table, which says what a launch does next.

An unknown code passes through untouched: it must stay visible, and no wrong guess may make
a bad credential look like a market that is sold out.

Source:
    "Error codes for the Amazon EC2 API", Amazon EC2 API Reference, 2026.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spotray.cloud.codes import RETRY_S, error_of, table_of
from spotray.errors import (
    ConfigError,
    NoCapacityError,
    NotOfferedError,
    NotPermittedError,
    QuotaError,
    SpotrayError,
    ThrottledError,
)

_CREDENTIALS_RETRY_S = 60.0  # an instance's role is renewed by its metadata service, in minutes

_NO_CAPACITY = (
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientCapacity",
    "InsufficientCapacityOnOutpost",
    "InsufficientReservedInstanceCapacity",
    "InsufficientFreeAddressesInSubnet",  # the zone's subnet is full: another zone's is not
    "InsufficientAddressCapacity",
    "InsufficientVolumeCapacity",
    "ReservationCapacityExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
)
_QUOTA = (
    "MaxSpotInstanceCountExceeded",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "VolumeLimitExceeded",
    "MaxIOPSLimitExceeded",
    "NetworkInterfaceLimitExceeded",
    "AddressLimitExceeded",
    "MaxSpotFleetRequestCountExceeded",
)
_NOT_OFFERED = ("Unsupported", "UnsupportedInstanceType", "InstanceTypeNotSupported")
_NOT_PERMITTED = (
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
    "Blocked",
    "OptInRequired",
    "PendingVerification",
    "Client.UnauthorizedOperation",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "UnauthorizedInstanceType",
)
_CREDENTIALS_PASSING = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
_THROTTLED = (
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "RequestThrottled",
    "TooManyRequestsException",
    "BandwidthLimitExceeded",
    "InternalError",
    "InternalFailure",
    "ServerInternal",
    "ServiceUnavailable",
    "Unavailable",
    "EC2ThrottledException",
)
_CONFIG = (
    "MissingParameter",
    "UnknownParameter",
    "UnsupportedOperation",
    "UnsupportedProtocol",
    "IdempotentParameterMismatch",
    "OperationNotPermitted",
    "IncompatibleHostRequirements",
)

_TABLE = table_of(
    (_NO_CAPACITY, NoCapacityError),
    (_QUOTA, QuotaError),
    (_NOT_OFFERED, NotOfferedError),
    (_NOT_PERMITTED, NotPermittedError),
    (_CREDENTIALS_PASSING, ThrottledError),
    (_THROTTLED, ThrottledError),
    (_CONFIG, ConfigError),
)


def class_of(code: str) -> type[SpotrayError] | None:
    """Which error of ours a code is; None if nobody here knows it.

    Codes that begin with ``Invalid`` name a wrong parameter, wherever they are not known
    to be something else.

    >>> class_of("InvalidAMIID.NotFound").__name__, class_of("NewWord")
    ('ConfigError', None)
    """
    if known := _TABLE.get(code):
        return known
    return ConfigError if code.startswith("Invalid") else None


@contextmanager
def aws_errors(market: str) -> Iterator[None]:
    """Turn what boto raises into our errors; what is unknown passes through.

    Raises:
        ConfigError: the call itself is wrong: a parameter, an image, a subnet.
        MarketError: one of its kinds, with ``market`` and EC2's ``code``.
    """
    from botocore.exceptions import (
        ClientError,
        ConnectionError,
        HTTPClientError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
    )

    try:
        yield
    except ClientError as exc:
        code = str(exc.response.get("Error", {}).get("Code", ""))
        words = str(exc.response.get("Error", {}).get("Message", "")) or str(exc)
        ours = class_of(code)
        if ours is None:
            raise
        wait_s = _CREDENTIALS_RETRY_S if code in _CREDENTIALS_PASSING else RETRY_S
        raise error_of(ours, market=market, code=code, words=words, retry_after_s=wait_s) from exc
    except (NoCredentialsError, PartialCredentialsError) as exc:
        # On a node they come from its metadata service, which may be slow for a minute.
        raise ThrottledError(
            f"{market}: {exc}",
            market=market,
            code="NoCredentials",
            retry_after_s=_CREDENTIALS_RETRY_S,
        ) from exc
    except (ConnectionError, HTTPClientError) as exc:  # no way to EC2, or no answer in time
        raise ThrottledError(
            f"{market}: {exc}", market=market, code=type(exc).__name__, retry_after_s=RETRY_S
        ) from exc
    except ParamValidationError as exc:
        words = " ".join(str(exc).split())
        raise ConfigError(f"{market}: {words}") from exc


CREDENTIALS_CURE = "say `aws configure` or `aws sso login`, or set AWS_PROFILE"


def boto_errors() -> tuple[type[Exception], ...]:
    """The bases of all that boto raises."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError
