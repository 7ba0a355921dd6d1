"""When live members should meet again although nobody is lost: decisions from plain values."""

from __future__ import annotations

# Clouds announce the loss of several nodes within a minute of each other; all of them
# are left in one move.
NOTICES_TOGETHER_S = 60.0


def time_to_swap(*, noticed_for_s: float) -> bool:
    """Whether to leave nodes under notice now, where others are ready to take over.

    They still work, so there is no hurry before their deadline; waiting lets further
    notices share the move.

    Args:
        noticed_for_s: Seconds since the first of the notices.
    """
    return noticed_for_s >= NOTICES_TOGETHER_S


def time_to_part(*, deadline_s: float | None, step_s: float, margin_s: float, now_s: float) -> bool:
    """Whether nodes under notice must be left after the next step.

    Args:
        deadline_s: When the first of them is taken, Unix seconds; None if the cloud
            did not say, which is taken for now.
        step_s: Seconds of a step: the one under way is finished first.
        margin_s: Seconds to keep in hand.
        now_s: Unix seconds.
    """
    return deadline_s is None or deadline_s - now_s <= margin_s + 2 * step_s


def growth_pays(*, pause_s: float, workers: int, expected_life_s: float) -> bool:
    """Whether letting one more worker in costs less than what it will add.

    All workers stand still for the pause, and the new one adds its time for as long as
    it lives.

    Args:
        pause_s: Of meeting again and healing the newcomer, seconds.
        workers: That stand still meanwhile.
        expected_life_s: Of the new node, seconds.
    """
    return expected_life_s > pause_s * (workers + 1)
