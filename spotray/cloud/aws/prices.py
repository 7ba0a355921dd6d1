"""What EC2's machines cost now, and how likely spot ones are to be had.

Spot prices are of zones and move by the minute; on-demand ones come from the price list,
which is served from a few regions for all.

Source:
    "DescribeSpotPriceHistory" and "GetSpotPlacementScores", Amazon EC2 API Reference;
    "GetProducts", AWS Price List API Reference; 2026.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from spotray.clock import Clock, SystemClock
from spotray.cloud.aws.errors import aws_errors, boto_errors
from spotray.cloud.prices import Quote, Score
from spotray.errors import ConfigError, NotAnswered

_LINUX = "Linux/UNIX"
_PRICE_LIST_REGION = "us-east-1"
FEWEST_TYPES = 3  # with fewer, EC2 gives a low score whatever the capacity


class AwsPrices:
    """`spotray.cloud.prices.PriceSource` of AWS."""

    cloud = "aws"

    def __init__(self, *, session: Any = None, clock: Clock | None = None) -> None:
        """Nothing is asked yet.

        Args:
            session: a boto3 session; None: that of the environment.
            clock: what the time is: prices of now are asked for.

        Raises:
            ConfigError: boto3 is not installed, or the environment names a profile that does
                not exist.
        """
        self._session = session or _session()
        self._clock = clock or SystemClock()

    def quotes(self, region: str, instance_types: Sequence[str]) -> list[Quote]:
        _check_region(self._session, region)
        if not instance_types:
            return []
        return [*self._spot(region, instance_types), *self._on_demand(region, instance_types)]

    def _spot(self, region: str, types: Sequence[str]) -> list[Quote]:
        now = datetime.fromtimestamp(self._clock.now_s(), UTC)
        latest: dict[tuple[str, str], Any] = {}
        with _asking(f"aws/{region}", "ec2:DescribeSpotPriceHistory", self._session):
            ec2 = self._session.client("ec2", region_name=region)
            # From now on: EC2 adds the last change before, which is the price of now.
            for page in ec2.get_paginator("describe_spot_price_history").paginate(
                InstanceTypes=list(types), ProductDescriptions=[_LINUX], StartTime=now
            ):
                for one in page["SpotPriceHistory"]:
                    key = one["InstanceType"], one["AvailabilityZone"]
                    if key not in latest or one["Timestamp"] > latest[key]["Timestamp"]:
                        latest[key] = one
        return [
            Quote(
                cloud=self.cloud,
                region=region,
                zone=zone,
                instance_type=name,
                spot=True,
                usd_per_hour=float(one["SpotPrice"]),
                source="EC2 DescribeSpotPriceHistory",
            )
            for (name, zone), one in sorted(latest.items())
            if one["ProductDescription"].startswith(_LINUX) and name in types
        ]

    def _on_demand(self, region: str, types: Sequence[str]) -> Iterator[Quote]:
        with _asking(f"aws/{region}", "pricing:GetProducts", self._session):
            pricing = self._session.client("pricing", region_name=_PRICE_LIST_REGION)
            for name in types:
                wanted = {
                    "regionCode": region,
                    "instanceType": name,
                    "operatingSystem": "Linux",
                    "preInstalledSw": "NA",
                    "tenancy": "Shared",
                    "capacitystatus": "Used",
                }
                pages = pricing.get_paginator("get_products").paginate(
                    ServiceCode="AmazonEC2",
                    Filters=[
                        {"Type": "TERM_MATCH", "Field": field, "Value": value}
                        for field, value in wanted.items()
                    ],
                )
                for page in pages:
                    for text in page["PriceList"]:
                        if (usd := _hourly_usd(text)) is not None:
                            yield Quote(
                                cloud=self.cloud,
                                region=region,
                                zone="",
                                instance_type=name,
                                spot=False,
                                usd_per_hour=usd,
                                source="AWS Price List GetProducts",
                            )


class AwsScores:
    """`spotray.cloud.prices.PlacementScorer` of AWS.

    EC2 limits how many *new* questions it answers in 24 hours, and how large a capacity it
    scores by what the account used lately: ask seldom, and for what will be launched.
    """

    cloud = "aws"

    def __init__(self, *, session: Any = None) -> None:
        """Nothing is asked yet; as for `AwsPrices`."""
        self._session = session or _session()

    def scores(self, region: str, instance_types: Sequence[str], *, nodes: int) -> list[Score]:
        """By zone, likeliest first.

        Raises:
            ConfigError: fewer types than `FEWEST_TYPES`: EC2 would score them low whatever
                its capacity; and as `spotray.cloud.prices.PlacementScorer`.
        """
        _check_region(self._session, region)
        if len(instance_types) < FEWEST_TYPES:
            raise ConfigError(
                f"EC2 scores {', '.join(instance_types) or 'no type'} low, for it wants at least "
                f"{FEWEST_TYPES} types to choose from: ask for more, without --gpus perhaps"
            )
        with _asking(f"aws/{region}", "ec2:GetSpotPlacementScores", self._session):
            ec2 = self._session.client("ec2", region_name=region)
            # Scores name zones by id, which is the same for all accounts; launches by name.
            names = {
                one["ZoneId"]: one["ZoneName"]
                for one in ec2.describe_availability_zones()["AvailabilityZones"]
            }
            pages = ec2.get_paginator("get_spot_placement_scores").paginate(
                InstanceTypes=list(instance_types),
                TargetCapacity=nodes,
                TargetCapacityUnitType="units",
                SingleAvailabilityZone=True,
                RegionNames=[region],
            )
            told = [one for page in pages for one in page["SpotPlacementScores"]]
        found = [
            Score(
                cloud=self.cloud,
                region=one["Region"],
                zone=names.get(one["AvailabilityZoneId"], one["AvailabilityZoneId"]),
                instance_types=tuple(instance_types),
                nodes=nodes,
                obtainable_frac=int(one["Score"]) / 10,
            )
            for one in told
        ]
        return sorted(found, key=lambda one: (-one.obtainable_frac, one.zone))


def _session() -> Any:
    try:
        import boto3
    except ImportError as exc:
        raise ConfigError("prices of AWS need boto3: pip install 'spotray[aws]'") from exc
    try:
        return boto3.Session()
    except boto_errors() as exc:
        raise ConfigError(f"no way to AWS: {exc}: correct AWS_PROFILE") from exc


def _check_region(session: Any, region: str) -> None:
    known = [
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("ec2", partition_name=partition)
    ]
    if region not in known:
        near = difflib.get_close_matches(region, known, n=1)
        meant = f"did you mean {near[0]}?" if near else "write it as us-east-1"
        raise ConfigError(f"AWS has no region {region!r} that the installed boto3 knows: {meant}")


@contextmanager
def _asking(market: str, right: str, session: Any) -> Iterator[None]:
    """Errors of a question in our words, the right that it takes with them."""
    from botocore.exceptions import (
        EndpointConnectionError,
        NoCredentialsError,
        PartialCredentialsError,
    )
    from botocore.parsers import ResponseParserError

    try:
        with aws_errors(f"{market} {right}"):
            try:
                yield
            except (NoCredentialsError, PartialCredentialsError) as exc:
                # Here nobody waits for a role to be renewed, as a launch does.
                raise ConfigError(
                    f"no credentials for AWS here: {exc}: say `aws configure` or `aws sso login`, "
                    "or set AWS_PROFILE"
                ) from exc
            except EndpointConnectionError as exc:
                raise NotAnswered(
                    f"{market}: AWS does not answer: is there a network? {exc}"
                ) from exc
    except (*boto_errors(), ResponseParserError) as exc:
        raise NotAnswered(f"{market} {right}: {' '.join(str(exc).split())[:300]}") from exc


def _hourly_usd(text: str) -> float | None:
    """The on-demand price of a product of the price list; None if it has none by the hour."""
    try:
        terms = json.loads(text)["terms"].get("OnDemand", {}).values()
        prices = [
            float(dimension["pricePerUnit"]["USD"])
            for term in terms
            for dimension in term["priceDimensions"].values()
            if dimension["unit"] == "Hrs"
        ]
    except (ValueError, KeyError, AttributeError, TypeError) as exc:
        raise NotAnswered(f"the price list of AWS has another shape: {text[:80]!r}") from exc
    return next((usd for usd in prices if usd > 0), None)
