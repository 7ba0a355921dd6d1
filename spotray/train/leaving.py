"""When to leave nodes that will be taken: a decision from plain values."""

from __future__ import annotations

from collections.abc import Collection

from spotray.train.session import Progress, StopRequest


def time_to_leave(
    *,
    deadline_s: float | None,
    leaving: Collection[str],
    group: Collection[str],
    progress: Progress,
    room: int,
    margin_s: float,
    now_s: float,
) -> StopRequest | None:
    """Whether the workers should stand still now, because of a notice.

    As late as is safe, since the leaving nodes still work; at once when others are
    ready to take over.

    Args:
        deadline_s: When the first of them is taken, Unix seconds; None if the cloud
            did not say, which is taken for now.
        leaving: Ids of the nodes under notice.
        group: Ids of the worker group's nodes, one for each worker.
        progress: How long a step, a snapshot and a checkpoint take.
        room: Workers that fit on the nodes that stay.
        margin_s: Seconds to keep for Ray's own part of the move.
        now_s: Unix seconds.
    """
    gone = set(leaving) & set(group)
    if not gone:
        return None
    all_leave = gone == set(group)
    left_s = 0.0 if deadline_s is None else deadline_s - now_s
    # A stop takes effect after the step under way, and after a snapshot. Then the state
    # goes to storage too: the nodes that hold the snapshot may leave, and those that
    # stay may not be the ones that Ray picks for the next worker group.
    written_s = progress.checkpoint_s
    needed_s = margin_s + 2 * progress.step_s + progress.snapshot_s + 2 * written_s
    must_write = all_leave or progress.no_snapshots
    if must_write and not written_s:
        needed_s = float("inf")  # nobody knows how long it takes: there is no time to lose
    durable = must_write or (written_s > 0 and left_s >= 2 * written_s)
    if room >= len(group):
        return StopRequest(f"{len(gone)} node(s) will be taken, others are ready", durable)
    if left_s <= needed_s:
        return StopRequest(f"{len(gone)} node(s) will be taken in {left_s:.0f} s", durable)
    return None
