"""What is for sale: a market."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spotray.errors import ConfigError

_PART = re.compile(r"[a-z0-9][a-z0-9._-]*", re.IGNORECASE)
_ZONE_LETTER = re.compile(r"[a-z]|-[a-z]")  # us-east-1a, us-central1-a
_KINDS = {"spot": True, "on-demand": False}


@dataclass(frozen=True, kw_only=True)
class Market:
    """Where a node can be had: cloud, zone, instance type and purchase kind.

    >>> str(Market.parse("aws/us-east-1a/g5.xlarge/spot").on_demand())
    'aws/us-east-1a/g5.xlarge/on-demand'
    """

    cloud: str  # "aws", "gcp" or "azure"
    zone: str
    instance_type: str
    spot: bool

    def __post_init__(self) -> None:
        for name in ("cloud", "zone", "instance_type"):
            value = getattr(self, name)
            if not _PART.fullmatch(value):
                raise ConfigError(
                    f"market {name} {value!r}: use letters, digits, '.', '_' and '-', no '/'"
                )

    @classmethod
    def parse(cls, text: str) -> Market:
        """The market of a text such as ``aws/us-east-1a/g5.xlarge/spot``.

        Raises:
            ConfigError: not four parts, an empty part or one with other characters, or
                the last is neither ``spot`` nor ``on-demand``.
        """
        parts = text.split("/")
        if len(parts) != 4 or parts[3] not in _KINDS:
            raise ConfigError(
                f"market {text!r}: write CLOUD/ZONE/INSTANCE_TYPE/spot or .../on-demand"
            )
        cloud, zone, instance_type, kind = parts
        return cls(cloud=cloud, zone=zone, instance_type=instance_type, spot=_KINDS[kind])

    def __str__(self) -> str:
        kind = "spot" if self.spot else "on-demand"
        return f"{self.cloud}/{self.zone}/{self.instance_type}/{kind}"

    @property
    def region(self) -> str:
        """The zone's region; a zone without a letter at its end is its own.

        >>> Market.parse("gcp/us-central1-a/g2-standard-4/spot").region
        'us-central1'
        """
        match = re.fullmatch(rf"(.*\d)(?:{_ZONE_LETTER.pattern})", self.zone)
        return match[1] if match else self.zone

    def on_demand(self) -> Market:
        """The same machines, on demand."""
        return Market(
            cloud=self.cloud, zone=self.zone, instance_type=self.instance_type, spot=False
        )
