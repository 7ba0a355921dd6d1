"""A hidden chain behind a market: what the spot seen so far says about the ticks to come.

A market is in one of some hidden states; in each, spot is either there or not. States of
the same look differ in how long they last and what follows, so the age of a run of spot, how
quickly it came and went before, and how long ago that was all count, and none of it has to
be named. Fitted once to the markets of many zones (``benchmarks/policy/fit.py``), it knows no zone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotray.errors import ConfigError

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class SpotChain:
    """Hidden states, and how they follow each other every ``gap_s`` seconds."""

    gap_s: float
    up: NDArray[np.bool_]  # (states,): spot is there
    step: Floats  # (states, states): row i, the chances of what follows state i
    start: Floats  # (states,): before anything was seen

    def __post_init__(self) -> None:
        states = len(self.up)
        if self.step.shape != (states, states) or self.start.shape != (states,):
            raise ConfigError(f"a chain of {states} states needs as many chances of each")
        for row in (*self.step, self.start):
            if row.min() < 0 or not math.isclose(row.sum(), 1.0, abs_tol=1e-6):
                raise ConfigError("the chances of what follows a state must add up to 1")
        if not 0 < self.gap_s < math.inf:
            raise ConfigError(f"gap_s is {self.gap_s!r}: give a number above 0")
        for there in (True, False):
            if not self.start[self.up == there].sum() > 0:
                raise ConfigError("a chain needs a start with spot and one without")

    @classmethod
    def from_json(cls, raw: Any) -> SpotChain:
        """A chain as ``benchmarks/policy/fit.py`` writes it.

        Raises:
            ConfigError: a key is missing, or the numbers are no chances.
        """
        try:
            step = np.array(raw["step"], dtype=np.float64)
            start = np.array(raw["start"], dtype=np.float64)
            up = np.array(list(raw["up"]), dtype=np.bool_)
            gap_s = float(raw["gap_s"])
        except (KeyError, TypeError, ValueError) as exc:
            raise ConfigError(f"not a chain of spot states: {exc!r}") from exc
        # Written with few digits, so they add up to 1 only nearly.
        sums = step.sum(axis=-1, keepdims=True)
        if (sums <= 0).any() or start.sum() <= 0:
            raise ConfigError("the chances of what follows a state must add up to 1")
        return cls(gap_s=gap_s, up=up, step=step / sums, start=start / start.sum())

    def steps(self, gap_s: float) -> Floats:
        """The chances of what is there ``gap_s`` seconds after each state.

        Between two whole steps of the chain, a mixture of them.
        """
        whole, part = divmod(gap_s / self.gap_s, 1.0)
        before = np.linalg.matrix_power(self.step, int(whole))
        return np.asarray(
            before if part < 1e-9 else (1 - part) * before + part * before @ self.step
        )


class Belief:
    """How likely each hidden state is, given the spot seen so far, tick by tick."""

    def __init__(self, chain: SpotChain, gap_s: float) -> None:
        self._step = chain.steps(gap_s)
        self._start = chain.start
        self._fits = (np.where(chain.up, 0.0, 1.0), np.where(chain.up, 1.0, 0.0))
        self._next: Floats | None = None

    def see(self, has_spot: bool) -> Floats:
        """Take in one tick; the chances of each state at the *next* one."""
        now = (self._start if self._next is None else self._next) * self._fits[has_spot]
        total = now.sum()
        if total < 1e-12:  # the chain thought it impossible: begin anew
            now = self._start * self._fits[has_spot]
            total = now.sum()
        ahead: Floats = (now / total) @ self._step
        self._next = ahead
        return ahead


@cache
def shipped() -> SpotChain:
    """The chain that comes with the package."""
    text = resources.files("spotray.policy").joinpath("chain.json").read_text(encoding="utf-8")
    return SpotChain.from_json(json.loads(text))
