"""Which disk a node gets is decided by values alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotray.cloud.disks import Disk
from spotray.cluster.disks.choice import (
    expired,
    fitting,
    pool_of,
    told,
    usd_per_hour,
    usd_per_month,
    warm_first,
    wish_for,
)
from spotray.cluster.disks.config import DataDisk
from spotray.market.offer import Market

WANTED = DataDisk(size_gb=200, type="gp3")


def disk(name: str, slot: str = "gpu-0", **more: object) -> Disk:
    known: dict[str, object] = {
        "zone": "us-west-2a",
        "cluster": "c",
        "size_gib": 200,
        "type": "gp3",
        "used_s": 0.0,
    }
    return Disk(disk_id=name, slot=slot, **{**known, **more})  # type: ignore[arg-type]


def names(*disks: Disk, without: tuple[str, ...] = (), node_type: str = "gpu") -> list[str]:
    found = fitting(disks, WANTED, node_type=node_type, zone="us-west-2a", without=without)
    return [one.disk_id for one in found]


def test_the_disk_that_was_used_last_comes_first() -> None:
    assert names(disk("old"), disk("new", used_s=9.0), disk("mid", used_s=5.0)) == [
        "new",
        "mid",
        "old",
    ]


def test_of_disks_used_at_the_same_time_the_lower_slot_comes_first() -> None:
    assert names(disk("b", "gpu-10"), disk("a", "gpu-9")) == ["a", "b"]


def test_what_does_not_fit_is_no_choice() -> None:
    assert (
        names(
            disk("taken", is_free=False),
            disk("far", zone="us-west-2b"),
            disk("small", size_gib=199),
            disk("slow", type="st1"),
            disk("others", "cpu-0"),
            disk("being-given"),
            without=("being-given",),
        )
        == []
    )


def test_a_pool_whose_name_begins_like_another_has_its_own_disks() -> None:
    assert names(disk("a", "gpu-large-0")) == []
    assert names(disk("a", "gpu-large-0"), node_type="gpu_large") == ["a"]


def test_a_new_disk_takes_the_lowest_slot_of_its_zone() -> None:
    disks = [disk("a", "gpu-0"), disk("b", "gpu-2", is_free=False), disk("c", "gpu-1", zone="z")]

    def slot(*without: str) -> str:
        return wish_for(
            disks, WANTED, cluster="c", node_type="gpu", zone="us-west-2a", without=without
        ).slot

    assert slot() == "gpu-1"
    assert slot("gpu-1") == "gpu-3"


@given(st.text())
def test_any_node_type_has_a_name_that_clouds_take(node_type: str) -> None:
    pool = pool_of(node_type)
    assert pool
    assert set(pool) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert pool_of(pool) == pool


def markets(*names: str) -> tuple[Market, ...]:
    return tuple(Market.parse(f"aws/{name}") for name in names)


def test_only_zones_of_one_type_and_kind_change_places() -> None:
    given_ = markets(
        *(f"us-west-2{zone}/g5.xlarge/spot" for zone in "ab"),
        *(f"us-west-2{zone}/g6.xlarge/spot" for zone in "ab"),
        *(f"us-west-2{zone}/g5.xlarge/on-demand" for zone in "ab"),
    )
    ordered = warm_first(given_, ["us-west-2b"])
    assert [str(one) for one in ordered] == [
        f"aws/us-west-2{zone}/{kind}"
        for kind in ("g5.xlarge/spot", "g6.xlarge/spot", "g5.xlarge/on-demand")
        for zone in "ba"
    ]


@given(st.lists(st.sampled_from("abc"), unique=True), st.permutations("abc"))
def test_warmth_loses_no_candidate_and_keeps_the_order_among_equals(
    warm: list[str], zones: list[str]
) -> None:
    given_ = markets(*(f"us-west-2{zone}/g5.xlarge/spot" for zone in zones))
    ordered = warm_first(given_, [f"us-west-2{zone}" for zone in warm])
    assert sorted(map(str, ordered)) == sorted(map(str, given_))
    cold = [one for one in ordered if one.zone[-1] not in warm]
    assert cold == [one for one in given_ if one.zone[-1] not in warm]
    assert [one.zone[-1] in warm for one in ordered] == sorted(
        (one.zone[-1] in warm for one in ordered), reverse=True
    )


def test_only_disks_without_a_node_grow_too_old() -> None:
    used, broken = disk("used", node="i-1", is_free=False), disk("broken", is_free=False)
    disks = [disk("free"), used, broken, disk("young", used_s=3600.0)]
    old = expired(disks, now_s=2 * 3600.0, keep_hours=1.5)
    assert [one.disk_id for one in old] == ["free", "broken"]


def test_a_disk_costs_its_size_and_an_unknown_type_nothing_known() -> None:
    assert usd_per_month(disk("a")) == 16.0
    assert usd_per_hour(disk("a")) == 16.0 / 730
    assert usd_per_month(disk("a", type="brand-new")) is None
    assert "USD" not in told(disk("a", type="brand-new"), now_s=0.0)
    assert "on i-1" in told(disk("a", node="i-1"), now_s=0.0)
