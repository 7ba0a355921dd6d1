"""Compute Engine's error codes in our words: one table, which says what a launch does next.

Google tells a refusal in two ways: as the HTTP answer to the call (quota, permission, a wrong
field), or, when the call was taken, as the error of the operation that it started (a zone
without capacity). Unknown codes pass through untouched.

Source:
    "Troubleshooting resource errors" and "Handling API errors", Compute Engine docs, 2026.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

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

_TABLE = table_of(
    (
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "resourcePoolExhausted",
            "stockout",
            "RESOURCE_POOL_EXHAUSTED",
            "INSUFFICIENT_CAPACITY",
            "IP_SPACE_EXHAUSTED",
            "IP_SPACE_EXHAUSTED_WITH_DETAILS",
        ),
        NoCapacityError,
    ),
    (("QUOTA_EXCEEDED", "quotaExceeded", "LIMIT_EXCEEDED", "limitExceeded"), QuotaError),
    (("UNSUPPORTED_OPERATION",), NotOfferedError),
    (
        (
            "forbidden",
            "insufficientPermissions",
            "accessNotConfigured",
            "authError",
            "required",
            "PERMISSIONS_ERROR",
            "PERMISSION_DENIED",
            "SERVICE_ACCOUNT_ACCESS_DENIED",
            "billingNotEnabled",
        ),
        NotPermittedError,
    ),
    (
        (
            "rateLimitExceeded",
            "userRateLimitExceeded",
            "RATE_LIMIT_EXCEEDED",
            "RESOURCE_OPERATION_RATE_EXCEEDED",
            "backendError",
            "internalError",
            "INTERNAL_ERROR",
            "resourceNotReady",
            "RESOURCE_NOT_READY",
        ),
        ThrottledError,
    ),
    (
        (
            "invalid",
            "invalidParameter",
            "INVALID_FIELD_VALUE",
            "INVALID_USAGE",
            "RESOURCE_NOT_FOUND",
            "notFound",
            "badRequest",
            "parseError",
            "conditionNotMet",
        ),
        ConfigError,
    ),
)


class OperationFailed(Exception):
    """An operation that Google had begun ended in an error."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"{code}: {words}")
        self.code = code
        self.words = words


def operation_error(operation: Mapping[str, Any]) -> OperationFailed | None:
    """The first error of a zone operation; None if it has none."""
    errors = (operation.get("error") or {}).get("errors") or []
    if not errors:
        return None
    return OperationFailed(str(errors[0].get("code", "")), str(errors[0].get("message", "")))


def class_of(code: str, words: str = "", *, status: int | None = None) -> type[SpotrayError] | None:
    """Which error of ours a code is; None if nobody here knows it.

    >>> class_of("ZONE_RESOURCE_POOL_EXHAUSTED").__name__, class_of("newWord")
    ('NoCapacityError', None)
    >>> class_of("invalid", "machine type g2-standard-4 does not exist in zone x").__name__
    'NotOfferedError'
    """
    text = words.lower()
    ours = _TABLE.get(code)
    if ours is ConfigError and "does not exist in zone" in text:
        return NotOfferedError  # a machine or accelerator type that this zone has not
    if ours is ConfigError and ("machinetypes/" in text or "acceleratortypes/" in text):
        return NotOfferedError if "not found" in text else ours
    if ours is None and status is not None:
        if status == 429 or status >= 500:
            return ThrottledError
        if status in (401, 403):
            return NotPermittedError
    return ours


@contextmanager
def gcp_errors(market: str) -> Iterator[None]:
    """Turn what Google's client raises into our errors; what is unknown passes through.

    Raises:
        ConfigError: the call itself is wrong: a field, an image, a network.
        MarketError: one of its kinds, with ``market`` and Google's ``code``.
    """
    from googleapiclient.errors import HttpError

    try:
        yield
    except OperationFailed as exc:
        raise_ours(exc, exc.code, exc.words, market, None)
    except HttpError as exc:
        code, words = reason_of(exc)
        raise_ours(exc, code, words, market, int(exc.resp.status))
    except OSError as exc:  # no way to Google, or no answer in time
        raise ThrottledError(
            f"{market}: {exc}", market=market, code=type(exc).__name__, retry_after_s=RETRY_S
        ) from exc


def reason_of(error: Any) -> tuple[str, str]:
    """The reason and the words of an `HttpError`; the status if its body is no JSON."""
    try:
        told = json.loads(error.content)["error"]
        reasons = told.get("errors") or [{}]
        return str(reasons[0].get("reason") or told.get("status") or ""), str(told["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return str(error.resp.status), str(error)


NO_CREDENTIALS = (
    "no credentials for Google Cloud here: say `gcloud auth application-default login`, or set "
    "GOOGLE_APPLICATION_CREDENTIALS"
)


def credential_errors() -> tuple[type[Exception], ...]:
    """The bases of what is raised where there are no credentials, or Google takes none of them."""
    from google.auth.exceptions import DefaultCredentialsError, RefreshError

    return DefaultCredentialsError, RefreshError


def foreign_errors() -> tuple[type[Exception], ...]:
    """The bases of what Google's client raises, and of operations that fail."""
    from googleapiclient.errors import Error

    return Error, OperationFailed


def raise_ours(exc: Exception, code: str, words: str, market: str, status: int | None) -> NoReturn:
    """Raise what ``code`` is in our words, or ``exc`` itself if nobody here knows it."""
    ours = class_of(code, words, status=status)
    if ours is None:
        raise exc
    raise error_of(ours, market=market, code=code, words=words) from exc
