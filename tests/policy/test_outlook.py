"""What a zone and its siblings say about how long spot will last."""

from __future__ import annotations

import pytest

from spotray.policy.outlook import Outlook

GAP = 300.0
REGIONS = ("east", "east", "west")


def seen(*rows: str) -> Outlook:
    """An outlook after some ticks; one text a place, ``#`` where it was up."""
    found = Outlook(REGIONS, gap_s=GAP)
    for tick, ups in enumerate(zip(*rows, strict=True)):
        found.see(tick * GAP, [one == "#" for one in ups])
    return found


def test_a_run_that_is_old_is_believed_to_last() -> None:
    outlook = seen("." * 100 + "#" * 3, "#" * 103, "." * 103)
    assert outlook.losses(1, 1.0) < outlook.losses(0, 1.0) / 2
    assert outlook.stay_h(1, 24.0) > 2 * outlook.stay_h(0, 24.0)
    assert outlook.stay_h(0, 24.0) < 24


def test_a_zone_that_keeps_losing_is_believed_to_go_on_so() -> None:
    calm, rough = "#" * 120, "##.." * 30
    outlook = seen(calm, calm, rough)
    assert outlook.factor(2) > 1.3 > 1 > outlook.factor(0)


def test_siblings_say_good_and_bad() -> None:
    up, down = "#" * 50, "." * 50
    assert seen(up, up, down).factor(0) < seen(up, down, down).factor(0)
    just_lost = "#" * 48 + ".."
    assert seen(up, just_lost, down).factor(0) > seen(up, down, down).factor(0)
    # Another region's say nothing.
    assert seen(up, up, down).factor(0) == seen(up, up, up).factor(0)


def test_losses_of_two_spans_add_up() -> None:
    outlook = seen("#" * 20, "#" * 20, "#" * 20)
    later = seen("#" * 32, "#" * 32, "#" * 32)  # an hour more
    whole = outlook.losses(0, 3.0) / outlook.factor(0)
    parts = outlook.losses(0, 1.0) / outlook.factor(0) + later.losses(0, 2.0) / later.factor(0)
    assert whole == pytest.approx(parts)
