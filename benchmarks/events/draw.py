"""Which things happen to a job, and when: drawn from a seed, the same on every machine."""

from __future__ import annotations

import random
from dataclasses import dataclass

MOST_WORKERS = 4

# How often each thing happens in one draw; the order comes from the seed.
KINDS = {
    "process": 3,  # a worker's process is killed, its node lives
    "node": 3,  # a node vanishes with all that is on it
    "thawed": 2,  # a node falls silent, and comes back
    "frozen": 1,  # a node falls silent, and is taken later
    "noticed": 4,  # a node is announced to be lost, and is
    "cancelled": 2,  # the same, but the notice is taken back
    "growth": 2,  # there is room for more workers
    "two": 2,  # two workers are hit in one instant
    "all": 1,  # all nodes vanish at once
}
COUNT = sum(KINDS.values())
_SECOND = ("process", "node", "frozen", "noticed")  # what hits the other one of "two"
_FOLLOWS_FRAC = 0.3  # of all, that come while the job may still recover from the one before


@dataclass(frozen=True, kw_only=True)
class Blow:
    """One thing that happens to a job.

    Victims are drawn as parts of a whole, since nobody knows beforehand how many workers
    there will be: the one at ``int(first_frac * living)``.
    """

    kind: str  # of KINDS
    at_step: int  # as soon as so many steps were done once
    after_s: float  # and then so long after the blow before
    first_frac: float
    second: str  # of "two"
    second_frac: float
    lasts_s: float  # silence, or from a notice to its deadline or its end
    wanted: int  # workers from now on, as far as lost ones are replaced
    replaced_after_s: float

    def __str__(self) -> str:
        kind = f"{self.kind} ({self.second} beside)" if self.kind == "two" else self.kind
        return f"step {self.at_step} + {self.after_s:.2f} s: {kind}, then {self.wanted} wanted"


def draw(seed: int, *, count: int = COUNT, first_step: int = 6, last_step: int = 180) -> list[Blow]:
    """All blows of one job, in their order.

    Args:
        seed: Decides everything.
        count: How many; as many as there are in KINDS, at most.
        first_step: None comes before it,
        last_step: and none after it, but for its ``after_s``.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, count in KINDS.items() for _ in range(count)]
    rng.shuffle(kinds)
    while _grows_without_room(kinds):
        rng.shuffle(kinds)
    kinds = kinds[:count]
    steps = sorted(rng.randint(first_step, last_step) for _ in kinds)
    wanted = [rng.choice((1, 2, 3, 4, 4, 4)) for _ in kinds]
    for index, kind in enumerate(kinds):
        if kind == "growth":
            wanted[index] = max(2, wanted[index])
            wanted[index - 1] = rng.randint(1, wanted[index] - 1)
    blows: list[Blow] = []
    for index, kind in enumerate(kinds):
        follows = bool(blows) and rng.random() < _FOLLOWS_FRAC
        blows.append(
            Blow(
                kind=kind,
                at_step=blows[-1].at_step if follows else steps[index],
                after_s=rng.uniform(0.0, 1.5) if follows else 0.0,
                first_frac=rng.random(),
                second=rng.choice(_SECOND),
                second_frac=rng.random(),
                lasts_s=rng.uniform(0.2, 5.0),
                wanted=wanted[index],
                replaced_after_s=rng.uniform(0.0, 2.5),
            )
        )
    return blows


def _grows_without_room(kinds: list[str]) -> bool:
    """Whether growth comes first, when all workers are there, or right after growth."""
    before = ["growth", *kinds]
    return any(one == two == "growth" for one, two in zip(before, kinds, strict=False))
