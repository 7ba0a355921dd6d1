from __future__ import annotations

import pytest

from spotray.errors import ConfigError
from spotray.market import catalog
from spotray.market.prices import SHIPPED_ON, PriceRange, PriceTable, sources

HEAD = "cloud,region,instance_type,kind,usd_low,usd_high,date,source\n"


def test_every_bundled_price_says_when_and_where_it_was_read() -> None:
    rows = PriceTable.bundled().rows
    assert rows
    assert all(one.date and one.source for one in rows.values())


def test_every_bundled_price_is_of_a_type_that_the_catalog_knows() -> None:
    for cloud, region, instance_type, _ in PriceTable.bundled().rows:
        assert catalog.find(cloud, instance_type), instance_type
        assert region


def test_bundled_spot_is_below_on_demand_of_the_same_place() -> None:
    table = PriceTable.bundled()
    for (cloud, region, name, spot), price in table.rows.items():
        on_demand = table.find(cloud, region, name, spot=False)
        if spot and on_demand is not None:
            assert price.high_usd_per_hour < on_demand.low_usd_per_hour


def test_a_price_that_is_not_there_is_unknown() -> None:
    table = PriceTable.bundled()
    assert table.find("aws", "us-west-2", "g5.xlarge", spot=True) is not None
    assert table.find("aws", "mars-1", "g5.xlarge", spot=True) is None
    assert table.find("gcp", "us-central1", "n1-standard-4", spot=True) is None


def test_own_rows_win_over_the_bundled_ones_and_a_star_is_any_region() -> None:
    own = PriceTable.parse(
        HEAD + "aws,us-west-2,g5.xlarge,spot,0.1,0.2,today,me\ngcp,*,a,on-demand,1,1,,\n",
        name="own.csv",
    ).over(PriceTable.bundled())
    found = own.find("aws", "us-west-2", "g5.xlarge", spot=True)
    assert found == PriceRange(
        low_usd_per_hour=0.1, high_usd_per_hour=0.2, date="today", source="me"
    )
    assert own.find("gcp", "anywhere", "a", spot=False) is not None
    assert own.find("aws", "us-east-1", "g5.xlarge", spot=True) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("cloud,region\n", "missing instance_type"),
        (HEAD.replace("kind", "sort"), "unknown sort"),
        (HEAD + "aws,r,t,spot,0.1\n", "line 2: 5 cells, and 8 columns"),
        (HEAD + "# why\naws,r,t,preemptible,1,2,,\n", "line 3: kind is 'preemptible'"),
        (HEAD + "aws,r,t,spot,cheap,2,,\n", "line 2.*cheap"),
        (HEAD + "aws,r,t,spot,3,2,,\n", "line 2.*the lower first"),
        (HEAD + "aws,r,t,spot,1,nan,,\n", "line 2"),
        (HEAD + "aws,r,t,spot,,2,,\n", "line 2"),
        (HEAD + "aws,r,t,spot,0,2,,\n", "line 2: a price of 0 USD per hour: give a number above"),
        (HEAD + "aws,r,t,spot,-1,2,,\n", "line 2: a price of -1 USD"),
        (HEAD + "aws,r,t,spot,1,2,,\naws,r,t,spot,1,2,,,\n", "line 3: 9 cells"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PriceTable.parse(text, name="own.csv")


def test_each_source_is_named_once() -> None:
    price = PriceRange(low_usd_per_hour=1, high_usd_per_hour=1, date="2026", source="me")
    assert sources([price, price]) == ["me 2026"]


def test_spot_above_on_demand_is_told_and_kept() -> None:
    table = PriceTable.parse(
        HEAD + "aws,r,t,spot,3,4,,\naws,r,t,on-demand,2,2,,\naws,r,u,spot,1,4,,\n", name="own.csv"
    )
    assert table.doubtful() == ["aws t in r: spot at 3 is above on-demand at 2"]
    assert table.find("aws", "r", "t", spot=True) is not None


def test_nothing_that_is_bundled_is_doubtful() -> None:
    assert not PriceTable.bundled().doubtful()


def test_a_cell_in_quotes_may_have_a_comma() -> None:
    table = PriceTable.parse(HEAD + 'aws,r,t,spot,1,2,today,"me, myself"\n', name="own.csv")
    assert table.rows["aws", "r", "t", True].source == "me, myself"


def priced(usd: float, **more: object) -> PriceTable:
    price = PriceRange(low_usd_per_hour=usd, high_usd_per_hour=usd, source="s", **more)  # type: ignore[arg-type]
    return PriceTable(rows={("aws", "us-east-1", "g5.xlarge", True): price})


@pytest.mark.parametrize(
    ("mine_s", "theirs_s", "usd"),
    [(200.0, 100.0, 1.0), (100.0, 200.0, 2.0), (100.0, 100.0, 1.0), (0.0, None, 1.0)],
)
def test_of_two_tables_the_newer_price_counts(
    mine_s: float, theirs_s: float | None, usd: float
) -> None:
    found = priced(1.0, known_s=mine_s).newest(priced(2.0, known_s=theirs_s))
    (price,) = found.rows.values()
    assert price.low_usd_per_hour == usd


def test_what_only_one_table_knows_is_kept_however_old() -> None:
    other = PriceTable(rows={("gcp", "r", "t", True): next(iter(priced(3.0).rows.values()))})
    assert len(priced(1.0, known_s=0.0).newest(other).rows) == 2
    assert len(other.newest(priced(1.0, known_s=0.0)).rows) == 2


def test_a_source_says_its_age_and_whether_it_came_with_the_package() -> None:
    shipped = PriceTable.bundled().find("aws", "us-east-1", "g5.xlarge", spot=True)
    assert shipped is not None
    assert shipped.known_s is not None
    now_s = shipped.known_s + 40.5 * 86400
    (told,) = sources([shipped], now_s=now_s)
    assert told.endswith(f", shipped {SHIPPED_ON}, 40 days ago")
    assert sources([shipped]) == [f"{shipped.source} {shipped.date}"]
    ages = {}
    for age_s in (-5.0, 600.0, 3 * 3600.0, 5 * 86400.0):
        asked = next(iter(priced(1.0, known_s=now_s - age_s).rows.values()))
        (ages[age_s],) = sources([asked], now_s=now_s)
    assert list(ages.values()) == [
        f"s, asked {age} ago" for age in ("0 min", "10 min", "3 h", "5 days")
    ]
