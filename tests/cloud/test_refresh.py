from __future__ import annotations

from pathlib import Path

from spotray.clock import FakeClock
from spotray.cloud.fake import FakePrices
from spotray.cloud.price_cache import PriceCache
from spotray.cloud.prices import Quote
from spotray.cloud.refresh import Question, refresh
from spotray.errors import ConfigError, NotAnswered, ThrottledError

EAST, WEST = (
    Question(cloud="aws", region=region, types=("a",)) for region in ("us-east-1", "us-west-2")
)


def quote(region: str) -> Quote:
    return Quote(
        cloud="aws",
        region=region,
        zone="",
        instance_type="a",
        spot=True,
        usd_per_hour=0.5,
        source="fake",
    )


SOLD = [quote("us-east-1"), quote("us-west-2")]


def test_answers_are_kept_and_not_asked_for_again_while_they_are_young(tmp_path: Path) -> None:
    source, clock, cache = FakePrices(SOLD), FakeClock(), PriceCache(tmp_path)

    def ask() -> list[tuple[int, float]]:
        found = refresh([EAST], sources=lambda cloud: source, cache=cache, clock=clock)
        return [(one.prices, one.age_s) for one in found]

    assert ask() == [(1, 0.0)]
    clock.advance(600)
    assert ask() == [(0, 600.0)]
    clock.advance(3600)
    assert ask() == [(1, 0.0)]
    assert source.asked == ["us-east-1"] * 2
    assert cache.table().find("aws", "us-east-1", "a", spot=True) is not None


def test_throttling_is_waited_out(tmp_path: Path) -> None:
    slow = ThrottledError("slower", market="aws", retry_after_s=1)
    source = FakePrices(SOLD, script=[slow, slow])
    (one,) = refresh(
        [EAST], sources=lambda cloud: source, cache=PriceCache(tmp_path), clock=FakeClock()
    )
    assert (one.prices, one.error, len(source.asked)) == (1, "", 3)


def test_one_region_that_does_not_answer_stops_no_other_and_keeps_what_was_kept(
    tmp_path: Path,
) -> None:
    clock, cache = FakeClock(), PriceCache(tmp_path)
    source = FakePrices(SOLD)
    refresh([EAST], sources=lambda cloud: source, cache=cache, clock=clock)
    clock.advance(7200)
    source.script = [NotAnswered("no network")]
    east, west = refresh([EAST, WEST], sources=lambda cloud: source, cache=cache, clock=clock)
    assert (east.error, west.error) == ("no network", "")
    assert len(cache.all()) == 2


def test_without_credentials_a_cloud_is_asked_once(tmp_path: Path) -> None:
    source = FakePrices(SOLD, script=[ConfigError("no credentials")])
    (one,) = refresh(
        [EAST, WEST], sources=lambda cloud: source, cache=PriceCache(tmp_path), clock=FakeClock()
    )
    assert one.error == "no credentials"
    assert source.asked == ["us-east-1"]


def test_a_cloud_whose_sdk_is_missing_stops_no_other(tmp_path: Path) -> None:
    other = Question(cloud="azure", region="eastus", types=("a",))

    def sources(cloud: str) -> FakePrices:
        if cloud == "aws":
            raise ConfigError("prices of AWS need boto3")
        return FakePrices(cloud="azure")

    found = refresh([EAST, other], sources=sources, cache=PriceCache(tmp_path), clock=FakeClock())
    assert [one.error for one in found] == ["prices of AWS need boto3", ""]
