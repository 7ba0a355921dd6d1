"""Made-up journals, as a job on four spot nodes would write them."""

from __future__ import annotations

from spotray.events import (
    CheckpointCommitted,
    Event,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeReady,
    NodeUp,
    NoticeReceived,
    ResizeAgreed,
    Restored,
    SnapshotTaken,
    StepsDone,
    TrainingDone,
    WorkerGroupLost,
    WorkerGroupStarted,
)

STEP_S = 0.5
SPOT = "aws/us-east-1a/g5.xlarge/spot"
SPOT_USD = 0.36
ON_DEMAND_USD = 1.0


class Story:
    """A job told step by step: each method moves ``now_s`` and notes what would be noted."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_s = start_s
        self.events: list[Event] = []
        self.generation = 0
        self.members: tuple[str, ...] = ()
        self.step = 0

    def note(self, event: Event) -> None:
        self.events.append(event)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def head_up(self) -> None:
        self.note(
            NodeUp(
                at_s=self.now_s,
                node_id="head",
                name="head",
                role="head",
                market="aws/us-east-1a/m5.large/on-demand",
                usd_per_hour=0.1,
                on_demand_usd_per_hour=0.1,
            )
        )

    def node_up(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.note(
                NodeUp(
                    at_s=self.now_s,
                    node_id=node_id,
                    name=f"i-{node_id}",
                    node_type="spot_worker",
                    market=SPOT,
                    spot=True,
                    usd_per_hour=SPOT_USD,
                    on_demand_usd_per_hour=ON_DEMAND_USD,
                )
            )
            self.note(NodeReady(at_s=self.now_s + 1, node_id=node_id))

    def job_starts(self) -> None:
        self.note(
            JobStarted(at_s=self.now_s, job="vit", run_id="r1", global_batch_size=64, max_workers=4)
        )

    def group(self, *node_ids: str, restored: int, source: str, reached: int | None = None) -> None:
        """Workers meet after 2 s and have their state 1 s later."""
        self._meet(node_ids, after_s=2.0, live=False)
        self._restore(restored, source, reached, after_s=1.0, seconds=1.0)

    def live_group(
        self, *node_ids: str, restored: int, source: str = "peers", reached: int | None = None
    ) -> None:
        """Members agree after 0.9 s, connect in 0.1 s, and have the state 0.2 s later."""
        self._meet(node_ids, after_s=0.9, live=True)
        connected_at_s = self.now_s + 0.1
        reached = restored if reached is None else reached
        self._restore(
            restored, source, reached, after_s=0.3, seconds=0.2, connected_at_s=connected_at_s
        )

    def _meet(self, node_ids: tuple[str, ...], *, after_s: float, live: bool) -> None:
        self.generation += 1
        self.members = node_ids
        self.wait(after_s)
        self.note(
            WorkerGroupStarted(
                at_s=self.now_s,
                generation=self.generation,
                world_size=len(node_ids),
                node_ids=node_ids,
                live=live,
            )
        )

    def _restore(
        self,
        step: int,
        source: str,
        reached: int | None,
        *,
        after_s: float,
        seconds: float,
        connected_at_s: float | None = None,
    ) -> None:
        self.wait(after_s)
        self.step = step
        self.note(
            Restored(
                at_s=self.now_s,
                generation=self.generation,
                step=step,
                source=source,
                seconds=seconds,
                reached_step=reached,
                connected_at_s=connected_at_s,
            )
        )

    def steps(self, count: int, *, batch: int = 4) -> None:
        """Steps without a pause, told in batches as a worker tells them."""
        while count > 0:
            size = min(batch, count)
            ends = tuple(self.now_s + STEP_S * (i + 1) for i in range(size))
            self.now_s = ends[-1]
            self.note(
                StepsDone(
                    at_s=self.now_s,
                    generation=self.generation,
                    first_step=self.step + 1,
                    last_step=self.step + size,
                    seconds=STEP_S * size,
                    samples=64 * size,
                    world_size=len(self.members),
                    loss=2.0 / (1 + self.step),
                    ended_at_s=ends,
                )
            )
            self.step += size
            count -= size

    def snapshot(self, seconds: float = 0.1) -> None:
        self.wait(seconds)
        self.note(
            SnapshotTaken(
                at_s=self.now_s,
                generation=self.generation,
                step=self.step,
                seconds=seconds,
                size_bytes=1000,
            )
        )

    def checkpoint(self, blocked_s: float = 0.2) -> None:
        self.wait(blocked_s)
        self.note(
            CheckpointCommitted(
                at_s=self.now_s,
                step=self.step,
                path=f"step-{self.step:08d}",
                seconds=blocked_s,
                blocked_s=blocked_s,
                size_bytes=1000,
            )
        )

    def noticed_loss(self, node_id: str) -> None:
        """A notice, a snapshot all agree on; the node goes 5 s later, the group is closed."""
        self.note(
            NoticeReceived(at_s=self.now_s, node_id=node_id, deadline_s=self.now_s + 5, source="t")
        )
        self.snapshot()
        self.note(
            ResizeAgreed(
                at_s=self.now_s, generation=self.generation, step=self.step, why="preemption"
            )
        )
        self.note(NodeDown(at_s=self.now_s + 5, node_id=node_id, cause="preemption", noticed=True))
        self._group_lost("preemption")

    def silent_loss(self, *node_ids: str, detected_after_s: float = 4.0) -> None:
        for node_id in node_ids:
            self.note(NodeDown(at_s=self.now_s, node_id=node_id, cause="preemption"))
        self.wait(detected_after_s)
        self._group_lost("loss", *node_ids)

    def grow(self) -> None:
        self.snapshot()
        self.note(
            ResizeAgreed(at_s=self.now_s, generation=self.generation, step=self.step, why="node up")
        )

    def done(self) -> None:
        self.note(TrainingDone(at_s=self.now_s, step=self.step, weights_sha256="ab"))
        self.wait(1.0)
        self.note(JobEnded(at_s=self.now_s, job="vit", status="finished"))

    def _group_lost(self, cause: str, *node_ids: str) -> None:
        self.note(
            WorkerGroupLost(
                at_s=self.now_s, generation=self.generation, cause=cause, lost_node_ids=node_ids
            )
        )


def four_losses() -> Story:
    """Two losses with notice, one without, one of all nodes; growth in between."""
    story = Story()
    story.head_up()
    story.wait(10)
    story.node_up("a", "b", "c", "d")
    story.wait(20)
    story.job_starts()
    story.wait(5)
    story.group("a", "b", "c", "d", restored=0, source="fresh")
    story.steps(20)
    story.checkpoint()
    story.steps(10)
    story.noticed_loss("d")  # at step 30
    story.group("a", "b", "c", restored=30, source="snapshot", reached=30)
    story.steps(6)
    story.snapshot()
    story.steps(3)
    story.silent_loss("c")  # at step 39, the snapshot was at 36
    story.group("a", "b", restored=36, source="snapshot", reached=39)
    story.steps(14)
    story.node_up("e")
    story.grow()  # at step 50
    story.group("a", "b", "e", restored=50, source="snapshot", reached=50)
    story.steps(10)
    story.checkpoint()
    story.noticed_loss("b")  # at step 60
    story.group("a", "e", restored=60, source="snapshot", reached=60)
    story.steps(7)
    story.silent_loss("a", "e")  # all of them at step 67, the checkpoint was at 60
    story.wait(30)
    story.node_up("f", "g")
    story.group("f", "g", restored=60, source="checkpoint", reached=None)
    story.steps(20)
    story.done()
    return story
