"""An in-memory cloud for tests: it says what its script says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spotray.cloud.prices import Quote, Score
from spotray.cloud.provider import NodeOutlook
from spotray.errors import MetadataError, SpotrayError


class FakeNotices:
    """A `NoticeSource` that answers from a list, and repeats the last answer for ever.

    An error in the list is raised in its turn. Assign ``script`` to change what comes
    next.
    """

    def __init__(
        self,
        script: Iterable[NodeOutlook | MetadataError] = (),
        *,
        spot: bool = True,
        poll_s: float = 1.0,
    ) -> None:
        self.script = list(script) or [NodeOutlook()]
        self.spot = spot
        self.poll_s = poll_s
        self._silence: MetadataError | None = None  # the last answer, if it was none

    def outlook(self) -> NodeOutlook:
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self._silence = said if isinstance(said, MetadataError) else None
        if isinstance(said, MetadataError):
            raise said
        return said

    def is_spot(self) -> bool:
        if self._silence is not None:  # a silent service is silent here too
            raise self._silence
        return self.spot


class FakePrices:
    """A `spotray.cloud.prices.PriceSource` that sells what its list says.

    Errors in ``script`` are raised first, one at each question; ``asked`` has the regions.
    """

    def __init__(
        self,
        quotes: Iterable[Quote] = (),
        *,
        cloud: str = "aws",
        script: Iterable[SpotrayError] = (),
    ) -> None:
        self.cloud = cloud
        self.sold = list(quotes)
        self.script = list(script)
        self.asked: list[str] = []

    def quotes(self, region: str, instance_types: Sequence[str]) -> list[Quote]:
        self.asked.append(region)
        if self.script:
            raise self.script.pop(0)
        return [
            one for one in self.sold if one.region == region and one.instance_type in instance_types
        ]


class FakeScores:
    """A `spotray.cloud.prices.PlacementScorer` that answers from a list.

    An error in the list is raised in its turn; the last answer is repeated for ever.
    """

    cloud = "aws"

    def __init__(self, *script: dict[str, float] | SpotrayError) -> None:
        """``script``: by zone, how likely nodes are to be had."""
        self.script = list(script)

    def scores(self, region: str, instance_types: Sequence[str], *, nodes: int) -> list[Score]:
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(said, SpotrayError):
            raise said
        return [
            Score(
                cloud=self.cloud,
                region=region,
                zone=zone,
                instance_types=tuple(instance_types),
                nodes=nodes,
                obtainable_frac=likely,
            )
            for zone, likely in said.items()
        ]


class FakeDryRuns:
    """A `spotray.cloud.observe.DryRuns` that refuses what it is told to."""

    def __init__(self, zones: Iterable[str], refused: dict[tuple[str, str], str]) -> None:
        """``refused``: a word by zone and type."""
        self._zones, self._refused = list(zones), refused
        self.script: list[SpotrayError] = []  # raised first, one at each question
        self.asked = 0

    def zones(self) -> list[str]:
        return self._zones

    def refusal(self, zone: str, instance_type: str) -> str:
        self.asked += 1
        if self.script:
            raise self.script.pop(0)
        return self._refused.get((zone, instance_type), "")
