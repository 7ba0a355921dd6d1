"""Whether a job went on with the nodes that replaced those that were taken. Pure.

The loop guard of launches counts young spot nodes that are taken one after the other;
once a job has done steps with the newest of them, their loss was worth the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotray.policy.evidence import losses
from spotray.policy.view import Fact, Progressed


@dataclass(frozen=True, kw_only=True)
class JobSeen:
    """A running job: how far it is, and Ray's ids of the nodes that it is on."""

    name: str
    step: int
    node_ids: frozenset[str]


class ProgressWatch:
    """Says when a `Progressed` is due: once for each preemption that one follows."""

    def __init__(self) -> None:
        self._loss_s = float("-inf")  # the last preemption that is looked at
        self._from_step: dict[str, int] = {}  # of jobs that have a node of after it

    def look(
        self,
        jobs: Sequence[JobSeen],
        *,
        facts: Sequence[Fact],
        born_s: Mapping[str, float],
        now_s: float,
    ) -> Progressed | None:
        """Take a look at the jobs.

        Args:
            jobs: those that run.
            facts: what launches have taught.
            born_s: since when each node runs.
            now_s: Unix seconds.
        """
        # Several tell of the same loss, and the last of them may be late.
        taken = [loss.at_s for loss in losses(facts)]
        told = [fact.at_s for fact in facts if isinstance(fact, Progressed)]
        loss_s = max(taken, default=float("-inf"))
        if not taken or max(told, default=float("-inf")) >= loss_s:
            return None
        if loss_s != self._loss_s:
            self._loss_s, self._from_step = loss_s, {}
        for job in jobs:
            if not any(born_s.get(node_id, float("-inf")) >= loss_s for node_id in job.node_ids):
                continue
            if job.step > self._from_step.setdefault(job.name, job.step):
                return Progressed(at_s=now_s)
        return None
