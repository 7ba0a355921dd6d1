from __future__ import annotations

import pytest

from spotray.errors import ConfigError
from spotray.market.hazards import learn
from spotray.market.lives import NodeLife
from spotray.market.prices import PriceTable
from spotray.plan.plan import Plan, Wish, plan
from spotray.plan.rates import Rate

TABLE = PriceTable.parse(
    """cloud,region,instance_type,kind,usd_low,usd_high
aws,us-east-1,g5.12xlarge,on-demand,5.6,5.6
aws,us-east-1,g5.xlarge,on-demand,1.0,1.0
aws,us-east-1,g5.xlarge,spot,0.4,0.5
aws,us-west-2,g5.xlarge,on-demand,1.1,1.1
aws,us-west-2,g5.xlarge,spot,0.2,0.2
aws,us-east-1,g6.xlarge,on-demand,0.8,0.8
aws,us-east-1,g6.xlarge,spot,0.3,0.3
gcp,us-east4,a3-highgpu-1g,spot,2.5,2.5
""",
    name="own.csv",
)


def wish(**more: object) -> Wish:
    return Wish(**{"gpus": 4, "gpu": "A10G", "hours": 4.0, "deadline_h": 8.0, **more})  # type: ignore[arg-type]


def rate(name: str, samples_per_s: float, *, gpus: int = 1, gpu: str = "A10G") -> Rate:
    return Rate(
        model="vit",
        cloud="aws",
        instance_type=name,
        gpu=gpu,
        gpus=gpus,
        samples_per_s=samples_per_s,
        low_samples_per_s=samples_per_s,
        high_samples_per_s=samples_per_s,
        at="2026-11-22",
    )


def kept(*rates: Rate) -> dict[tuple[str, str], Rate]:
    return {(one.cloud, one.instance_type): one for one in rates}


def by_name(found: Plan) -> dict[tuple[str, int], float]:
    return {(one.name, one.machines): one.forecast.cost_usd.middle for one in found.options}


def test_the_four_ways_are_compared_in_one_region_that_has_them_all() -> None:
    found = plan(wish(), TABLE)
    assert {one.offer.region for one in found.options} == {"us-east-1"}
    cost = by_name(found)
    assert list(cost) == [
        ("on-demand", 1),
        ("on-demand", 4),
        ("spot, lookahead", 4),
        ("spot, multi-zone", 4),
        ("spot only", 4),
    ]
    assert cost["on-demand", 1] == pytest.approx(5.6 * 4.05)
    assert cost["on-demand", 4] == pytest.approx(4 * 1.0 * 4.05)
    assert cost["spot only", 4] < cost["spot, lookahead", 4] < cost["on-demand", 4]


def test_one_gpu_is_one_machine() -> None:
    found = plan(wish(gpus=1), TABLE)
    assert [one.machines for one in found.options] == [1, 1, 1, 1]
    assert found.options[0].offer.region == "us-west-2"  # nothing to compare it with elsewhere


def test_types_are_ranked_by_the_cost_of_their_work_with_preemptions_in_it() -> None:
    found = plan(wish(), TABLE).ranking
    assert [(one.offer.type.name, one.spot) for one in found] == [
        ("g5.xlarge", True),
        ("g5.xlarge", False),
        ("g5.12xlarge", False),
    ]
    assert found[0].offer.region == "us-west-2"
    assert found[0].usd_per_gpu_hour > 0.2
    assert found[1].usd_per_gpu_hour == pytest.approx(1.0)


def test_a_measured_rate_makes_hours_and_costs_per_sample_of_every_type() -> None:
    rates = kept(
        rate("g5.xlarge", 100), rate("g5.12xlarge", 500, gpus=4), rate("g6.xlarge", 90, gpu="L4")
    )
    found = plan(wish(), TABLE, rates)
    one_machine, several = found.options[:2]
    assert several.work_s == pytest.approx(4 * 3600)
    assert one_machine.work_s == pytest.approx(4 * 3600 * 400 / 500)
    samples = 4 * 100 * 4 * 3600
    assert several.usd_per_million_samples == pytest.approx(4 * 4.05 / samples * 1e6)
    # A type with another GPU is ranked once it was measured.
    assert {one.offer.type.name for one in found.ranking} == {
        "g5.xlarge",
        "g5.12xlarge",
        "g6.xlarge",
    }
    assert all(one.is_measured for one in found.ranking)


def test_a_rate_that_is_given_serves_all_types_of_that_gpu() -> None:
    found = plan(wish(samples_per_s=100.0), TABLE)
    assert all(one.usd_per_million_samples for one in found.options)
    assert not any(one.is_measured for one in found.ranking)
    assert any("not measured" in note for note in found.notes)


def test_a_type_whose_price_is_not_known_is_told_and_the_rest_compared() -> None:
    found = plan(wish(gpu="L4"), TABLE)
    assert [one.machines for one in found.options] == [4, 4, 4, 4]
    assert "no on-demand price is known of a machine with 4 L4" in found.notes
    only_spot = plan(wish(gpu="H100"), TABLE)
    assert [one.name for one in only_spot.options] == ["spot only"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"deadline_h": 3.0}, "3 h cannot be met even on on-demand: 4 h of work and 3 min.*4.05"),
        ({"gpus": 0}, "--gpus is 0"),
        ({"hours": -1.0}, "--hours is -1"),
        ({"hours": float("nan")}, "--hours is nan"),
        ({"deadline_h": 0.0}, "--deadline is 0"),
        ({"samples_per_s": -5.0}, "--samples-per-s is -5"),
        ({"start_s": -60.0}, "--start is -1 min"),
        ({"preemptible": True, "cloud": "aws"}, "--preemptible is of gcp, --cloud is aws"),
        ({"gpu": "T4"}, "no price is known of a machine with T4"),
        ({"gpu": "A10G", "cloud": "gcp"}, "no price is known of a machine gcp with A10G"),
    ],
)
def test_what_cannot_be_planned_is_told(more: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(wish(**more), TABLE)


def test_without_a_deadline_half_as_long_again_is_taken() -> None:
    found = plan(wish(deadline_h=None), TABLE)
    assert found.wish.deadline_s == pytest.approx(6 * 3600 + 180)
    assert any("no deadline was given" in note for note in found.notes)


GOOGLE = PriceTable.parse(
    """cloud,region,instance_type,kind,usd_low,usd_high
gcp,us-central1,g2-standard-4,on-demand,0.7,0.7
gcp,us-central1,g2-standard-4,spot,0.2,0.3
""",
    name="own.csv",
)


def test_googles_limit_is_counted_and_told_where_it_is_asked_for() -> None:
    ask = {"gpus": 2, "gpu": "L4", "hours": 60.0, "deadline_h": 120.0}
    free, ends = (plan(wish(**ask, preemptible=old), GOOGLE) for old in (False, True))
    name = "gcp/g2-standard-4"
    assert f"{name}: Google ends each spot node after 24 h" in ends.notes
    assert any(note.startswith(f"{name}: Spot VMs, not ended after 24 h") for note in free.notes)
    losses = []
    for found in (free, ends):
        spot = next(one for one in found.ranking if one.spot)
        assert spot.restarts is not None
        losses.append(spot.restarts.losses_per_hour)
    assert losses[1] > 1.05 * losses[0]
    for without, within in zip(free.options, ends.options, strict=True):
        if without.policy:
            assert within.forecast.preemptions >= without.forecast.preemptions


def test_the_lives_of_ones_own_nodes_change_the_plan_and_it_says_so() -> None:
    found = {}
    for hours in (0.25, 200.0):
        lives = [
            NodeLife(
                market="aws/us-east-1a/g5.xlarge/spot",
                name=f"i-{index}",
                start_s=0.0,
                seconds=hours * 3600,
                ended=True,
            )
            for index in range(40)
        ]
        found[hours] = plan(wish(), TABLE, hazards=learn(lives))
    short, long = (
        next(one for one in told.ranking if one.offer.type.name == "g5.xlarge" and one.spot)
        for told in found.values()
    )
    assert short.restarts is not None
    assert long.restarts is not None
    assert short.restarts.losses_per_hour > 20 * long.restarts.losses_per_hour
    costs = [by_name(told)["spot, lookahead", 4] for told in found.values()]
    assert costs[0] > costs[1]
    (note,) = [note for note in found[0.25].notes if "lives of your own nodes" in note]
    assert note.startswith("aws/g5.xlarge: lost ")
    assert "40 lives of your own nodes (aws/g5.xlarge, 40 lost)" in note
