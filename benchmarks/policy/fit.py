"""Fit the hidden chain of markets that `spotray.policy.lookahead` believes in.

    python benchmarks/policy/fit.py DIR [--leave-out ZONE ...] [--out FILE]

Expectation-maximization (Baum-Welch) over all traces of a folder at once, on the first half of
each; the second half stays unseen, and its likelihood is printed. States are split by what they
show, spot or none, which makes what is seen a function of the state. No zone is named in the
result: one chain is to serve all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import bench
from spotray.policy.chain import SpotChain
from spotray.sim.cases import load_traces

Floats = NDArray[np.float64]
OUT = bench.ROOT / "spotray" / "policy" / "chain.json"
_SHORTEST_TICKS, _LONGEST_S = 1.5, 40 * 3600.0  # mean stays in a state, at the beginning


def begin(states: int, gap_s: float, seed: int) -> SpotChain:
    """``states`` with spot and as many without, from short stays to long ones."""
    chance = np.random.default_rng(seed)
    stays_s = np.geomspace(_SHORTEST_TICKS * gap_s, _LONGEST_S, states)
    up = np.arange(2 * states) < states
    step = np.zeros((2 * states, 2 * states))
    for state in range(2 * states):
        leave = gap_s / stays_s[state % states]
        weights = 1 + 0.3 * chance.random(2 * states)
        weights[up == up[state]] *= 0.3  # mostly to the other look
        weights[state] = 0.0
        step[state] = leave * weights / weights.sum()
        step[state, state] = 1 - leave
    return SpotChain(gap_s=gap_s, up=up, step=step, start=np.full(2 * states, 0.5 / states))


def expect(chain: SpotChain, seen: NDArray[np.bool_]) -> tuple[float, Floats, Floats]:
    """Log-likelihood, expected moves between states, and expected first states.

    Args:
        chain: the chain so far.
        seen: (traces, ticks).
    """
    traces, ticks = seen.shape
    fits = (seen[:, :, None] == chain.up).astype(np.float64)
    forward = np.empty((ticks, traces, len(chain.up)))
    scale = np.empty((ticks, traces))
    now = chain.start * fits[:, 0]
    for tick in range(ticks):
        if tick:
            now = (forward[tick - 1] @ chain.step) * fits[:, tick]
        scale[tick] = now.sum(axis=1)
        forward[tick] = now / scale[tick][:, None]
    moves = np.zeros_like(chain.step)
    backward = np.ones((traces, len(chain.up)))
    for tick in range(ticks - 1, 0, -1):
        weighed = fits[:, tick] * backward / scale[tick][:, None]
        moves += forward[tick - 1].T @ weighed
        backward = weighed @ chain.step.T
    return float(np.log(scale).sum()), moves * chain.step, (forward[0] * backward).sum(axis=0)


def fit(seen: NDArray[np.bool_], *, gap_s: float, states: int, rounds: int, seed: int) -> SpotChain:
    """The chain that makes ``seen`` likely, with one move of each state as it was before."""
    chain = begin(states, gap_s, seed)
    for done in range(1, rounds + 1):
        likelihood, moves, first = expect(chain, seen)
        step = moves + chain.step
        step /= step.sum(axis=1, keepdims=True)
        # A job may start at any time, not only when the traces did.
        ever = np.linalg.matrix_power(step, 2**30)[0]
        start = 0.5 * first / first.sum() + 0.5 * ever / ever.sum()
        chain = SpotChain(gap_s=gap_s, up=chain.up, step=step, start=start / start.sum())
        if done % 20 == 0:
            bench.say(f"round {done}: log-likelihood {likelihood:.1f}")
    return chain


def as_json(chain: SpotChain, source: str) -> dict[str, Any]:
    """What `SpotChain.from_json` reads, with few digits."""
    return {
        "source": source,
        "gap_s": chain.gap_s,
        "up": [int(one) for one in chain.up],
        "start": [round(float(one), 5) for one in chain.start],
        "step": [[round(float(one), 8) for one in row] for row in chain.step],
    }


def as_text(raw: dict[str, Any]) -> str:
    """JSON with one row of numbers a line, so that a new fit can be compared with the old one."""
    lines: list[str] = []
    for line in json.dumps(raw, indent=1).splitlines():
        bare = line.strip()
        if lines and bare and (bare[0].isdigit() or (bare[0] == "]" and lines[-1][-1:].isdigit())):
            lines[-1] += bare if lines[-1].endswith("[") or bare[0] == "]" else f" {bare}"
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("traces", type=Path, metavar="DIR", help="all with the same gap_seconds")
    parser.add_argument("--leave-out", action="append", default=[], metavar="ZONE")
    parser.add_argument("--states", type=bench.at_least(1), default=6, help="of each look")
    parser.add_argument("--rounds", type=bench.at_least(1), default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args(argv)
    traces = {
        name: found
        for name, found in load_traces([arguments.traces]).items()
        if not any(zone in name for zone in arguments.leave_out)
    }
    gaps = {gap_s for gap_s, _ in traces.values()}
    if len(gaps) != 1:
        parser.error(f"{len(traces)} traces with gap_seconds {sorted(gaps)}: give one of it")
    (gap_s,) = gaps
    half = min(len(up) for _, up in traces.values()) // 2
    ups = [np.frombuffer(up, dtype=np.uint8) > 0 for _, up in traces.values()]
    first = np.array([up[:half] for up in ups])
    second = np.array([up[half : 2 * half] for up in ups])
    chain = fit(
        first, gap_s=gap_s, states=arguments.states, rounds=arguments.rounds, seed=arguments.seed
    )
    unseen = expect(chain, second)[0] / second.size
    bench.say(f"second half, never fitted: {unseen / math.log(2):.5f} bits a tick")
    source = (
        f"{len(traces)} traces of {gap_s:g} s, the first {half * gap_s / 86400:.1f} days of each; "
        f"fit.py --states {arguments.states} --rounds {arguments.rounds} --seed {arguments.seed}"
    )
    arguments.out.write_text(as_text(as_json(chain, source)))
    print(f"{arguments.out}: {source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
