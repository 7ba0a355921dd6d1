"""A placement group is made once, and one of another kind is not taken for it."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from spotray.cloud.aws.placement import ensure_placement_group
from spotray.errors import ConfigError


class FakeEc2:
    """The two calls that the function makes, as EC2 answers them; moto knows neither."""

    def __init__(self, **strategies: str) -> None:
        self.strategies = strategies

    def describe_placement_groups(self, *, Filters: list[dict[str, Any]]) -> dict[str, Any]:
        (one,) = Filters
        assert one["Name"] == "group-name"
        found = [name for name in one["Values"] if name in self.strategies]
        return {
            "PlacementGroups": [
                {"GroupName": name, "Strategy": self.strategies[name]} for name in found
            ]
        }

    def create_placement_group(self, *, GroupName: str, Strategy: str) -> None:
        self.strategies[GroupName] = Strategy


def test_a_group_is_made_once() -> None:
    ec2 = FakeEc2()
    assert ensure_placement_group("close", region="us-west-2", ec2=ec2)
    assert not ensure_placement_group("close", region="us-west-2", ec2=ec2)
    assert ec2.strategies == {"close": "cluster"}


def test_a_group_that_spreads_nodes_is_refused() -> None:
    with pytest.raises(ConfigError, match="spread"):
        ensure_placement_group("wide", region="us-west-2", ec2=FakeEc2(wide="spread"))


def test_what_ec2_refuses_is_told_with_the_group() -> None:
    class Refusing(FakeEc2):
        def create_placement_group(self, *, GroupName: str, Strategy: str) -> None:
            error = {"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}
            raise ClientError(error, "CreatePlacementGroup")

    with pytest.raises(ConfigError, match="close in us-west-2.*UnauthorizedOperation"):
        ensure_placement_group("close", region="us-west-2", ec2=Refusing())
