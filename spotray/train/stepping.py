"""One worker's way through the steps of a run, among workers that change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from spotray.errors import ConfigError, WorldBroken
from spotray.train.audit import Tally
from spotray.train.gradients import GradientExchange
from spotray.train.keeper import Keeper
from spotray.train.loader import FORWARD_STREAM, Shard, ShardSource, seed_streams, to_device
from spotray.train.meeting import Meetings
from spotray.train.open_step import MicroBatch, OpenStep
from spotray.train.optim import ElasticGradScaler
from spotray.train.riders import Riders, Wish
from spotray.train.state import Position
from spotray.train.world import World, peers

_REST_STREAM = 3  # random numbers drawn between epochs
_STEP_STREAM = 4  # and between a step's last backward pass and the next batch


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What `Run.prepare` made of the user's objects."""

    source: ShardSource
    exchange: GradientExchange
    riders: Riders
    keeper: Keeper
    tally: Tally | None
    meetings: Meetings
    scaler: ElasticGradScaler | None
    is_ordered: bool  # else the backward pass talks to the other workers, and takes the mean


class Stepping:
    """Hands out micro-batches, and does what is due between two steps.

    Args:
        world: The workers to begin with.
        position: Of the run; it moves with the state.
    """

    def __init__(self, world: World, position: Position) -> None:
        self.world = world
        self.prepared: Prepared | None = None
        self.ahead = False  # the state that counts is of a later epoch than the loop
        self._position = position
        self._under_way = OpenStep()
        self._wish = Wish()
        self._moved = False  # the workers changed: the shards of this one are others now

    @property
    def ready(self) -> Prepared:
        """What `begin` was given.

        Raises:
            ConfigError: nothing yet.
        """
        if self.prepared is None:
            raise ConfigError("call run.prepare(model, optimizer, dataset) first")
        return self.prepared

    @property
    def is_complete(self) -> bool:
        """Whether optimizers may act."""
        return self._under_way.is_complete

    @property
    def is_told_elsewhere(self) -> bool:
        """Whether what the loop reports now is told by others, or again later."""
        if self.ahead:
            return bool(self._position.step_in_epoch)  # the others are in the next epoch
        return self._moved  # in the midst of a step, which will be done again

    def begin(self, prepared: Prepared) -> None:
        """Restore the state, and go on from it."""
        self.prepared = prepared
        self.world = prepared.meetings.begin(self.world)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are still to do, as `Run.epochs`."""
        ready, now = self.ready, self._position
        ready.keeper.restore_again()  # whatever the loop did to it since prepare()
        while now.epoch < count:
            epoch = now.epoch
            seed_streams(now.seed, epoch, _REST_STREAM)
            yield epoch
            self.check()
            self.end_step()
            self.abandon_step()
            if self.ahead:
                self.ahead = False
                ready.keeper.restore_again()
                continue
            now.epoch = epoch + 1
            now.step_in_epoch = 0
            if now.epoch < count:
                ready.meetings.ask_before_next_step()
                self.wait_for_decision()
                self._moved = False
                self._meet_if_broken(lambda: ready.keeper.epoch_done(now.step, now.epoch))

    def backward(self, loss: torch.Tensor) -> None:
        """Backward pass of one micro-batch, as `Run.backward`."""
        self.check()
        micro = self._under_way.take()
        try:
            self._backward(loss, micro)
        except WorldBroken as exc:
            self.meet(exc)
            self._under_way.keep_still()

    def _backward(self, loss: torch.Tensor, micro: MicroBatch) -> None:
        ready, now = self.ready, self._position
        # DDP and FSDP take the mean over the workers, and talk to them in the backward pass.
        ddp_share = 1 if ready.is_ordered else self.world.size
        index = micro.shard.index if micro.shard.real else None
        with peers("backward") if ddp_share > 1 else contextlib.nullcontext():
            ready.exchange.backward(loss * (micro.weight * ddp_share), index)
        scale = float(ready.scaler.get_scale()) if ready.scaler is not None else 1.0
        riders = ready.riders.of(
            micro.shard,
            loss=float(loss.detach()) / scale * micro.weight,
            step=now.step,
            wish=ready.keeper.wish() if micro.shard.last else Wish(),
        )
        ready.exchange.collect(index, weight=micro.weight, riders=riders)
        if ready.meetings.warming_up:  # the first pass is done: this newcomer is ready
            self.meet()
            self._under_way.keep_still()
            return
        if not micro.shard.last:
            ready.exchange.hide()
            return
        self.world.check()  # for who is alone: it may have been thrown out
        total = ready.exchange.finish()
        shards = ready.source.plan.shard_count(micro.shard.step)
        agreed = ready.riders.agreed(total, step=now.step, shards=shards)
        now.loss, self._wish = agreed.loss, agreed.wish
        ready.keeper.samples = agreed.samples
        self._under_way.summed()
        # Workers end a step with different shards; what the loop draws now (an
        # optimizer's noise, say) must be alike on all of them.
        seed_streams(now.seed, now.epoch, micro.shard.step, _STEP_STREAM)

    def micro_batches(self) -> Iterator[Any]:
        """Batches of the rest of the epoch; the work between two steps happens in here."""
        if self._position.step_in_epoch:
            self.ready.keeper.restore_again()
        if not self.ready.meetings.warming_up:
            self.ready.keeper.forget_restored()
        epoch = self._position.epoch
        self._moved = True
        while self._moved:
            self._moved = False
            self._under_way.close()
            yield from self._shards_of_epoch(epoch)
            self.check()
            if not self._moved:
                self._under_way.check_backward_was_called()
                self.end_step()
            if self._moved and self._position.epoch > epoch:
                # Another worker is further: let the loop come to its end here, and catch up.
                self.ahead = True
                self._under_way.close()
                break
            if not self.ready.meetings.warming_up:
                self.ready.keeper.forget_restored()
        # The same also where a restored epoch had no batch left.
        seed_streams(self._position.seed, epoch, _REST_STREAM, 1)

    def _shards_of_epoch(self, epoch: int) -> Iterator[Any]:
        """Batches of the rest of an epoch, to its end or until the workers changed."""
        source, exchange = self.ready.source, self.ready.exchange

        def shards() -> Iterator[Shard]:
            for step in range(self._position.step_in_epoch, source.plan.steps_per_epoch):
                yield from source.shards_of(
                    epoch, step, world_size=self.world.size, rank=self.world.rank
                )

        for shard, batch in source.batches(epoch, shards()):
            if not self._under_way.is_open:
                self._begin_step(shard.step)
            exchange.begin_shard(last=shard.last)
            size = source.plan.batch_samples(shard.step)
            weight = len(shard.ids) / size if shard.real else 0.0
            self._under_way.hand_out(MicroBatch(shard, weight))
            seed_streams(self._position.seed, epoch, shard.step, shard.index, FORWARD_STREAM)
            yield to_device(batch, self.world.device)
            self.check()
            if self._moved:
                return
            self._under_way.check_backward_was_called()
            if self.is_complete:
                self.end_step()
                if self._moved:
                    return

    # -- when the workers change ------------------------------------------------

    def meet(self, lost: WorldBroken | None = None) -> None:
        """Go on among other workers: all agreed to, or one of them is lost."""
        self._go_on_in(self.ready.meetings.meet(lost))

    def wait_for_decision(self) -> None:
        """Between two steps: whether to go on, if anything was reported."""
        self._go_on_in(self.ready.meetings.decided(self.world))

    def _go_on_in(self, world: World) -> None:
        if world is not self.world:
            self.world, self._moved = world, True

    def _meet_if_broken(self, keep: Callable[[], None]) -> bool:
        """Do what is due at a step's end, and whether it could be done among these workers."""
        try:
            keep()
        except WorldBroken as exc:
            self.meet(exc)
            return False
        return True

    def drop_step(self) -> None:
        """Forget the step under way: its shards will be others."""
        self.ready.exchange.abandon()
        self._under_way.drop()

    def check(self) -> None:
        """Find a loop that caught the error of a lost worker and went on."""
        if self.prepared is not None:
            self.prepared.meetings.check()

    def _begin_step(self, step: int) -> None:
        source = self.ready.source
        held = source.held(step, world_size=self.world.size, rank=self.world.rank)
        self.ready.exchange.begin_step(held, source.plan.shard_count(step), self.world)
        self._under_way.begin()

    def abandon_step(self) -> None:
        """Forget a step that the loop left before it was complete, and the rest of its epoch."""
        if self._under_way.is_open:
            self.drop_step()
        self._under_way.close()
        if self.ready.tally is not None:
            self.ready.tally.counts.zero_()

    def end_step(self) -> None:
        """After the loop's body of a step's last micro-batch: the step counts now."""
        if not self._under_way.count():
            return
        ready, now = self.ready, self._position
        plan = ready.source.plan
        now.step_in_epoch += 1
        now.step += 1
        ends_epoch = now.step_in_epoch == plan.steps_per_epoch
        if ends_epoch and ready.tally is not None:
            ready.tally.judge(now.epoch, plan)
        wish, world = self._wish, self.world
        if not ends_epoch:  # there its body follows
            ready.meetings.ask_before_next_step()
        stays = self._meet_if_broken(
            lambda: ready.keeper.step_done(
                now.step, now.epoch, now.loss, wish, ends_epoch=ends_epoch
            )
        )
        if stays:
            self.wait_for_decision()
        if self.world is world and wish.stop and ready.meetings.is_live:
            self.meet()
