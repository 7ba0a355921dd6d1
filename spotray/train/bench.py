"""How many samples a machine trains in a second: warm-up, then rounds, their middle and spread.

The data is made up and lies on the device already: what is measured is the model on the
machine's GPUs and, with several, the exchange of gradients between them (torch's DDP).
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from spotray.errors import ConfigError

_WARM_STEPS = 3  # at least: kernels are chosen, memory is taken
_ROUNDS = 10
_JOIN_S = 60.0

Step = Callable[[], int]  # one training step; the samples that it took


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Samples per second of a machine, over rounds."""

    samples_per_s: float  # in the middle
    low_samples_per_s: float  # the second slowest of ten rounds
    high_samples_per_s: float
    rounds: int
    steps: int
    device: str  # "cpu", "NVIDIA A10G"
    workers: int


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """A timm model, trained on noise."""

    model: str
    batch_size: int = 32  # of one worker
    image_size: int | None = None  # None: the model's own

    def __post_init__(self) -> None:
        if self.batch_size < 1 or (self.image_size is not None and self.image_size < 1):
            raise ConfigError(
                f"--batch-size {self.batch_size}, --image-size {self.image_size}: give at least 1"
            )


def measure(
    step: Step,
    *,
    seconds: float,
    warmup_s: float,
    wait: Callable[[], None] = lambda: None,
    now_s: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], int]:
    """The samples per second of each round, and the steps of all.

    Args:
        step: is called again and again.
        seconds: of all rounds together, > 0; a round has at least one step.
        warmup_s: before the first.
        wait: until the device has done what it was given.
        now_s: a clock.

    Raises:
        ConfigError: a step says that it took no sample.
    """
    if not seconds > 0 or warmup_s < 0:
        raise ConfigError(f"--seconds is {seconds:g}, --warmup {warmup_s:g}: give a time above 0")
    begun_s, warm = now_s(), 0
    while warm < _WARM_STEPS or now_s() - begun_s < warmup_s:
        _samples(step)
        warm += 1
        wait()
    rates, steps = [], 0
    for _ in range(_ROUNDS):
        begun_s, samples = now_s(), 0
        while not samples or now_s() - begun_s < seconds / _ROUNDS:
            samples += _samples(step)
            steps += 1
        wait()
        rates.append(samples / (now_s() - begun_s))
    return rates, steps


def _samples(step: Step) -> int:
    taken = step()
    if not isinstance(taken, int) or isinstance(taken, bool) or taken < 1:
        raise ConfigError(f"step() answered {taken!r}: it returns how many samples it took")
    return taken


def speed_of(rates: Sequence[float], *, steps: int, device: str, workers: int) -> Speed:
    """The middle of rounds, and what all but the extreme ones lie between."""
    ordered = sorted(rates)
    edge = len(ordered) // 10
    return Speed(
        samples_per_s=statistics.median(ordered),
        low_samples_per_s=ordered[edge],
        high_samples_per_s=ordered[-1 - edge],
        rounds=len(ordered),
        steps=steps,
        device=device,
        workers=workers,
    )


def bench_script(file: Path, *, seconds: float, warmup_s: float) -> Speed:
    """The speed of ``step()`` of a Python file, in this process.

    Raises:
        ConfigError: the file cannot be read, has no ``step``, or fails; the message says how.
    """
    import torch

    step = getattr(_load(file), "step", None)
    if not callable(step):
        raise ConfigError(f"{file} has no step(): define one that trains and returns its samples")

    def guarded() -> int:
        try:
            taken: int = step()
        except Exception as exc:  # whatever the user's code raises
            raise ConfigError(f"{file}: step(): {type(exc).__name__}: {exc}") from exc
        return taken

    cuda = torch.cuda.is_available()
    wait = torch.cuda.synchronize if cuda else lambda: None
    rates, steps = measure(guarded, seconds=seconds, warmup_s=warmup_s, wait=wait)
    return speed_of(rates, steps=steps, device=_device(cuda), workers=1)


def _load(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"no file {file}: give a Python file with step(), or --model NAME")
    spec = importlib.util.spec_from_file_location("_benched", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is no Python file: it should end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent.resolve()))  # what it imports from beside itself
    try:
        spec.loader.exec_module(module)
    except Exception as exc:  # whatever the user's code raises
        raise ConfigError(f"{file}: {type(exc).__name__}: {exc}") from exc
    return module


def bench_model(job: ModelJob, *, seconds: float, warmup_s: float, workers: int = 0) -> Speed:
    """The speed of a timm model on this machine.

    Args:
        job: the model, and what it is given.
        seconds, warmup_s: as for `measure`.
        workers: processes that train together; 0: one for each GPU, or one on the CPU.

    Raises:
        ConfigError: no such model, or it cannot be trained so; the message says why.
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    count = workers or gpus or 1
    if count < 1 or (gpus and count > gpus):
        raise ConfigError(f"--workers is {workers}: this machine has {gpus} GPUs")
    check_model(job)
    device = _device(bool(gpus))
    if count == 1:
        rates, steps = _train(job, seconds, warmup_s, rank=0, world=1)
        return speed_of(rates, steps=steps, device=device, workers=1)
    return _together(job, seconds, warmup_s, count, device)


def check_model(job: ModelJob) -> None:
    """Raises: ConfigError: timm has no such model; the message names a near one."""
    import difflib

    from spotray.train.vision_compat import mend_torchvision

    mend_torchvision()
    import timm

    if not timm.is_model(job.model):
        near = difflib.get_close_matches(job.model, timm.list_models(), n=1, cutoff=0.0)
        raise ConfigError(f"timm has no model {job.model!r}: did you mean {near[0]}?")


def _device(cuda: bool) -> str:
    import torch

    return str(torch.cuda.get_device_name(0)) if cuda else "cpu"


def _train(
    job: ModelJob, seconds: float, warmup_s: float, *, rank: int, world: int
) -> tuple[list[float], int]:
    """One worker's rounds."""
    import torch
    from torch.nn import functional

    from spotray.train.vision_compat import mend_torchvision

    mend_torchvision()
    import timm

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    more: dict[str, Any] = {} if job.image_size is None else {"img_size": job.image_size}
    model: Any
    try:
        try:
            model = timm.create_model(job.model, **more)
        except TypeError:  # models without a fixed size take any, and no argument for it
            model = timm.create_model(job.model)
        shape = model.default_cfg["input_size"]
        side = job.image_size or shape[-1]
        x = torch.randn(job.batch_size, shape[0], side, side, device=device)
        y = torch.randint(0, model.num_classes, (job.batch_size,), device=device)
        net: Any = model.to(device)
        if world > 1:
            net = torch.nn.parallel.DistributedDataParallel(
                net, device_ids=[rank] if cuda else None
            )
        optimizer = torch.optim.AdamW(net.parameters())

        def step() -> int:
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
                loss = functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return job.batch_size

        wait = torch.cuda.synchronize if cuda else lambda: None
        # Workers step together, so all of them must make the same number of steps.
        if world > 1:
            return _counted(step, seconds, warmup_s, wait)
        return measure(step, seconds=seconds, warmup_s=warmup_s, wait=wait)
    except (RuntimeError, ValueError, KeyError, AssertionError) as exc:
        words = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        raise ConfigError(f"{job.model} cannot be trained so: {words}") from exc


def _counted(
    step: Step, seconds: float, warmup_s: float, wait: Callable[[], None]
) -> tuple[list[float], int]:
    """As `measure`, in a number of steps that all workers agree on before."""
    import torch
    import torch.distributed as dist

    for _ in range(_WARM_STEPS):
        step()
    wait()
    begun_s = time.perf_counter()
    step()
    wait()
    took = torch.tensor([time.perf_counter() - begun_s])
    dist.all_reduce(took.cuda() if dist.get_backend() == "nccl" else took, op=dist.ReduceOp.MAX)
    step_s = max(1e-6, float(took))
    for _ in range(int(warmup_s / step_s)):
        step()
    count = max(1, round(seconds / _ROUNDS / step_s))
    rates = []
    for _ in range(_ROUNDS):
        wait()
        begun_s = time.perf_counter()
        samples = sum(step() for _ in range(count))
        wait()
        rates.append(samples / (time.perf_counter() - begun_s))
    return rates, count * _ROUNDS


def _together(job: ModelJob, seconds: float, warmup_s: float, count: int, device: str) -> Speed:
    """Several workers on this machine; a round's rate is the sum of theirs."""
    context = multiprocessing.get_context("spawn")  # CUDA cannot be used after a fork
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = context.Queue()
    processes = [
        context.Process(
            target=_worker, args=(job, seconds, warmup_s, rank, count, port, queue), daemon=True
        )
        for rank in range(count)
    ]
    for one in processes:
        one.start()
    try:
        told = [_heard(queue, processes) for _ in processes]
    finally:
        for one in processes:
            one.join(timeout=_JOIN_S if sys.exc_info()[0] is None else 0.0)
            if one.is_alive():
                one.kill()
                one.join()
    rounds = zip(*(rates for rates, _ in told), strict=True)
    return speed_of(
        [sum(one) for one in rounds],
        steps=min(steps for _, steps in told),
        device=device,
        workers=count,
    )


def _heard(queue: Any, processes: Sequence[Any]) -> tuple[list[float], int]:
    """What the next worker says, unless one died without a word."""
    from queue import Empty

    while True:
        try:
            rates, steps, error = queue.get(timeout=1.0)
        except Empty:
            if dead := [one.exitcode for one in processes if one.exitcode]:
                raise ConfigError(
                    f"a worker ended with code {dead[0]}: see its words above"
                ) from None
            continue
        if error:
            raise ConfigError(error)
        return rates, steps


def _worker(
    job: ModelJob, seconds: float, warmup_s: float, rank: int, world: int, port: int, queue: Any
) -> None:
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank)
    else:  # else each takes all cores, and they wait for one another
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
        rates, steps = _train(job, seconds, warmup_s, rank=rank, world=world)
        queue.put((rates, steps, ""))
        dist.destroy_process_group()
    except ConfigError as exc:
        queue.put(([], 0, str(exc)))
