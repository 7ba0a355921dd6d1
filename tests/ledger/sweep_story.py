"""Made-up journals of a sweep: a head, some spot nodes, and trials that share them."""

from __future__ import annotations

from spotray.events import (
    Event,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeUp,
    NoticeReceived,
    Reported,
    Restored,
    StepsDone,
    WorkerGroupLost,
    WorkerGroupStarted,
)
from spotray.ledger.sweep import SweepEvents

HOUR_S = 3600.0
SPOT = "aws/us-east-1a/g5.xlarge/spot"


class SweepStory:
    """Each method notes at ``now_s`` what would be noted; times are given in hours."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.nodes: list[Event] = []
        self.runs: dict[str, list[Event]] = {}
        self.generation: dict[str, int] = {}

    def at(self, hours: float) -> SweepStory:
        self.now_s = hours * HOUR_S
        return self

    def up(self, *node_ids: str, usd: float | None = 1.0, on_demand: float | None = 4.0) -> None:
        for node_id in node_ids:
            is_head = node_id == "head"
            self.nodes.append(
                NodeUp(
                    at_s=self.now_s,
                    node_id=node_id,
                    name=f"i-{node_id}",
                    role="head" if is_head else "worker",
                    market="aws/us-east-1a/m5.large/on-demand" if is_head else SPOT,
                    spot=not is_head,
                    usd_per_hour=usd,
                    on_demand_usd_per_hour=on_demand,
                )
            )

    def down(self, node_id: str, *, noticed: bool = False, cause: str = "preemption") -> None:
        self.nodes.append(NodeDown(at_s=self.now_s, node_id=node_id, cause=cause, noticed=noticed))

    def notice(self, node_id: str) -> None:
        self.nodes.append(NoticeReceived(at_s=self.now_s, node_id=node_id, deadline_s=None))

    def starts(self, run: str, *node_ids: str, cluster_journal: str = "") -> None:
        """A run's job begins, and its workers meet in the same moment."""
        self.runs.setdefault(run, []).append(
            JobStarted(
                at_s=self.now_s, job=run, run_id=run, max_workers=4, cluster_journal=cluster_journal
            )
        )
        self.generation[run] = 0
        if node_ids:
            self.meet(run, *node_ids)

    def meet(self, run: str, *node_ids: str, restored: int | None = None) -> None:
        """Another generation; ``restored``: the step in its state, told at once."""
        self.generation[run] += 1
        generation = self.generation[run]
        self.runs[run].append(
            WorkerGroupStarted(
                at_s=self.now_s,
                generation=generation,
                world_size=len(node_ids),
                node_ids=node_ids,
                live=generation > 1,
            )
        )
        if restored is not None:
            self.runs[run].append(
                Restored(at_s=self.now_s, generation=generation, step=restored, source="peers")
            )

    def loses(self, run: str, *node_ids: str) -> None:
        self.runs[run].append(
            WorkerGroupLost(
                at_s=self.now_s,
                generation=self.generation[run],
                cause="loss",
                lost_node_ids=node_ids,
            )
        )

    def steps(self, run: str, first: int, last: int, *, seconds: float = 60.0) -> None:
        """Steps that end now."""
        self.runs[run].append(
            StepsDone(
                at_s=self.now_s,
                generation=self.generation[run],
                first_step=first,
                last_step=last,
                seconds=seconds,
                samples=64,
                world_size=1,
            )
        )

    def reports(self, run: str, step: int, **metrics: object) -> None:
        self.runs[run].append(Reported(at_s=self.now_s, step=step, epoch=0, metrics=metrics))

    def ends(self, run: str, status: str = "finished", why: str = "") -> None:
        self.runs[run].append(JobEnded(at_s=self.now_s, job=run, status=status, why=why))

    def told(self, *more: Event) -> SweepEvents:
        """All of it, as a reader would have it; ``more``: the sweep's own facts."""
        return SweepEvents(
            sweep_dir="/sweep",
            name="vit",
            metric="val/loss",
            mode="min",
            runs={run: tuple(events) for run, events in self.runs.items()},
            shared=tuple(sorted([*self.nodes, *more], key=lambda event: event.at_s)),
        )


def two_trials() -> SweepStory:
    """Two trials of four hours on two nodes; one node is taken, the other trial grows.

    | hours | node a | node b | head |
    |-------|--------|--------|------|
    | 0-1   | one    | two    |      |
    | 1-2   | one    | -      |      |
    | 2-3   | one and two | gone |   |
    | 3-4   | two    |        |      |
    """
    story = SweepStory()
    story.up("head", usd=0.5, on_demand=0.5)
    story.up("a", "b")
    story.starts("one", "a")
    story.starts("two", "b")
    story.at(0.5).steps("two", 1, 10)
    story.reports("two", 10, **{"val/loss": 0.5})
    story.at(1).loses("two", "b")
    story.down("b")
    story.at(2).meet("two", "a", restored=8)
    story.at(2.5).steps("two", 9, 30)
    story.at(3).steps("one", 1, 40)
    story.reports("one", 40, val={"loss": 0.25})
    story.ends("one")
    story.at(4).reports("two", 30, **{"val/loss": 0.75})
    story.ends("two", "interrupted", "stopped by the scheduler")
    return story
