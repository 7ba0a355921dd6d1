"""torch's DistributedDataParallel, whose workers may change between two steps."""

# Annotations are not postponed here: torch compares those of a communication hook.

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spotray.train.world import World


class ElasticDDP(nn.Module):
    """Stands for a DistributedDataParallel over whatever workers there are.

    With one worker it passes everything on to the model itself. Names of parameters, the
    state dict, ``module`` and ``no_sync`` are those of a DistributedDataParallel.

    Args:
        module: The user's model; alike on all workers before the first step.
        world: The first workers.
        find_unused_parameters: As in DistributedDataParallel.
    """

    def __init__(self, module: nn.Module, world: World, *, find_unused_parameters: bool) -> None:
        super().__init__()
        self.module = module
        self._find_unused_parameters = find_unused_parameters
        self._world: World | None = None
        # Not as a submodule: its parameters are those of `module`.
        self._inner: tuple[DistributedDataParallel, ...] = ()
        self.enter(world)

    def enter(self, world: World) -> None:
        """Go on among these workers; they all must, before the next forward pass."""
        if world is self._world:
            return
        self._inner = ()  # first: its hooks on the parameters go with it
        self._world = world
        if world.size == 1:
            return
        inner = DistributedDataParallel(
            self.module,
            process_group=world.group,
            forward_sync_buffers=False,  # buffers go with the step's vector
            find_unused_parameters=self._find_unused_parameters,
            # It would broadcast the weights, which are the same already, and a peer that
            # is frozen meanwhile would hold this worker in there.
            init_sync=False,
        )
        if world.device.type != "cuda":  # NCCL's waits end when the communicator is aborted
            inner.register_comm_hook(_FailingSum(world), _mean)
        self._inner = (inner,)

    def forget(self) -> None:
        """A forward pass will not be followed by its backward pass: begin anew."""
        self._world = None

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the next backward pass sums over the workers."""
        return all(inner.require_backward_grad_sync for inner in self._inner)

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        for inner in self._inner:
            inner.require_backward_grad_sync = value

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As in DistributedDataParallel."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for inner in self._inner:
            return inner(*args, **kwargs)
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for inner in self._inner:
            inner.train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            for inner in self.__dict__.get("_inner", ()):
                return getattr(inner, name)
            raise


class _FailingSum:
    """What a communication hook does: the mean over all workers, which `World.fail` can end.

    DistributedDataParallel waits for it in C++, where nobody else can end the wait of gloo.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._open: list[torch.futures.Future[torch.Tensor]] = []
        world.on_fail(self._fail)

    def start(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin to average ``buffer``, in place."""
        buffer.div_(self._world.size)
        mean: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        work = dist.all_reduce(buffer, group=self._world.group, async_op=True)
        self._world.track(work)
        with self._lock:
            self._open.append(mean)
        if self._world.failed:
            self._fail(self._world.failed)

        def done(sum_: torch.futures.Future[list[torch.Tensor]]) -> None:
            error = None
            try:
                sum_.wait()
            except RuntimeError as exc:
                error = exc
            with self._lock:
                if mean not in self._open:
                    return  # failed meanwhile
                self._open.remove(mean)
            if error is not None:
                mean.set_exception(error)  # type: ignore[arg-type]  # torch declares it wrongly
            else:
                mean.set_result(buffer)

        work.get_future().add_done_callback(done)
        return mean

    def _fail(self, why: str) -> None:
        with self._lock:
            waiting, self._open = self._open, []
        for mean in waiting:
            mean.set_exception(RuntimeError(why))  # type: ignore[arg-type]  # as above


def _mean(state: _FailingSum, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return state.start(bucket.buffer())
