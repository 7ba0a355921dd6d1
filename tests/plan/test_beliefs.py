from __future__ import annotations

import math

import pytest

from spotray.market import catalog
from spotray.market.hazards import GOOGLE_LIMIT_S, learn
from spotray.market.lives import NodeLife
from spotray.market.sale import ForSale
from spotray.market.survival import PRIOR
from spotray.plan.beliefs import Beliefs


def offer(cloud: str, name: str) -> ForSale:
    kind = catalog.find(cloud, name)
    assert kind is not None
    return ForSale(cloud=cloud, region="r-1", type=kind, on_demand=None, spot=None)


G5, L4 = offer("aws", "g5.xlarge"), offer("gcp", "g2-standard-4")


def lives(market: str, hours: float, count: int = 40) -> list[NodeLife]:
    return [
        NodeLife(
            market=market, name=f"n-{i}", start_s=0.0, seconds=(hours + 0.1 * i) * 3600, ended=True
        )
        for i in range(count)
    ]


def test_without_own_lives_public_traces_are_believed_and_nothing_is_told_of_lives() -> None:
    beliefs = Beliefs()
    assert beliefs.survival(G5) == PRIOR
    assert beliefs.losses(G5) == 1.0
    assert not list(beliefs.notes([G5]))


def test_preemptible_is_of_google_alone() -> None:
    beliefs = Beliefs(preemptible=True)
    assert beliefs.survival(L4).limit_s == GOOGLE_LIMIT_S
    assert beliefs.survival(G5).limit_s == math.inf
    (note,) = beliefs.notes([L4, G5])
    assert note == "gcp/g2-standard-4: Google ends each spot node after 24 h"


@pytest.mark.parametrize(("hours", "often"), [(0.1, True), (100.0, False)])
def test_lives_of_the_same_type_count_whatever_their_zone(hours: float, often: bool) -> None:
    beliefs = Beliefs(hazards=learn(lives("aws/eu-west-1c/g5.xlarge/spot", hours)))
    assert (beliefs.losses(G5) > 1.2) is often
    assert (beliefs.losses(G5) < 0.8) is not often
    (note,) = beliefs.notes([G5, G5])
    assert "by 40 lives of your own nodes (aws/g5.xlarge, 40 lost)" in note


def test_however_bad_it_was_the_made_up_markets_stay_possible() -> None:
    seen = [
        NodeLife(market="aws/a/g5.xlarge/spot", name=str(i), start_s=0.0, seconds=1e-3, ended=True)
        for i in range(1000)
    ]
    assert Beliefs(hazards=learn(seen)).losses(G5) <= 20.0


def test_a_limit_that_showed_in_own_lives_is_told() -> None:
    seen = [
        NodeLife(
            market="gcp/us-central1-a/g2-standard-4/spot",
            name=str(i),
            start_s=0.0,
            seconds=86400.0,
            ended=True,
        )
        for i in range(3)
    ]
    notes = list(Beliefs(hazards=learn(seen)).notes([L4]))
    assert "gcp/g2-standard-4: Google ends each spot node after 24 h" in notes
