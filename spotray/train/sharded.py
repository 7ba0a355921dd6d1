"""Models that torch's ``fully_shard`` (FSDP2) has cut over the workers.

No worker holds all of such a state. So FSDP itself sums the gradients, each worker writes
and reads its own pieces, and what was written by some workers is cut anew for others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from spotray.errors import ConfigError
from spotray.train.capture import Captured
from spotray.train.world import World, peers

# How a tensor of that name, size and type is cut over the workers; None: every one has all of it.
Layout = Callable[[str, torch.Size, torch.dtype], DTensor | None]

NO_SNAPSHOTS = "the model is sharded, so no node holds a state that others could go on from"
STORAGE_ALONE = f"no snapshots are taken, the state goes to storage alone: {NO_SNAPSHOTS}"
NO_BITS = (
    "the model is sharded: FSDP sums its gradients, so results for other numbers of workers agree "
    "up to rounding only"
)


def is_sharded(module: nn.Module) -> bool:
    """Whether some parameters of it are cut over the workers."""
    return any(isinstance(p, DTensor) for p in module.parameters()) or bool(_units([module]))


def check_sharded(objects: Iterable[Any], world: World) -> None:
    """Refuse what was sharded in a way that data-parallel workers cannot train.

    Args:
        objects: What was given to `Run.prepare`.
        world: The workers.

    Raises:
        ConfigError: not sharded by ``fully_shard`` over all workers; or an optimizer that
            was made before.
    """
    known = set()
    for module in (one for one in objects if isinstance(one, nn.Module)):
        units = _units([module])
        for unit in units:
            unit.reshard()  # after a forward pass its parameters are the whole ones
        for name, param in module.named_parameters():
            known.add(id(param))
            if isinstance(param, DTensor):
                _check_param(name, param, world, by_fsdp=bool(units))
    for optimizer in (one for one in objects if isinstance(one, torch.optim.Optimizer)):
        if any(id(p) not in known for p in _params_of(optimizer)):
            raise ConfigError(
                "an optimizer holds parameters that no prepared model has: make it after "
                "fully_shard(model), and give its models to run.prepare() too"
            )


def _check_param(name: str, param: DTensor, world: World, *, by_fsdp: bool) -> None:
    *outer, innermost = param.placements
    if (
        not by_fsdp
        or type(innermost) is not Shard
        or any(type(one) is not Replicate for one in outer)
    ):
        raise ConfigError(
            f"{name} is laid out as {param.placements}: run.prepare() takes models that are "
            "sharded by fully_shard alone, without tensor, pipeline or expert parallelism"
        )
    if param.device_mesh.size() != world.size:
        raise ConfigError(
            f"{name} is sharded over {param.device_mesh.size()} processes, and {world.size} "
            "train: use a mesh over all workers (the default), inside of an ElasticTrainer"
        )


class ShardedGradients:
    """Sums the gradients of models of which some are sharded.

    FSDP takes the mean over the workers in the last backward pass of a step. Parameters
    that are not sharded are summed after it.

    Args:
        modules: All models of the run.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        modules = list(modules)
        self._units = _units(modules)
        params = {id(p): p for m in modules for p in m.parameters() if p.requires_grad}
        self._whole = [p for p in params.values() if not isinstance(p, DTensor)]

    def reshard(self) -> None:
        """Put the sharded parameters in place: a forward pass of the loop's own leaves others."""
        for unit in self._units:
            unit.reshard()

    def begin_shard(self, *, last: bool) -> None:
        """Prepare for the passes of a micro-batch; ``last`` of the step: they end in the mean."""
        for unit in self._units:
            unit.set_requires_gradient_sync(last, recurse=False)

    def drop(self) -> None:
        """Forget what an unfinished step has gathered in the whole parameters."""
        for unit in self._units:
            # FSDP has no public way to them without gathering the parameters.
            for group in unit._get_fsdp_state()._fsdp_param_groups:
                for param in group.fsdp_params:
                    param.unsharded_accumulated_grad = None
                    if hasattr(param, "_unsharded_param"):
                        param._unsharded_param.grad = None

    @torch.no_grad()
    def sum_whole(self, world: World) -> None:
        """Make the gradients of unsharded parameters their mean over the workers.

        One that has none on a worker counts there as zero.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        if world.size == 1 or not self._whole:
            return
        present = torch.tensor([float(p.grad is not None) for p in self._whole])
        present = present.to(self._whole[0].device)
        world.sum_(present)
        there = [p for p, n in zip(self._whole, present.tolist(), strict=True) if n]
        for dtype in dict.fromkeys(p.dtype for p in there):
            params = [p for p in there if p.dtype is dtype]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            world.sum_(flat)
            flat.div_(world.size)
            for param, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
                param.grad = part.view(param.shape)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor; its pieces are gathered, so all workers must ask for it.

    Raises:
        WorldBroken: a worker was lost meanwhile.
    """
    if isinstance(tensor, DTensor):
        with peers("gathering a tensor"):
            return tensor.full_tensor()
    return tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's piece of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def on_host(like: DTensor, dtype: torch.dtype | None = None) -> DTensor:
    """Room for a piece in host memory, cut as ``like`` is."""
    room = torch.empty_like(like.detach(), device="cpu", dtype=dtype or like.dtype)
    assert isinstance(room, DTensor), "so torch makes it"
    return room


def check_slots(parts: Mapping[str, Any]) -> None:
    """Refuse optimizers whose state is cut otherwise than their parameters.

    Nobody could tell how to cut it for other workers.

    Raises:
        ConfigError: there is such a state.
    """
    for part in parts.values():
        if not isinstance(part, torch.optim.Optimizer):
            continue
        for param, slots in part.state.items():
            for name, slot in slots.items():
                if isinstance(slot, DTensor) and not (
                    isinstance(param, DTensor)
                    and slot.shape == param.shape
                    and slot.placements == param.placements
                ):
                    raise ConfigError(
                        f"{type(part).__name__} keeps a sharded {name!r} of another form than its "
                        "parameter's, which cannot be saved for other numbers of workers: take "
                        "an optimizer whose state has its parameters' form (AdamW, SGD, ...)"
                    )


def layout_of(parts: Mapping[str, Any], now: Captured) -> Layout:
    """How the tensors of a saved state are cut over the present workers.

    Args:
        parts: What must survive, by name.
        now: The same, taken apart as it is now. It may lack what optimizers make in their
            first step: that is cut as its parameter is.
    """
    known = {name: t for name, t in now.tensors.items() if isinstance(t, DTensor)}
    of_slots = {
        f"/{name}/state/{index}": param
        for name, part in parts.items()
        if isinstance(part, torch.optim.Optimizer)
        for index, param in enumerate(_params_of(part))
        if isinstance(param, DTensor)
    }

    def layout(name: str, size: torch.Size, dtype: torch.dtype) -> DTensor | None:
        slot = re.match(r"(/[^/]+/state/\d+)/", name)
        like = known.get(name, of_slots.get(slot[1]) if slot else None)
        return on_host(like, dtype) if like is not None and like.shape == size else None

    return layout


def split_pieces(captured: Captured) -> tuple[Captured, dict[str, torch.Tensor]]:
    """What every worker holds all of, and this worker's pieces of the rest."""
    pieces: dict[str, torch.Tensor] = {
        name: t for name, t in captured.tensors.items() if isinstance(t, DTensor)
    }
    rest = {name: t for name, t in captured.tensors.items() if name not in pieces}
    return Captured(captured.skeleton, rest), pieces


def _units(modules: Iterable[nn.Module]) -> list[FSDPModule]:
    """Each module that ``fully_shard`` was applied to."""
    return [m for root in modules for m in root.modules() if isinstance(m, FSDPModule)]


def _params_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """In the order of their numbers in ``state_dict()``."""
    return [param for group in optimizer.param_groups for param in group["params"]]
