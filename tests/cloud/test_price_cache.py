from __future__ import annotations

import math
from pathlib import Path

import pytest

from spotray.cloud.price_cache import PriceCache, Told
from spotray.cloud.prices import Quote
from spotray.errors import ConfigError
from spotray.market.prices import PriceTable


def quote(name: str, usd: float, *, zone: str = "us-east-1a", spot: bool = True) -> Quote:
    return Quote(
        cloud="aws",
        region="us-east-1",
        zone=zone,
        instance_type=name,
        spot=spot,
        usd_per_hour=usd,
        source="EC2",
    )


def told(at_s: float, *quotes: Quote, types: tuple[str, ...] = ()) -> Told:
    names = types or tuple(one.instance_type for one in quotes)
    return Told(cloud="aws", region="us-east-1", at_s=at_s, types=names, quotes=quotes)


def test_what_was_told_comes_back_as_a_range_over_zones_with_its_time(tmp_path: Path) -> None:
    cache = PriceCache(tmp_path / "prices")
    cache.keep(told(0.0, quote("a", 0.3), quote("a", 0.5, zone="us-east-1b")))
    price = PriceCache(tmp_path / "prices").table().find("aws", "us-east-1", "a", spot=True)
    assert price is not None
    assert (price.low_usd_per_hour, price.high_usd_per_hour) == (0.3, 0.5)
    assert (price.date, price.source) == ("1970-01-01 00:00 UTC", "EC2")


def test_a_later_answer_replaces_that_of_the_same_types_only(tmp_path: Path) -> None:
    cache = PriceCache(tmp_path)
    cache.keep(told(100.0, quote("a", 0.3), quote("b", 0.4)))
    cache.keep(told(200.0, quote("b", 0.6)))
    assert [(one.at_s, one.types) for one in cache.all()] == [(100.0, ("a",)), (200.0, ("b",))]
    table = cache.table()
    found = table.find("aws", "us-east-1", "b", spot=True)
    assert found is not None
    assert found.low_usd_per_hour == 0.6
    assert table.find("aws", "us-east-1", "a", spot=True) is not None


def test_the_age_is_that_of_the_oldest_and_infinite_for_what_nobody_asked(tmp_path: Path) -> None:
    cache = PriceCache(tmp_path)
    cache.keep(told(100.0, quote("a", 0.3), types=("a", "not-sold")))
    cache.keep(told(150.0, quote("b", 0.3)))
    assert cache.age_s("aws", "us-east-1", ["a", "b"], now_s=160.0) == 60.0
    assert cache.age_s("aws", "us-east-1", ["not-sold"], now_s=160.0) == 60.0
    assert cache.age_s("aws", "us-east-1", ["a", "c"], now_s=160.0) == math.inf
    assert cache.age_s("aws", "us-west-2", ["a"], now_s=160.0) == math.inf


@pytest.mark.parametrize("text", ["{", "3", '[{"cloud": "aws"}]', '[{"at_s": "soon"}]'])
def test_a_file_that_cannot_be_read_counts_as_none_and_is_named(tmp_path: Path, text: str) -> None:
    cache = PriceCache(tmp_path)
    file = tmp_path / "aws_us-east-1.json"
    file.write_text(text)
    assert cache.all() == []
    assert cache.unreadable == [file]
    cache.keep(told(1.0, quote("a", 0.3)))
    assert len(PriceCache(tmp_path).all()) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        PriceCache(tmp_path / "file" / "prices").keep(told(1.0, quote("a", 0.3)))


@pytest.mark.parametrize("usd", [0.0, -1.0, math.nan, math.inf])
def test_a_price_that_is_none_is_no_quote(usd: float) -> None:
    with pytest.raises(ConfigError, match="no price is such"):
        quote("a", usd)


def test_what_was_asked_counts_while_it_is_newer_than_what_is_shipped(tmp_path: Path) -> None:
    shipped = PriceTable.bundled()
    before = shipped.find("aws", "us-east-1", "g5.xlarge", spot=True)
    assert before is not None
    assert before.known_s is not None
    for later_s, usd in ((-1.0, before.low_usd_per_hour), (1.0, 0.123)):
        cache = PriceCache(tmp_path / f"{later_s:g}")
        cache.keep(told(before.known_s + later_s, quote("g5.xlarge", 0.123), quote("new", 0.5)))
        known = cache.known()
        price = known.find("aws", "us-east-1", "g5.xlarge", spot=True)
        assert price is not None
        assert price.low_usd_per_hour == usd
        assert known.find("aws", "us-east-1", "new", spot=True) is not None
        assert len(known.rows) == len(shipped.rows) + 1
