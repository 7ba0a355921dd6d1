"""`Run`: what makes an ordinary training loop elastic."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn

from spotray.errors import ConfigError, StateMismatch, WorldBroken
from spotray.train import session as session_module
from spotray.train.adopt import Adoption, check_can_be_sharded, tell_of_sharding
from spotray.train.audit import Tally
from spotray.train.capture import Captured
from spotray.train.determinism import use_deterministic_kernels
from spotray.train.gradients import GradientExchange, wire_dtype_of
from spotray.train.keeper import Keeper
from spotray.train.loader import seed_streams
from spotray.train.meeting import Meetings
from spotray.train.member import LeftJob, Reenter
from spotray.train.order import check_batch_sizes
from spotray.train.reporting import Reports, teller
from spotray.train.riders import Riders
from spotray.train.session import Session
from spotray.train.sharded import ShardedGradients, is_sharded
from spotray.train.state import Position, Stateful, TrainState, weights_sha256
from spotray.train.stepping import Prepared, Stepping
from spotray.train.world import World


class Run:
    """One worker's part in a training run whose result does not depend on its workers.

    ::

        run = spotray.Run(global_batch_size=256, micro_batch_size=32, seed=0)
        model, optimizer, loader = run.prepare(model, optimizer, dataset)
        for epoch in run.epochs(10):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                run.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            run.report({"accuracy": evaluate(model)})

    Outside of an `ElasticTrainer` the same loop runs in one process, without
    snapshots and checkpoints.

    Args:
        global_batch_size: Samples per optimizer step, over all workers, at any
            number of workers.
        micro_batch_size: Samples per forward pass; divides the global batch.
            More workers than ``global_batch_size / micro_batch_size`` are of no use.
        seed: Of the order of samples, dropout and every other random stream.
        reduction: ``"ordered"``: the same bits at any number of workers.
            ``"ddp"``: torch's DistributedDataParallel, which overlaps the sum with
            the backward pass and promises no bits. With a model that was sharded by
            ``fully_shard``, FSDP sums the gradients whatever is given here, and promises none.
        drop_last: Leave out the shorter batch at an epoch's end.
        loader_workers: Processes that load samples; 0 loads in this one.
        find_unused_parameters: As in torch's DistributedDataParallel, for ``"ddp"`` only:
            the ordered sum needs no such hint.
        wire_dtype: In which gradients go from worker to worker, for ``"ordered"`` only.
            ``"bfloat16"`` halves what is sent, and each gradient and each sum of some is
            rounded to bfloat16, also where one worker holds them all: the same bits at any
            number of workers. For n shards, the error of a gradient's element is at most
            ``(ceil(log2(n)) + 1) * 2**-8`` of the sum of the shards' absolute values;
            typically it is some tenths of a percent. ``"float32"`` sends gradients as they are.
        deterministic_kernels: Use torch's deterministic kernels during the run, and tell once
            of each that has no such form. They may be slower.

    Raises:
        ConfigError: a size is below 1, the micro-batch does not divide the
            global batch, or an option is unknown or goes with the other ``reduction``.
    """

    def __init__(
        self,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        seed: int = 0,
        reduction: Literal["ordered", "ddp"] = "ordered",
        drop_last: bool = False,
        loader_workers: int = 0,
        find_unused_parameters: bool = False,
        wire_dtype: str | torch.dtype = "float32",
        deterministic_kernels: bool = False,
    ) -> None:
        check_batch_sizes(global_batch_size, micro_batch_size)
        if reduction not in ("ordered", "ddp"):
            raise ConfigError(f"reduction must be 'ordered' or 'ddp', got {reduction!r}")
        self._wire_dtype = wire_dtype_of(wire_dtype, ordered=reduction == "ordered")
        self.global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size
        self.seed = seed
        self.reduction: str = reduction
        self._position = Position(
            global_batch_size=global_batch_size, micro_batch_size=micro_batch_size, seed=seed
        )
        self._drop_last = drop_last
        self._loader_workers = loader_workers
        self._find_unused_parameters = find_unused_parameters
        self._session = session_module.current()
        world = self._session.world if self._session else World()
        self._stepping = Stepping(world, self._position)
        self._models: dict[str, nn.Module] = {}
        self._weights = ""
        self._reports = Reports(self._session, self._position)
        # What the loop draws before prepare(), above all the model's first
        # weights, is then the same on all workers and in every run.
        seed_streams(seed)
        if self._session is not None:
            self._session.run = self
        self._put_kernels_back: Callable[[], Any] = lambda: None
        if deterministic_kernels:
            put_back = use_deterministic_kernels(teller(self._session))
            # Also for a run that ends by an error, or that nobody finishes.
            self._put_kernels_back = weakref.finalize(self, put_back)

    # -- what the user calls ---------------------------------------------------

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """The present epoch, from 0."""
        return self._position.epoch

    @property
    def loss(self) -> float | None:
        """Mean over the last complete global batch; None before the first."""
        return self._position.loss

    @property
    def rank(self) -> int:
        """This worker's index now; it may change at a resize."""
        return self._stepping.world.rank

    @property
    def world_size(self) -> int:
        """The number of workers now; it may change at a resize."""
        return self._stepping.world.size

    @property
    def device(self) -> torch.device:
        """Where this worker's models and batches are."""
        return self._stepping.world.device

    def prepare(self, *objects: Any) -> Any:
        """Make models, optimizers, schedulers, a scaler and the dataset elastic, and restore.

        Call it once, with everything that must survive a preemption: modules,
        optimizers, learning-rate schedulers, a ``torch.amp.GradScaler``, one
        map-style dataset (or a DataLoader over one, of which dataset, collate
        function and number of loader processes are taken), and objects of your
        own with ``state_dict`` and ``load_state_dict`` that are alike on all workers.

        A model may be sharded: call torch's ``fully_shard`` on it, over all workers, then
        make its optimizer, then prepare both. It needs ``recovery="restart"``.

        Returns:
            What stands for each object in the loop, in the same order; for one
            object, that alone. The dataset becomes the loader of this worker's
            micro-batches.

        Raises:
            ConfigError: no model or no dataset, an empty dataset, an object of
                no known kind, or a model that is sharded in another way.
            StateMismatch: the saved state of this job's name belongs to another
                model, batch size, seed or dataset.
        """
        stepping, world = self._stepping, self._stepping.world
        if stepping.prepared is not None:
            raise ConfigError("run.prepare() was called twice: give it everything at once")
        modules = [one for one in objects if isinstance(one, nn.Module)]
        some_sharded = any(is_sharded(module) for module in modules)
        was_ordered = self.reduction == "ordered"
        if some_sharded:
            check_can_be_sharded(objects, world, self._session, self._wire_dtype)
            self.reduction = "fsdp"
        adopted = Adoption(
            world,
            is_complete=lambda: stepping.is_complete,
            batches=stepping.micro_batches,
            use_ddp=self.reduction == "ddp",
            find_unused_parameters=self._find_unused_parameters,
        )
        results = [adopted.take(one) for one in objects]
        source = adopted.source(
            self._position, drop_last=self._drop_last, loader_workers=self._loader_workers
        )
        source.in_step = some_sharded  # each forward pass of theirs gathers pieces
        self._models = adopted.models
        # First, since "another batch size" says more than the tensors that differ for it.
        parts: dict[str, Stateful] = {"position": self._position, **adopted.parts}
        tally = None
        if self._session is not None and self._session.spot.audit_samples:
            parts["audit"] = tally = Tally(source.plan.length, self._session.journal)
        riders = Riders(tally)
        exchange = GradientExchange(
            [r for r in results if isinstance(r, nn.Module)],
            riders=riders.count,
            ordered=self.reduction == "ordered",
            wire_dtype=self._wire_dtype,
            sharded=ShardedGradients(modules) if some_sharded else None,
        )
        keeper = Keeper(self._session, world, TrainState(parts))
        keeper.useful_workers = -(-self.global_batch_size // self.micro_batch_size)
        meetings = Meetings(
            self._session,
            keeper,
            self._position,
            tally=tally,
            reports=self._reports,
            drop_step=stepping.drop_step,
        )
        stepping.begin(
            Prepared(
                source=source,
                exchange=exchange,
                riders=riders,
                keeper=keeper,
                tally=tally,
                meetings=meetings,
                scaler=adopted.scaler,
                is_ordered=self.reduction == "ordered",
            )
        )
        if some_sharded and self.rank == 0 and not self.step:
            tell_of_sharding(self._session, was_ordered=was_ordered)
        if tally is not None:
            tally.tell()  # a lost rank 0 may not have come to tell the last ones
        return results[0] if len(results) == 1 else tuple(results)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are still to do, from 0; goes on at the restored one.

        An epoch that is resumed yields only the batches that are left of it, which may be
        none: use `loss` after the loop, rather than the loop's own variables.
        """
        return self._stepping.epochs(count)

    def backward(self, loss: torch.Tensor) -> None:
        """Backward pass of one micro-batch; with the last one, the gradient of the global batch.

        Args:
            loss: Scalar: the *mean* over the micro-batch's samples, scaled by the
                gradient scaler if there is one.

        Raises:
            ConfigError: called twice for one micro-batch, or outside of the loader's loop.
            WorldBroken: a worker was lost; the trainer starts anew from the last state.
        """
        self._stepping.backward(loss)

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report metrics to the journal and to Ray Train; call it on all workers alike."""
        if self._stepping.is_told_elsewhere:
            return
        full = self._reports.report(metrics, asks=not self._stepping.ahead)
        if self._stepping.prepared is not None:
            self._stepping.prepared.keeper.saver.reported(full)

    # -- what the trainer calls ------------------------------------------------

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` was called."""
        return self._stepping.prepared is not None

    def handed_over(self) -> tuple[Captured, str] | None:
        """The state that the next run of this loop goes on from."""
        return self._stepping.ready.keeper.take_over()

    def finish(self) -> None:
        """Commit the last checkpoint and tell that training is done."""
        stepping = self._stepping
        stepping.check()
        stepping.end_step()
        self._put_kernels_back()
        if stepping.prepared is None:
            return
        keeper, meetings = stepping.prepared.keeper, stepping.prepared.meetings
        stepping.abandon_step()
        if self._session is None:
            return
        if meetings.warming_up:
            raise LeftJob("training ended before this worker was let in")
        position = (self.step, self.epoch)
        meetings.ask_before_next_step()
        stepping.wait_for_decision()
        if (self.step, self.epoch) != position:
            raise Reenter("this worker's peers began anew before the end of training")
        while True:
            try:
                path = self._finish_together(self._session, keeper)
                break
            except WorldBroken as exc:
                try:
                    stepping.meet(exc)
                except LeftJob:
                    if not self._session.member or not self._session.member.is_done:
                        raise
                    # The job knows its result; only the parting from the others broke.
                    keeper.remove_snapshots()
                    return
                if (self.step, self.epoch) != position:
                    # Another worker was one step further, or this one's peers began anew.
                    raise Reenter("the end of training came too early here") from exc
        self._reports.hand_over_final(path)
        keeper.remove_snapshots()

    def _finish_together(self, session: Session, keeper: Keeper) -> str | None:
        """Commit the final checkpoint and the facts; its path."""
        world = self._stepping.world
        self._weights = weights_sha256(self._models)
        alike = world.gather_objects(self._weights)
        if len(set(alike)) > 1 and self.reduction == "ordered":
            raise StateMismatch(
                f"the workers ended with different weights ({[h[:8] for h in alike]}): something "
                "outside of run.prepare() changes the model on one worker only"
            )
        self._reports.settle()  # a job that goes on from this checkpoint reports no more
        path = keeper.final_checkpoint(self.step, self.epoch)
        self._reports.done(self._weights)
        if session.member is not None:
            if world.rank == 0:
                session.member.finish(self._reports.final, path)
            # Nobody leaves before the job knows that it is done.
            world.gather_objects(None)
        return path
