"""`Run`: what makes an ordinary training loop elastic."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from spotray.train.loader import FORWARD_STREAM, Shard, ShardSource, seed_streams, to_device
from spotray.train.meeting import Meetings
from spotray.train.member import LeftJob, Reenter
from spotray.train.open_step import MicroBatch, OpenStep
from spotray.train.optim import ElasticGradScaler
from spotray.train.order import check_batch_sizes
from spotray.train.reporting import Reports, teller
from spotray.train.riders import Riders, Wish
from spotray.train.session import Session
from spotray.train.sharded import ShardedGradients, is_sharded
from spotray.train.state import Position, Stateful, TrainState, weights_sha256
from spotray.train.world import World, peers

_REST_STREAM = 3  # random numbers drawn between epochs
_STEP_STREAM = 4  # and between a step's last backward pass and the next batch


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
        self._world = self._session.world if self._session else World()
        self._models: dict[str, nn.Module] = {}
        self._scaler: ElasticGradScaler | None = None
        self._prepared: _Prepared | None = None
        self._under_way = OpenStep()
        self._wish = Wish()
        self._weights = ""
        self._reports = Reports(self._session, self._position)
        self._moved = False  # the workers changed: the shards of this one are others now
        self._ahead = False  # the state that counts is of a later epoch than the loop
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
        return self._world.rank

    @property
    def world_size(self) -> int:
        """The number of workers now; it may change at a resize."""
        return self._world.size

    @property
    def device(self) -> torch.device:
        """Where this worker's models and batches are."""
        return self._world.device

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
        if self._prepared is not None:
            raise ConfigError("run.prepare() was called twice: give it everything at once")
        modules = [one for one in objects if isinstance(one, nn.Module)]
        some_sharded = any(is_sharded(module) for module in modules)
        was_ordered = self.reduction == "ordered"
        if some_sharded:
            check_can_be_sharded(objects, self._world, self._session, self._wire_dtype)
            self.reduction = "fsdp"
        adopted = Adoption(
            self._world,
            is_complete=lambda: self._complete,
            batches=self._micro_batches,
            use_ddp=self.reduction == "ddp",
            find_unused_parameters=self._find_unused_parameters,
        )
        results = [adopted.take(one) for one in objects]
        source = adopted.source(
            self._position, drop_last=self._drop_last, loader_workers=self._loader_workers
        )
        source.in_step = some_sharded  # each forward pass of theirs gathers pieces
        self._models, self._scaler = adopted.models, adopted.scaler
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
        keeper = Keeper(self._session, self._world, TrainState(parts))
        keeper.useful_workers = -(-self.global_batch_size // self.micro_batch_size)
        meetings = Meetings(
            self._session,
            keeper,
            self._position,
            tally=tally,
            reports=self._reports,
            drop_step=self._drop_step,
        )
        self._prepared = _Prepared(source, exchange, riders, keeper, tally, meetings)
        self._world = meetings.begin(self._world)
        if some_sharded and self._world.rank == 0 and not self.step:
            tell_of_sharding(self._session, was_ordered=was_ordered)
        if tally is not None:
            tally.tell()  # a lost rank 0 may not have come to tell the last ones
        return results[0] if len(results) == 1 else tuple(results)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are still to do, from 0; goes on at the restored one.

        An epoch that is resumed yields only the batches that are left of it, which may be
        none: use `loss` after the loop, rather than the loop's own variables.
        """
        ready = self._ready
        ready.keeper.restore_again()  # whatever the loop did to it since prepare()
        while self.epoch < count:
            epoch = self.epoch
            seed_streams(self.seed, epoch, _REST_STREAM)
            yield epoch
            self._check_not_broken()
            self._end_step()
            self._abandon_step()
            if self._ahead:
                self._ahead = False
                ready.keeper.restore_again()
                continue
            self._position.epoch = epoch + 1
            self._position.step_in_epoch = 0
            if self.epoch < count:
                ready.meetings.ask_before_next_step()
                self._wait_for_decision()
                self._moved = False
                self._meet_if_broken(lambda: ready.keeper.epoch_done(self.step, self.epoch))

    def backward(self, loss: torch.Tensor) -> None:
        """Backward pass of one micro-batch; with the last one, the gradient of the global batch.

        Args:
            loss: Scalar: the *mean* over the micro-batch's samples, scaled by the
                gradient scaler if there is one.

        Raises:
            ConfigError: called twice for one micro-batch, or outside of the loader's loop.
            WorldBroken: a worker was lost; the trainer starts anew from the last state.
        """
        self._check_not_broken()
        micro = self._under_way.take()
        try:
            self._backward(loss, micro)
        except WorldBroken as exc:
            self._meet(exc)
            self._under_way.keep_still()

    def _backward(self, loss: torch.Tensor, micro: MicroBatch) -> None:
        ready = self._ready
        # DDP and FSDP take the mean over the workers, and talk to them in the backward pass.
        ddp_share = self._world.size if self.reduction != "ordered" else 1
        index = micro.shard.index if micro.shard.real else None
        with peers("backward") if ddp_share > 1 else contextlib.nullcontext():
            ready.exchange.backward(loss * (micro.weight * ddp_share), index)
        scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0
        riders = ready.riders.of(
            micro.shard,
            loss=float(loss.detach()) / scale * micro.weight,
            step=self.step,
            wish=ready.keeper.wish() if micro.shard.last else Wish(),
        )
        ready.exchange.collect(index, weight=micro.weight, riders=riders)
        if ready.meetings.warming_up:  # the first pass is done: this newcomer is ready
            self._meet()
            self._under_way.keep_still()
            return
        if not micro.shard.last:
            ready.exchange.hide()
            return
        self._world.check()  # for who is alone: it may have been thrown out
        total = ready.exchange.finish()
        shards = ready.source.plan.shard_count(micro.shard.step)
        agreed = ready.riders.agreed(total, step=self.step, shards=shards)
        self._position.loss, self._wish = agreed.loss, agreed.wish
        ready.keeper.samples = agreed.samples
        self._under_way.summed()
        # Workers end a step with different shards; what the loop draws now (an
        # optimizer's noise, say) must be alike on all of them.
        seed_streams(self.seed, self.epoch, micro.shard.step, _STEP_STREAM)

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report metrics to the journal and to Ray Train; call it on all workers alike."""
        if self._moved and not self._ahead:
            return  # the workers changed in this step: it will be done again, and this too
        if self._ahead and self._position.step_in_epoch:
            return  # the others have told it, and are in the next epoch
        full = self._reports.report(metrics, asks=not self._ahead)
        if self._prepared is not None:
            self._prepared.keeper.saver.reported(full)

    # -- what the trainer calls ------------------------------------------------

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` was called."""
        return self._prepared is not None

    def handed_over(self) -> tuple[Captured, str] | None:
        """The state that the next run of this loop goes on from."""
        return self._ready.keeper.take_over()

    def finish(self) -> None:
        """Commit the last checkpoint and tell that training is done."""
        self._check_not_broken()
        self._end_step()
        self._put_kernels_back()
        if self._prepared is None:
            return
        self._abandon_step()
        if self._session is None:
            return
        if self._prepared.meetings.warming_up:
            raise LeftJob("training ended before this worker was let in")
        position = (self.step, self.epoch)
        self._prepared.meetings.ask_before_next_step()
        self._wait_for_decision()
        if (self.step, self.epoch) != position:
            raise Reenter("this worker's peers began anew before the end of training")
        while True:
            try:
                path = self._finish_together(self._session)
                break
            except WorldBroken as exc:
                try:
                    self._meet(exc)
                except LeftJob:
                    if not self._session.member or not self._session.member.is_done:
                        raise
                    # The job knows its result; only the parting from the others broke.
                    self._prepared.keeper.remove_snapshots()
                    return
                if (self.step, self.epoch) != position:
                    # Another worker was one step further, or this one's peers began anew.
                    raise Reenter("the end of training came too early here") from exc
        self._reports.hand_over_final(path)
        self._prepared.keeper.remove_snapshots()

    def _finish_together(self, session: Session) -> str | None:
        """Commit the final checkpoint and the facts; its path."""
        assert self._prepared is not None, "looked at by finish"
        keeper = self._prepared.keeper
        self._weights = weights_sha256(self._models)
        alike = self._world.gather_objects(self._weights)
        if len(set(alike)) > 1 and self.reduction == "ordered":
            raise StateMismatch(
                f"the workers ended with different weights ({[h[:8] for h in alike]}): something "
                "outside of run.prepare() changes the model on one worker only"
            )
        self._reports.settle()  # a job that goes on from this checkpoint reports no more
        path = keeper.final_checkpoint(self.step, self.epoch)
        self._reports.done(self._weights)
        if session.member is not None:
            if self._world.rank == 0:
                session.member.finish(self._reports.final, path)
            # Nobody leaves before the job knows that it is done.
            self._world.gather_objects(None)
        return path

    # -- inside ----------------------------------------------------------------

    @property
    def _ready(self) -> _Prepared:
        if self._prepared is None:
            raise ConfigError("call run.prepare(model, optimizer, dataset) first")
        return self._prepared

    @property
    def _complete(self) -> bool:
        return self._under_way.is_complete

    def _micro_batches(self) -> Iterator[Any]:
        """Batches of the rest of the epoch; the work between two steps happens in here."""
        if self._position.step_in_epoch:
            self._ready.keeper.restore_again()
        if not self._ready.meetings.warming_up:
            self._ready.keeper.forget_restored()
        epoch = self.epoch
        self._moved = True
        while self._moved:
            self._moved = False
            self._under_way.close()
            yield from self._shards_of_epoch(epoch)
            self._check_not_broken()
            if not self._moved:
                self._under_way.check_backward_was_called()
                self._end_step()
            if self._moved and self.epoch > epoch:
                # Another worker is further: let the loop come to its end here, and catch up.
                self._ahead = True
                self._under_way.close()
                break
            if not self._ready.meetings.warming_up:
                self._ready.keeper.forget_restored()
        # The same also where a restored epoch had no batch left.
        seed_streams(self.seed, epoch, _REST_STREAM, 1)

    def _shards_of_epoch(self, epoch: int) -> Iterator[Any]:
        """Batches of the rest of an epoch, to its end or until the workers changed."""
        source, exchange = self._ready.source, self._ready.exchange

        def shards() -> Iterator[Shard]:
            for step in range(self._position.step_in_epoch, source.plan.steps_per_epoch):
                yield from source.shards_of(
                    epoch, step, world_size=self._world.size, rank=self._world.rank
                )

        for shard, batch in source.batches(epoch, shards()):
            if not self._under_way.is_open:
                self._begin_step(shard.step)
            exchange.begin_shard(last=shard.last)
            size = source.plan.batch_samples(shard.step)
            weight = len(shard.ids) / size if shard.real else 0.0
            self._under_way.hand_out(MicroBatch(shard, weight))
            seed_streams(self.seed, epoch, shard.step, shard.index, FORWARD_STREAM)
            yield to_device(batch, self._world.device)
            self._check_not_broken()
            if self._moved:
                return
            self._under_way.check_backward_was_called()
            if self._complete:
                self._end_step()
                if self._moved:
                    return

    # -- when the workers change ------------------------------------------------

    def _meet(self, lost: WorldBroken | None = None) -> None:
        """Go on among other workers: all agreed to, or one of them is lost."""
        self._go_on_in(self._ready.meetings.meet(lost))

    def _wait_for_decision(self) -> None:
        """Between two steps: whether to go on, if anything was reported."""
        self._go_on_in(self._ready.meetings.decided(self._world))

    def _go_on_in(self, world: World) -> None:
        if world is not self._world:
            self._world, self._moved = world, True

    def _meet_if_broken(self, keep: Callable[[], None]) -> bool:
        """Do what is due at a step's end, and whether it could be done among these workers."""
        try:
            keep()
        except WorldBroken as exc:
            self._meet(exc)
            return False
        return True

    def _drop_step(self) -> None:
        """Forget the step under way: its shards will be others."""
        self._ready.exchange.abandon()
        self._under_way.drop()

    def _check_not_broken(self) -> None:
        """Find a loop that caught the error of a lost worker and went on."""
        if self._prepared is not None:
            self._prepared.meetings.check()

    def _begin_step(self, step: int) -> None:
        source = self._ready.source
        held = source.held(step, world_size=self._world.size, rank=self._world.rank)
        self._ready.exchange.begin_step(held, source.plan.shard_count(step), self._world)
        self._under_way.begin()

    def _abandon_step(self) -> None:
        """Forget a step that the loop left before it was complete, and the rest of its epoch."""
        if self._under_way.is_open:
            self._drop_step()
        self._under_way.close()
        if self._ready.tally is not None:
            self._ready.tally.counts.zero_()

    def _end_step(self) -> None:
        """After the loop's body of a step's last micro-batch: the step counts now."""
        if not self._under_way.count():
            return
        ready = self._ready
        self._position.step_in_epoch += 1
        self._position.step += 1
        ends_epoch = self._position.step_in_epoch == ready.source.plan.steps_per_epoch
        if ends_epoch and ready.tally is not None:
            ready.tally.judge(self.epoch, ready.source.plan, drop_last=self._drop_last)
        wish, world = self._wish, self._world
        if not ends_epoch:  # there its body follows
            ready.meetings.ask_before_next_step()
        stays = self._meet_if_broken(
            lambda: ready.keeper.step_done(
                self.step, self.epoch, self.loss, wish, ends_epoch=ends_epoch
            )
        )
        if stays:
            self._wait_for_decision()
        if self._world is world and wish.stop and ready.meetings.is_live:
            self._meet()


@dataclass(frozen=True)
class _Prepared:
    """What `Run.prepare` made of the user's objects."""

    source: ShardSource
    exchange: GradientExchange
    riders: Riders
    keeper: Keeper
    tally: Tally | None
    meetings: Meetings
