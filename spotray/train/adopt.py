"""The user's objects: what each one is, and what stands for it in the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from spotray.errors import ConfigError
from spotray.train.ddp import ElasticDDP
from spotray.train.loader import Collate, MapDataset, ShardSource, dataset_of
from spotray.train.optim import Complete, ElasticGradScaler, ElasticOptimizer, ElasticScheduler
from spotray.train.order import BatchPlan
from spotray.train.reporting import teller
from spotray.train.session import LiveUnsupported, Session
from spotray.train.sharded import NO_BITS, STORAGE_ALONE, check_sharded, is_sharded
from spotray.train.state import Position, Stateful
from spotray.train.world import World


class Adoption:
    """The objects of one `Run.prepare`, sorted by what they are.

    Args:
        world: The workers.
        is_complete: Whether the step's gradient is complete.
        batches: This worker's micro-batches of the current epoch.
        use_ddp: Wrap models as torch's DistributedDataParallel does.
        find_unused_parameters: For that.
    """

    def __init__(
        self,
        world: World,
        *,
        is_complete: Complete,
        batches: Callable[[], Iterator[Any]],
        use_ddp: bool,
        find_unused_parameters: bool,
    ) -> None:
        self._world = world
        self._is_complete = is_complete
        self._batches = batches
        self._use_ddp = use_ddp
        self._find_unused_parameters = find_unused_parameters
        self.parts: dict[str, Stateful] = {}  # that must survive, by name
        self.models: dict[str, nn.Module] = {}  # among them
        self.scaler: ElasticGradScaler | None = None
        self._data: tuple[MapDataset, Collate | None, int] | None = None  # as `dataset_of` says

    def take(self, one: Any) -> Any:
        """Register one object and return what stands for it in the loop.

        Raises:
            ConfigError: it is of no known kind, or a second one of a kind of which a run
                has one.
        """
        if isinstance(one, nn.Module):
            return self._take_model(one)
        if isinstance(one, torch.optim.Optimizer):
            self._keep("optimizer", one)
            return ElasticOptimizer(one, self._is_complete)
        if isinstance(one, LRScheduler):
            self._keep("scheduler", one)
            return ElasticScheduler(one, self._is_complete)
        if isinstance(one, torch.amp.GradScaler):
            if self.scaler is not None:
                raise ConfigError("run.prepare() takes one gradient scaler")
            self._keep("scaler", one)
            self.scaler = ElasticGradScaler(one, self._is_complete)
            return self.scaler
        if isinstance(one, Stateful):
            self._keep("state", one)
            return one
        if self._data is not None:
            raise ConfigError("run.prepare() takes one dataset")
        self._data = dataset_of(one)
        return _Loader(self._batches)

    def source(self, position: Position, *, drop_last: bool, loader_workers: int) -> ShardSource:
        """What fetches the samples, once all objects are taken; ``position`` learns their number.

        Args:
            position: Says how batches are cut.
            drop_last: Leave out the shorter batch at an epoch's end.
            loader_workers: Processes that load; 0: as many as the dataset's own loader has.

        Raises:
            ConfigError: there was no model or no dataset, or one of too few samples.
        """
        if not self.models or self._data is None:
            lacking = "model" if not self.models else "dataset"
            raise ConfigError(f"run.prepare() got no {lacking}: training needs both")
        dataset, collate, workers = self._data
        position.samples = len(dataset)
        plan = BatchPlan(
            length=position.samples,
            global_batch_size=position.global_batch_size,
            micro_batch_size=position.micro_batch_size,
            drop_last=drop_last,
        )
        workers = loader_workers or workers
        return ShardSource(dataset, plan, seed=position.seed, collate=collate, workers=workers)

    def _take_model(self, model: nn.Module) -> nn.Module:
        if not is_sharded(model):  # fully_shard has put its pieces where they belong
            model.to(self._world.device)
        self.models[self._keep("model", model)] = model
        if self._use_ddp:
            unused = self._find_unused_parameters
            return ElasticDDP(model, self._world, find_unused_parameters=unused)
        return model

    def _keep(self, kind: str, part: Stateful) -> str:
        name = _name(kind, self.parts)
        self.parts[name] = part
        return name


class _Loader:
    """Iterates over this worker's micro-batches of the current epoch, once per epoch."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches()


def check_can_be_sharded(
    objects: Sequence[Any], world: World, session: Session | None, wire_dtype: torch.dtype
) -> None:
    """Refuse what a run with a sharded model cannot do: FSDP sums its gradients.

    Raises:
        LiveUnsupported: workers of live recovery.
        ConfigError: it is sharded in another way, or goes with a ``wire_dtype``.
    """
    if session is not None and session.member is not None:
        raise LiveUnsupported("the model is sharded: no worker holds all of its state")
    check_sharded(objects, world)
    if wire_dtype is not torch.float32:
        raise ConfigError(
            "FSDP sends a sharded model's gradients: instead of wire_dtype, give fully_shard "
            "a MixedPrecisionPolicy(reduce_dtype=...)"
        )


def tell_of_sharding(session: Session | None, *, was_ordered: bool) -> None:
    """Say once in a job what a sharded model does not get."""
    tell = teller(session)
    if was_ordered:
        tell(NO_BITS)
    if session is not None and session.store is not None:
        tell(STORAGE_ALONE)


def _name(kind: str, taken: Mapping[str, Any]) -> str:
    """``kind`` for the first of a kind, ``kind_1`` for the second, and so on."""
    number = sum(1 for key in taken if key == kind or key.startswith(f"{kind}_"))
    return kind if number == 0 else f"{kind}_{number}"
