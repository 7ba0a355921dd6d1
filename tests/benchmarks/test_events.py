"""What is drawn for the benchmark of random events, and how it is let loose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.events.draw import COUNT, KINDS, MOST_WORKERS, Blow, draw
from benchmarks.events.storm import NoVictim, Storm
from spotray.clock import FakeClock

SEEDS = range(50)


class PaperSite:
    """Workers by name only; what is done to them is written down."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.at_step = 0
        self.done: list[str] = []

    def step(self) -> int:
        return self.at_step

    def living(self) -> Sequence[str]:
        return self.names

    def kill_process(self, name: str) -> None:
        self._do("kill", name)

    def kill_nodes(self, names: Sequence[str]) -> None:
        self._do("take", *names)
        self.names = [name for name in self.names if name not in names]

    def freeze(self, name: str) -> None:
        self._do("freeze", name)

    def thaw(self, name: str) -> None:
        self._do("thaw", name)

    def notice(self, name: str, seconds: float) -> None:
        self._do(f"notice {seconds:g}", name)

    def cancel(self, name: str) -> None:
        self._do("cancel", name)

    def want(self, workers: int, replaced_after_s: float) -> None:
        self.done.append(f"want {workers} in {replaced_after_s:g}")

    def _do(self, what: str, *names: str) -> None:
        if gone := set(names) - set(self.names):
            raise NoVictim(f"{gone}")
        self.done.append(f"{what} {' '.join(names)}")


def blow(kind: str, at_step: int = 0, **more: object) -> Blow:
    given: dict[str, object] = {
        "after_s": 0.0,
        "first_frac": 0.0,
        "second": "node",
        "second_frac": 0.0,
        "lasts_s": 2.0,
        "wanted": 4,
        "replaced_after_s": 1.0,
    }
    return Blow(kind=kind, at_step=at_step, **given | more)  # type: ignore[arg-type]


def test_a_seed_decides_everything() -> None:
    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_draw_holds_each_thing_as_often_as_it_says_in_the_order_of_steps(seed: int) -> None:
    blows = draw(seed, last_step=170)
    assert Counter(one.kind for one in blows) == KINDS
    assert len(blows) == COUNT
    steps = [one.at_step for one in blows]
    assert steps == sorted(steps)
    assert steps[-1] <= 170
    assert all(1 <= one.wanted <= MOST_WORKERS for one in blows)
    assert all(
        later.wanted > before.wanted
        for before, later in zip(blows, blows[1:], strict=False)
        if later.kind == "growth"
    )


def test_in_many_draws_some_things_come_right_after_others() -> None:
    blows = [one for seed in SEEDS for one in draw(seed)]
    assert 0.2 < sum(one.after_s > 0 for one in blows) / len(blows) < 0.4


def test_a_blow_waits_for_its_step_and_its_time() -> None:
    clock, site = FakeClock(), PaperSite("a", "b")
    blows = [blow("process", 5), blow("node", 5, after_s=1.0, first_frac=0.9)]
    storm = Storm(site, blows, clock=clock)
    storm.look()
    assert site.done == []
    site.at_step = 5
    storm.look()
    assert site.done == ["kill a", "want 4 in 1"]
    clock.advance(0.9)
    storm.look()
    assert storm.left == 1
    clock.advance(0.2)
    storm.look()
    assert site.done[2:] == ["take b", "want 4 in 1"]
    assert storm.happened == ["5:process", "5:node"]


def test_a_step_that_was_done_once_counts_although_all_that_knew_it_are_gone() -> None:
    site = PaperSite("a")
    storm = Storm(site, [blow("process", 5, after_s=0.5)], clock=(clock := FakeClock()))
    site.at_step = 5
    storm.look()
    site.at_step = 0
    clock.advance(1.0)
    storm.look()
    assert storm.happened == ["5:process"]


@pytest.mark.parametrize(
    ("kind", "first", "then"),
    [
        ("thawed", "freeze a", "thaw a"),
        ("frozen", "freeze a", "take a"),
        ("cancelled", "notice 32 a", "cancel a"),
    ],
)
def test_what_lasts_ends_in_its_time(kind: str, first: str, then: str) -> None:
    clock, site = FakeClock(), PaperSite("a", "b")
    storm = Storm(site, [blow(kind)], clock=clock)
    storm.look()
    assert site.done == [first, "want 4 in 1"]
    clock.advance(2.0)
    storm.look()
    assert site.done[2:] == [then]


def test_two_nodes_go_in_one_instant() -> None:
    site = PaperSite("a", "b", "c")
    Storm(site, [blow("two", second_frac=0.9)], clock=FakeClock()).look()
    assert site.done == ["take a c", "want 4 in 1"]


def test_a_notice_is_never_shorter_than_asked_for() -> None:
    site = PaperSite("a")
    Storm(site, [blow("noticed")], notice_s=5.0, clock=FakeClock()).look()
    assert site.done[0] == "notice 7 a"


def test_what_finds_nobody_did_not_happen() -> None:
    site = PaperSite()
    storm = Storm(site, [blow("node"), blow("all")], clock=FakeClock())
    storm.look()
    assert storm.happened == []
    assert sum("left out" in line for line in storm.log) == 2


def test_the_end_leaves_nobody_silent() -> None:
    site = PaperSite("a", "b")
    blows = [blow("thawed"), blow("frozen", first_frac=0.9), blow("node", 9)]
    storm = Storm(site, blows, clock=FakeClock())
    storm.look()
    storm.end()
    assert site.done[-1] == "thaw a"
    assert storm.left == 0
