"""A look at Google Cloud, through its REST API's documented shapes."""

from __future__ import annotations

from google.auth.credentials import AnonymousCredentials

from spotray.clock import FakeClock
from spotray.cloud.gcp.prices import GcpPrices, GcpScores
from spotray.cloud.observe import CloudProbe, Watch
from tests.cloud.gcp.test_prices import advice, catalog, client
from tests.cloud.shapes import api


def test_a_look_has_googles_advice_its_preemptions_and_the_regions_price() -> None:
    someone = AnonymousCredentials()
    with api(catalog) as billing, api(advice) as compute:
        asks = client(compute)
        probe = CloudProbe(
            GcpScores(project="p", credentials=someone, advice=asks),
            prices=lambda: GcpPrices(
                project="p", credentials=someone, billing_url=billing.url, advice=asks
            ),
            clock=FakeClock(),
        )
        found = probe.look(
            Watch(
                cloud="gcp",
                region="us-central1",
                types=("g2-standard-4",),
                nodes=4,
                every_s=600.0,
            )
        )
    (zone,) = found.zones
    assert (zone.zone, zone.likely, zone.preempted_frac) == ("us-central1-a", 0.8, 0.25)
    assert zone.usd_per_hour is not None
    assert round(zone.usd_per_hour, 3) == 0.276  # 4 cores, 16 GiB and an L4 on spot
    assert found.problems == ()
