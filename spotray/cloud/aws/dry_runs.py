"""What EC2 would refuse a spot launch for, asked without a launch.

EC2 checks rights and parameters in a dry run, and not whether there is capacity: the placement
scores tell of that.

Source:
    "RunInstances", parameter DryRun, Amazon EC2 API Reference, 2026.
"""

from __future__ import annotations

from typing import Any

from spotray.cloud.aws.account import AwsAccount
from spotray.cloud.aws.errors import class_of
from spotray.cloud.codes import RETRY_S
from spotray.errors import (
    ConfigError,
    NoCapacityError,
    NotOfferedError,
    NotPermittedError,
    QuotaError,
    SpotrayError,
    ThrottledError,
)

_IMAGE = "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
_WORDS: dict[type[SpotrayError], str] = {
    NoCapacityError: "capacity",
    QuotaError: "quota",
    NotOfferedError: "not-offered",
}


class AwsDryRuns:
    """`spotray.cloud.observe.DryRuns` of AWS, in the account's default network."""

    def __init__(self, region: str, *, session: Any = None) -> None:
        """Nothing is asked yet.

        Raises:
            ConfigError: the environment names no way to AWS.
        """
        self._account = AwsAccount(region, session=session)

    def zones(self) -> list[str]:
        return [zone for zone, is_there in self._account.zones().items() if is_there]

    def refusal(self, zone: str, instance_type: str) -> str:
        code, words = self._account.dry_run(
            {
                "ImageId": _IMAGE,  # which EC2 resolves
                "InstanceType": instance_type,
                "Placement": {"AvailabilityZone": zone},
            },
            spot=True,
        )
        kind = class_of(code) if code else None
        if kind is None or kind in _WORDS:
            return _WORDS[kind] if kind is not None else ""
        market, text = f"aws/{zone}/{instance_type}/spot", f"{zone}: {code}: {words}"
        if kind is ThrottledError:
            raise ThrottledError(text, market=market, code=code, retry_after_s=RETRY_S)
        if kind is NotPermittedError:
            raise NotPermittedError(text, market=market, code=code)
        raise ConfigError(text)
