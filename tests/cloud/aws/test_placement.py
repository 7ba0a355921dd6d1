"""A placement group is made once, and only what was made here is deleted."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from spotray.clock import FakeClock
from spotray.cloud.aws.placement import delete_placement_group, ensure_placement_group
from spotray.errors import ConfigError


class FakeEc2:
    """The three calls that the functions make, as EC2 answers them; moto knows none of them.

    ``full``: so many times more, nodes are in a group that shall be deleted.
    """

    def __init__(self, *, full: int = 0, **strategies: str) -> None:
        self.strategies, self.full = strategies, full
        self.tags: dict[str, list[dict[str, str]]] = {}

    def describe_placement_groups(self, *, Filters: list[dict[str, Any]]) -> dict[str, Any]:
        (one,) = Filters
        assert one["Name"] == "group-name"
        found = [name for name in one["Values"] if name in self.strategies]
        return {
            "PlacementGroups": [
                {
                    "GroupName": name,
                    "Strategy": self.strategies[name],
                    "Tags": self.tags.get(name, []),
                }
                for name in found
            ]
        }

    def create_placement_group(
        self, *, GroupName: str, Strategy: str, TagSpecifications: list[dict[str, Any]]
    ) -> None:
        (one,) = TagSpecifications
        assert one["ResourceType"] == "placement-group"
        self.strategies[GroupName], self.tags[GroupName] = Strategy, one["Tags"]

    def delete_placement_group(self, *, GroupName: str) -> None:
        if self.full:
            self.full -= 1
            raise refusal("InvalidPlacementGroup.InUse", "DeletePlacementGroup")
        del self.strategies[GroupName]


def refusal(code: str, call: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, call)


def delete(ec2: FakeEc2, name: str = "close") -> str:
    return delete_placement_group(
        name, region="us-west-2", clock=FakeClock(), patience_s=60.0, ec2=ec2
    )


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
        def create_placement_group(self, **_: Any) -> None:
            raise refusal("UnauthorizedOperation", "CreatePlacementGroup")

    with pytest.raises(ConfigError, match="close in us-west-2.*UnauthorizedOperation"):
        ensure_placement_group("close", region="us-west-2", ec2=Refusing())


def test_a_group_is_deleted_once_its_last_node_has_ended() -> None:
    ec2 = FakeEc2(full=3)
    ensure_placement_group("close", region="us-west-2", ec2=ec2)
    assert delete(ec2) == ""
    assert ec2.strategies == {}
    assert delete(ec2) == ""  # there is none any more


def test_a_group_in_which_nodes_stay_is_not_waited_for_without_end() -> None:
    ec2 = FakeEc2(full=1000)
    ensure_placement_group("close", region="us-west-2", ec2=ec2)
    assert delete(ec2) == "nodes are still in it"


def test_a_group_of_somebody_else_is_left_alone() -> None:
    ec2 = FakeEc2(close="cluster")
    assert "not made by" in delete(ec2)
    assert ec2.strategies == {"close": "cluster"}


def test_a_group_that_may_not_be_deleted_is_told() -> None:
    class Refusing(FakeEc2):
        def delete_placement_group(self, *, GroupName: str) -> None:
            raise refusal("UnauthorizedOperation", "DeletePlacementGroup")

    ec2 = Refusing()
    ensure_placement_group("close", region="us-west-2", ec2=ec2)
    with pytest.raises(ConfigError, match="close in us-west-2.*UnauthorizedOperation"):
        delete(ec2)
