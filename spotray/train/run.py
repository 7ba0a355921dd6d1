"""`Run`: what makes an ordinary training loop elastic."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from spotray.errors import ConfigError, JournalError, StateMismatch, WorldBroken
from spotray.events import Reported, TrainingDone, Warned
from spotray.train import session as session_module
from spotray.train.audit import Tally
from spotray.train.capture import Captured
from spotray.train.ddp import ElasticDDP
from spotray.train.determinism import use_deterministic_kernels
from spotray.train.gradients import GradientExchange, wire_dtype_of
from spotray.train.keeper import Keeper, Wish
from spotray.train.loader import (
    FORWARD_STREAM,
    Shard,
    ShardSource,
    dataset_of,
    seed_streams,
    to_device,
)
from spotray.train.member import LeftJob, Reenter
from spotray.train.optim import ElasticGradScaler, ElasticOptimizer, ElasticScheduler
from spotray.train.order import BatchPlan, check_batch_sizes
from spotray.train.session import LiveUnsupported, Session
from spotray.train.sharded import (
    NO_BITS,
    STORAGE_ALONE,
    ShardedGradients,
    check_sharded,
    is_sharded,
)
from spotray.train.state import Stateful, TrainState, weights_sha256
from spotray.train.world import World, peers

log = logging.getLogger(__name__)

_REST_STREAM = 3  # random numbers drawn between epochs
_STEP_STREAM = 4  # and between a step's last backward pass and the next batch
_NAMED_RIDERS = 3 + len(Wish.FIELDS)  # loss, samples, step, wishes
_STEP_CYCLE = 1024  # steps are compared modulo this: the sum over shards stays exact


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
        self.step = 0  # optimizer steps done
        self.epoch = 0
        self.loss: float | None = None  # mean over the last complete global batch
        self._drop_last = drop_last
        self._loader_workers = loader_workers
        self._find_unused_parameters = find_unused_parameters
        self._session = session_module.current()
        self._world = self._session.world if self._session else World()
        self._models: dict[str, nn.Module] = {}
        self._source: ShardSource | None = None
        self._scaler: ElasticGradScaler | None = None
        self._prepared: _Prepared | None = None
        self._step_in_epoch = 0
        self._micro: _MicroBatch | None = None  # handed out, backward still to come
        self._complete = True  # no micro-batch of an unfinished step is under way
        self._step_is_open = False  # its first micro-batch was handed out
        self._wish = Wish()
        self._weights = ""
        self._reported: dict[str, Any] = {}
        self._unfinished_step = False  # the gradient is complete, the loop's body is not through
        self._warming_up = False  # a newcomer's first pass, whose result counts for nothing
        self._moved = False  # the workers changed: the shards of this one are others now
        self._ahead = False  # the state that counts is of a later epoch than the loop
        self._broken: BaseException | None = None  # told to the loop, which must not go on
        # What the loop draws before prepare(), above all the model's first
        # weights, is then the same on all workers and in every run.
        seed_streams(seed)
        if self._session is not None:
            self._session.run = self
        self._put_kernels_back: Callable[[], Any] = lambda: None
        if deterministic_kernels:
            put_back = use_deterministic_kernels(_teller(self._session))
            # Also for a run that ends by an error, or that nobody finishes.
            self._put_kernels_back = weakref.finalize(self, put_back)

    # -- what the user calls ---------------------------------------------------

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
            self._take_sharded(objects)
        # First, since "another batch size" says more than the tensors that differ for it.
        parts: dict[str, Stateful] = {"position": _Position(self)}
        results = [self._adopt(one, parts) for one in objects]
        if not self._models or self._source is None:
            lacking = "model" if not self._models else "dataset"
            raise ConfigError(f"run.prepare() got no {lacking}: training needs both")
        audits = self._session is not None and self._session.spot.audit_samples
        tally = Tally(self._source.plan.length) if audits else None
        if tally is not None:
            parts["audit"] = tally
        exchange = GradientExchange(
            [r for r in results if isinstance(r, nn.Module)],
            riders=_NAMED_RIDERS + (len(tally.counts) if tally is not None else 0),
            ordered=self.reduction == "ordered",
            wire_dtype=self._wire_dtype,
            sharded=ShardedGradients(modules) if some_sharded else None,
        )
        self._source.in_step = some_sharded  # each forward pass of theirs gathers pieces
        keeper = Keeper(self._session, self._world, TrainState(parts))
        keeper.useful_workers = -(-self.global_batch_size // self.micro_batch_size)
        self._prepared = _Prepared(self._source, exchange, keeper, tally)
        if self._session is not None and self._session.member is not None:
            self._begin_live(self._session)
        else:
            keeper.restore()
        if some_sharded and self._world.rank == 0 and not self.step:
            self._tell_of_sharding(was_ordered=was_ordered)
        if tally is not None:
            self._tell_audits(tally)  # a lost rank 0 may not have come to tell the last ones
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
            self.epoch = epoch + 1
            self._step_in_epoch = 0
            if self.epoch < count:
                self._meeting(lambda: ready.keeper.epoch_done(self.step, self.epoch))

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
        micro = self._micro
        if micro is None:
            raise ConfigError(
                "run.backward() belongs into the loop over the loader, once for each batch: add "
                "up several losses before it"
            )
        self._micro = None
        try:
            self._backward(loss, micro)
        except WorldBroken as exc:
            self._lost_a_peer(exc)
            self._complete = False  # the rest of the loop's body must not act

    def _backward(self, loss: torch.Tensor, micro: _MicroBatch) -> None:
        ready = self._ready
        # DDP and FSDP take the mean over the workers, and talk to them in the backward pass.
        ddp_share = self._world.size if self.reduction != "ordered" else 1
        index = micro.shard.index if micro.shard.real else None
        with peers("backward") if ddp_share > 1 else contextlib.nullcontext():
            ready.exchange.backward(loss * (micro.weight * ddp_share), index)
        scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0
        riders = [float(loss.detach()) / scale * micro.weight, float(micro.samples)]
        riders.append(float(self.step % _STEP_CYCLE) if micro.shard.real else 0.0)
        riders += ready.keeper.wishes() if micro.shard.last else [0.0] * len(Wish.FIELDS)
        if ready.tally is not None:
            riders += ready.tally.uses(micro.shard)
        ready.exchange.collect(index, weight=micro.weight, riders=riders)
        if self._warming_up:
            self._join_the_others()
            return
        if not micro.shard.last:
            ready.exchange.hide()
            return
        self._world.check()  # for who is alone: it may have been thrown out
        total = ready.exchange.finish()
        self.loss = total[0]
        self._wish = Wish.from_riders(total[3:_NAMED_RIDERS])
        shards = ready.source.plan.shard_count(micro.shard.step)
        if round(total[2]) != self.step % _STEP_CYCLE * shards:
            raise ConfigError(
                f"the workers are not at the same step (one is at {self.step + 1}): leave the loop "
                "over the loader by run.step, never by counting batches or seconds"
            )
        ready.keeper.samples = round(total[1])
        if ready.tally is not None:
            ready.tally.add(total[_NAMED_RIDERS:])
        self._complete = True
        self._step_is_open = False
        self._unfinished_step = True
        # Workers end a step with different shards; what the loop draws now (an
        # optimizer's noise, say) must be alike on all of them.
        seed_streams(self.seed, self.epoch, micro.shard.step, _STEP_STREAM)

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report metrics to the journal and to Ray Train; call it on all workers alike."""
        full = _plain({**metrics, "epoch": self.epoch, "step": self.step, "loss": self.loss})
        self._reported = full
        if self._prepared is not None:
            self._prepared.keeper.saver.reported(full)
        if self._session is None:
            log.info("epoch %d, step %d: %s", self.epoch, self.step, full)
            return
        self._session.journal.append(
            Reported(at_s=time.time(), step=self.step, epoch=self.epoch, metrics=full)
        )
        if self._session.link is not None:
            self._session.link.report(full, None)

    def state_dict(self) -> dict[str, Any]:
        """Position of the run: epoch and step, and what they depend on."""
        return _Position(self).state_dict()

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
        if self._warming_up:
            raise LeftJob("training ended before this worker was let in")
        position = (self.step, self.epoch)
        while True:
            try:
                path = self._finish_together(self._session)
                break
            except WorldBroken as exc:
                try:
                    self._lost_a_peer(exc)
                except LeftJob:
                    if not self._session.member or not self._session.member.is_done:
                        raise
                    # The job knows its result; only the parting from the others broke.
                    self._prepared.keeper.remove_snapshots()
                    return
                if (self.step, self.epoch) != position:
                    # Another worker was one step further, or this one's peers began anew.
                    raise Reenter("the end of training came too early here") from exc
        if self._session.link is not None:
            self._session.link.report(self._final_metrics, path)
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
        path = keeper.final_checkpoint(self.step, self.epoch)
        self._final_metrics = {
            **self._reported,
            "step": self.step,
            "loss": self.loss if self.loss is not None else self._reported.get("loss"),
            "weights_sha256": self._weights,
        }
        session.journal.append(
            TrainingDone(
                at_s=time.time(),
                step=self.step,
                weights_sha256=self._weights,
                metrics=self._final_metrics,
            )
        )
        try:
            session.journal.flush()
        except JournalError as exc:  # the checkpoint is committed: that is what counts
            log.warning("the end of training is not in the journal yet: %s", exc)
        if session.member is not None:
            if self._world.rank == 0:
                session.member.finish(self._final_metrics, path)
            # Nobody leaves before the job knows that it is done.
            self._world.gather_objects(None)
        return path

    # -- inside ----------------------------------------------------------------

    @property
    def _ready(self) -> _Prepared:
        if self._prepared is None:
            raise ConfigError("call run.prepare(model, optimizer, dataset) first")
        return self._prepared

    def _is_complete(self) -> bool:
        return self._complete

    def _take_sharded(self, objects: Sequence[Any]) -> None:
        """Some models are sharded: FSDP sums the gradients."""
        if self._session is not None and self._session.member is not None:
            raise LiveUnsupported("the model is sharded: no worker holds all of its state")
        check_sharded(objects, self._world)
        if self._wire_dtype is not torch.float32:
            raise ConfigError(
                "FSDP sends a sharded model's gradients: instead of wire_dtype, give fully_shard "
                "a MixedPrecisionPolicy(reduce_dtype=...)"
            )
        self.reduction = "fsdp"

    def _tell_of_sharding(self, *, was_ordered: bool) -> None:
        """Say once in a job what a sharded model does not get."""
        tell = _teller(self._session)
        if was_ordered:
            tell(NO_BITS)
        if self._session is not None and self._session.store is not None:
            tell(STORAGE_ALONE)

    def _adopt(self, one: Any, parts: dict[str, Stateful]) -> Any:
        """Register one object of ``prepare`` and return what stands for it in the loop."""
        if isinstance(one, nn.Module):
            if not is_sharded(one):  # fully_shard has put its pieces where they belong
                one.to(self._world.device)
            name = _name("model", parts)
            parts[name] = self._models[name] = one
            if self.reduction == "ddp":
                unused = self._find_unused_parameters
                return ElasticDDP(one, self._world, find_unused_parameters=unused)
            return one
        if isinstance(one, torch.optim.Optimizer):
            parts[_name("optimizer", parts)] = one
            return ElasticOptimizer(one, self._is_complete)
        if isinstance(one, LRScheduler):
            parts[_name("scheduler", parts)] = one
            return ElasticScheduler(one, self._is_complete)
        if isinstance(one, torch.amp.GradScaler):
            if self._scaler is not None:
                raise ConfigError("run.prepare() takes one gradient scaler")
            parts["scaler"] = one
            self._scaler = ElasticGradScaler(one, self._is_complete)
            return self._scaler
        if isinstance(one, Stateful):
            parts[_name("state", parts)] = one
            return one
        if self._source is not None:
            raise ConfigError("run.prepare() takes one dataset")
        dataset, collate, workers = dataset_of(one)
        plan = BatchPlan(
            length=len(dataset),
            global_batch_size=self.global_batch_size,
            micro_batch_size=self.micro_batch_size,
            drop_last=self._drop_last,
        )
        self._source = ShardSource(
            dataset,
            plan,
            seed=self.seed,
            collate=collate,
            workers=self._loader_workers or workers,
        )
        return _Loader(self)

    def _micro_batches(self) -> Iterator[Any]:
        """Batches of the rest of the epoch; the work between two steps happens in here."""
        if self._step_in_epoch:
            self._ready.keeper.restore_again()
        if not self._warming_up:
            self._ready.keeper.forget_restored()
        epoch = self.epoch
        self._moved = True
        while self._moved:
            self._moved = False
            self._complete = True
            yield from self._shards_of_epoch(epoch)
            self._check_not_broken()
            if not self._moved:
                self._check_backward_was_called()
                self._end_step()
            if self._moved and self.epoch > epoch:
                # Another worker is further: let the loop come to its end here, and catch up.
                self._ahead = True
                self._complete = True
                break
            if not self._warming_up:
                self._ready.keeper.forget_restored()
        # The same also where a restored epoch had no batch left.
        seed_streams(self.seed, epoch, _REST_STREAM, 1)

    def _shards_of_epoch(self, epoch: int) -> Iterator[Any]:
        """Batches of the rest of an epoch, to its end or until the workers changed."""
        source, exchange = self._ready.source, self._ready.exchange

        def shards() -> Iterator[Shard]:
            for step in range(self._step_in_epoch, source.plan.steps_per_epoch):
                yield from source.shards_of(
                    epoch, step, world_size=self._world.size, rank=self._world.rank
                )

        for shard, batch in source.batches(epoch, shards()):
            if not self._step_is_open:
                self._begin_step(shard.step)
            exchange.begin_shard(last=shard.last)
            size = source.plan.batch_samples(shard.step)
            samples = len(shard.ids) if shard.real else 0
            self._micro = _MicroBatch(shard=shard, samples=samples, weight=samples / size)
            seed_streams(self.seed, epoch, shard.step, shard.index, FORWARD_STREAM)
            yield to_device(batch, self._world.device)
            self._check_not_broken()
            if self._moved:
                return
            self._check_backward_was_called()
            if self._complete:
                self._end_step()
                if self._moved:
                    return

    # -- when the workers change ------------------------------------------------

    def _begin_live(self, session: Session) -> None:
        """Take part: at once where nobody steps yet, else after a pass beside the others."""
        keeper = self._ready.keeper
        if session.handed_over is not None:
            (saved, whence), session.handed_over = session.handed_over, None
            keeper.restore_from(saved, whence)
            self._take_world(self._world)
        elif session.warm_up_from is not None:
            self._warming_up = True
            # Only where to begin: the state comes when this worker is let in.
            self.epoch, self.step = session.warm_up_from
        else:
            self._meet("")

    def _join_the_others(self) -> None:
        """A newcomer has run its first forward and backward pass: it is ready."""
        self._warming_up = False
        self._meet("")
        self._complete = False  # the rest of the loop's body must not act

    def _lost_a_peer(self, exc: WorldBroken) -> None:
        """Go on without it; where nobody can say how, the loop is told."""
        if self._session is None or self._session.member is None:
            self._broken = exc
            raise exc
        log.warning("generation %d broke: %s", self._world.generation, exc)
        self._meet(str(exc))

    def _meeting(self, keep: Callable[[], None], *, meet: bool = False) -> None:
        """Do what is due at a step's end; then meet again if that was agreed, or is needed."""
        try:
            keep()
        except WorldBroken as exc:
            self._lost_a_peer(exc)
            return
        if meet and self._session is not None and self._session.member is not None:
            self._meet("")

    def _meet(self, why: str) -> None:
        """Leave the present world, meet the other workers of the next one, have one state."""
        try:
            self._meet_others(why)
        except (LeftJob, Reenter) as exc:
            self._broken = exc  # for a loop that catches even these
            raise

    def _meet_others(self, why: str) -> None:
        session = self._session
        assert session is not None and session.member is not None, "only live workers meet"
        member, ready = session.member, self._ready
        self._drop_step()
        ready.keeper.tell_rest()
        while True:
            checkpoints = ready.keeper.saver.checkpoints
            is_busy = checkpoints is not None and checkpoints.is_busy
            spoke = member.speaks
            self._take_world(member.join(why, is_busy=is_busy))
            try:
                epoch = self.epoch
                assert member.roster is not None, "it joined"
                if member.roster.heirs:
                    has_new_state = ready.keeper.heal(self.step)
                else:
                    ready.keeper.restore()
                    has_new_state = True
                break
            except WorldBroken as exc:
                why = str(exc)
                log.warning("generation %d broke: %s", self._world.generation, exc)
        if ready.tally is not None and member.speaks and (has_new_state or not spoke):
            self._tell_audits(ready.tally)  # who spoke before may not have come to it
        self._moved = True
        self._drop_step()
        if self.epoch < epoch:
            raise Reenter(f"the state is of epoch {self.epoch}, this loop is in epoch {epoch}")

    def _drop_step(self) -> None:
        """Forget the step under way: its shards will be others."""
        self._micro = None
        self._unfinished_step = False
        self._ready.exchange.abandon()
        self._step_is_open = False
        self._complete = True

    def _take_world(self, world: World) -> None:
        session = self._session
        assert session is not None and session.member is not None, "only live workers change it"
        self._world = session.world = world
        session.member.speaks = world.rank == 0
        if session.member.assignment is not None:
            session.reached_step = session.member.assignment.reached_step
        self._ready.keeper.enter(world)

    def _check_not_broken(self) -> None:
        """Find a loop that caught the error of a lost worker and went on."""
        if self._broken is not None:
            name = type(self._broken).__name__
            raise ConfigError(
                f"the training loop caught {name} ({self._broken}), by which a worker learns that "
                f"the workers changed, and went on: let it pass (except spotray.{name}: raise)"
            ) from self._broken

    def _check_backward_was_called(self) -> None:
        if self._micro is not None:
            self._micro = None
            raise ConfigError(
                "a batch went by without run.backward(loss): call it once for each batch, "
                "instead of loss.backward()"
            )

    def _begin_step(self, step: int) -> None:
        source = self._ready.source
        mine = source.shards_of(
            self.epoch, step, world_size=self._world.size, rank=self._world.rank
        )
        real = [shard.index for shard in mine if shard.real]
        held = range(real[0], real[-1] + 1) if real else range(0)
        shards = source.plan.shard_count(step)
        self._ready.exchange.begin_step(held, shards, self._world)
        self._complete = False
        self._step_is_open = True

    def _abandon_step(self) -> None:
        """Forget a step that the loop left before it was complete, and the rest of its epoch."""
        self._micro = None
        ready = self._ready
        if self._step_is_open:
            ready.exchange.abandon()
            self._step_is_open = False
        self._complete = True
        if ready.tally is not None:
            ready.tally.counts.zero_()

    def _end_step(self) -> None:
        """After the loop's body of a step's last micro-batch: the step counts now."""
        if not self._unfinished_step:
            return
        self._unfinished_step = False
        ready = self._ready
        self._step_in_epoch += 1
        self.step += 1
        ends_epoch = self._step_in_epoch == ready.source.plan.steps_per_epoch
        if ends_epoch and ready.tally is not None:
            ready.tally.judge(self.epoch, ready.source.plan, drop_last=self._drop_last)
            self._tell_audits(ready.tally, last=1)
        wish = self._wish
        self._meeting(
            lambda: ready.keeper.step_done(
                self.step, self.epoch, self.loss, wish, ends_epoch=ends_epoch
            ),
            meet=bool(wish.stop),
        )

    def _tell_audits(self, tally: Tally, *, last: int = 0) -> None:
        """Journal the last verdicts, by default all that are kept."""
        assert self._session is not None, "only a session asks for an audit"
        for event in tally.told()[-last:]:
            self._session.journal.append(event)


@dataclass(frozen=True)
class _Prepared:
    """What `Run.prepare` made of the user's objects."""

    source: ShardSource
    exchange: GradientExchange
    keeper: Keeper
    tally: Tally | None


@dataclass(frozen=True)
class _MicroBatch:
    shard: Shard
    samples: int
    weight: float  # the shard's part of the global batch


class _Loader:
    """Iterates over this worker's micro-batches of the current epoch, once per epoch."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __iter__(self) -> Iterator[Any]:
        return self._run._micro_batches()


class _Position:
    """Where the run is, and what must be the same for that to mean anything."""

    _FIXED = ("global_batch_size", "micro_batch_size", "seed", "samples")

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> dict[str, Any]:
        run = self._run
        return {
            "epoch": run.epoch,
            "step_in_epoch": run._step_in_epoch,
            "step": run.step,
            "loss": run.loss,
            **self._fixed(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, now in self._fixed().items():
            if state_dict[name] != now:
                raise ValueError(f"{name} was {state_dict[name]} and is {now} now")
        run = self._run
        run.epoch = int(state_dict["epoch"])
        run._step_in_epoch = int(state_dict["step_in_epoch"])
        run.step = int(state_dict["step"])
        run.loss = state_dict["loss"]

    def _fixed(self) -> dict[str, int]:
        run = self._run
        assert run._source is not None
        values = (run.global_batch_size, run.micro_batch_size, run.seed, run._source.plan.length)
        return dict(zip(self._FIXED, values, strict=True))


def _teller(session: Session | None) -> Callable[[str], None]:
    """Puts a warning into the log, and among the facts."""

    def tell(what: str) -> None:
        log.warning("%s", what)
        if session is not None:
            session.journal.append(Warned(at_s=time.time(), what=what))

    return tell


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as JSON has them: numpy's and torch's numbers become Python's."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(metrics, default=float))
    except (TypeError, ValueError) as exc:
        raise ConfigError(
            f"run.report() got a metric that is no number, string or list of them: {exc}"
        ) from exc
    return plain


def _name(kind: str, taken: Mapping[str, Any]) -> str:
    """``kind`` for the first of a kind, ``kind_1`` for the second, and so on."""
    number = sum(1 for key in taken if key == kind or key.startswith(f"{kind}_"))
    return kind if number == 0 else f"{kind}_{number}"
