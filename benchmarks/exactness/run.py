"""What the same bits at any number of workers cost: the ordered sum against torch's DDP.

Both train the same model on the same samples, with the same micro-batches, in the same
processes, in turn: a block of steps of one, a block of the other. Each block of ours is
compared with the block of DDP beside it, so a machine that gets slower meanwhile slows both.
The ratio is the median over these pairs, with its quartiles. After the last step the weights are
hashed: same_bits says whether all numbers of workers ended with the same ones.

The processes talk over loopback, and each computes with one thread.
"""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script, from any folder
    sys.path.insert(0, str(Path(__file__).parents[2]))
# Before torch is imported, here and in the workers.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spotray
from benchmarks import bench
from spotray.train import session
from spotray.train.config import SpotConfig
from spotray.train.session import NoJournal, Session
from spotray.train.vision_compat import mend_torchvision
from spotray.train.world import World

MODELS = {"vit-tiny": "vit_tiny_patch16_224", "vit-small": "vit_small_patch16_224"}
SYSTEMS = ("ddp", "ordered", "ordered-bf16")
_WARM_UP_STEPS = 2
_SEED = 5


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all workers of one measurement do."""

    model: str
    workers: int
    systems: tuple[str, ...]
    shards: int  # micro-batches of a step, over all workers
    micro_batch: int  # samples
    image: int  # pixels, of each side
    blocks: int  # of each system
    steps: int  # of a block


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was measured, for each system."""

    seconds: dict[str, list[float]]  # of a step, block by block
    cpu_s: dict[str, float]  # of a step, over all workers
    hashes: dict[str, str]  # of the last weights


class Images(torch.utils.data.Dataset[Any]):
    """Noise with labels."""

    def __init__(self, count: int, side: int) -> None:
        rng = np.random.default_rng(_SEED)
        self.images = torch.from_numpy(rng.normal(size=(count, 3, side, side)).astype(np.float32))
        self.labels = torch.from_numpy(rng.integers(0, 10, size=count))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def model_of(job: Job) -> nn.Module:
    mend_torchvision()
    import timm

    torch.manual_seed(_SEED)
    made: nn.Module = timm.create_model(MODELS[job.model], img_size=job.image, num_classes=10)
    return made


def ddp_steps(job: Job, rank: int, data: Images, net: nn.Module) -> Iterator[None]:
    """Plain torch, as its documentation has it: the last micro-batch's backward pass sums."""
    model = DistributedDataParallel(net) if job.workers > 1 else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    held = [s for s in range(job.shards) if _holder(s, job) == rank]
    order = torch.Generator().manual_seed(_SEED)
    while True:
        ids = torch.randperm(len(data), generator=order)[: job.shards * job.micro_batch]
        mine = [ids[s * job.micro_batch : (s + 1) * job.micro_batch].tolist() for s in held]
        loader = torch.utils.data.DataLoader(data, batch_sampler=mine)
        for number, (x, y) in enumerate(loader):
            if job.workers > 1:
                model.require_backward_grad_sync = number == len(held) - 1  # as no_sync() does
            # DDP averages over workers, of which not all have as many micro-batches.
            loss = F.cross_entropy(model(x), y) * (job.workers / job.shards)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def ordered_steps(job: Job, rank: int, data: Images, net: nn.Module, wire: str) -> Iterator[None]:
    """The same loop with `spotray.Run`."""
    del rank
    run = spotray.Run(
        global_batch_size=job.shards * job.micro_batch,
        micro_batch_size=job.micro_batch,
        seed=_SEED,
        wire_dtype=wire,
    )
    model, optimizer, loader = run.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3), data)
    for _ in run.epochs(sys.maxsize):
        for number, (x, y) in enumerate(loader, start=1):
            run.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            if number % len(list(_held(job, run.rank))) == 0:
                yield


def work(job: Job, rank: int, rendezvous: str, answers: Any) -> None:
    """One worker: all systems in turn; rank 0 answers with seconds and hashes."""
    torch.set_num_threads(1)
    logging.getLogger("spotray").setLevel(logging.ERROR)  # it warns that nothing is saved here
    world = World()
    if job.workers > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=job.workers
        )
        world = World.from_process_group(device=torch.device("cpu"))
    here = Session(
        run_id="exactness",
        world=world,
        spot=SpotConfig(),
        store=None,
        shm_dir=None,
        node_id="",
        link=None,
        journal=NoJournal(),
    )
    session.enter(here)
    data = Images(job.shards * job.micro_batch * 8, job.image)
    nets: dict[str, nn.Module] = {}
    sides: dict[str, Iterator[None]] = {}
    for system in job.systems:
        nets[system] = model_of(job)
        if system == "ddp":
            sides[system] = ddp_steps(job, rank, data, nets[system])
        else:
            wire = "bfloat16" if system.endswith("bf16") else "float32"
            sides[system] = ordered_steps(job, rank, data, nets[system], wire)
        for _ in range(_WARM_UP_STEPS):
            next(sides[system])
    seconds: dict[str, list[float]] = {system: [] for system in job.systems}
    cpu_s = dict.fromkeys(job.systems, 0.0)
    for block in range(job.blocks):
        # There and back, so that no system is always the one after another.
        for system in job.systems if block % 2 == 0 else reversed(job.systems):
            if job.workers > 1:
                dist.barrier()
            began, cpu_began_s = time.perf_counter(), time.process_time()
            for _ in range(job.steps):
                next(sides[system])
            seconds[system].append((time.perf_counter() - began) / job.steps)
            cpu_s[system] += (time.process_time() - cpu_began_s) / job.steps / job.blocks
    hashes = {system: _sha256(net) for system, net in nets.items()}
    if job.workers > 1:
        everybody: list[Any] = [None] * job.workers
        dist.all_gather_object(everybody, (hashes, cpu_s))
        assert all(theirs == hashes for theirs, _ in everybody), "workers ended with other weights"
        cpu_s = {system: sum(cpu[system] for _, cpu in everybody) for system in job.systems}
        dist.destroy_process_group()
    if rank == 0:
        answers.put(Answer(seconds=seconds, cpu_s=cpu_s, hashes=hashes))


def measure(job: Job) -> Answer:
    """Start the workers, and wait for rank 0's answer."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(job, rank, f"{folder}/rendezvous", answers) for rank in range(job.workers)]
        workers = [context.Process(target=work, args=a, daemon=True) for a in arguments]
        for worker in workers:
            worker.start()
        try:
            found: Answer = answers.get(timeout=3600)
            for worker in workers:
                worker.join()
        finally:
            for worker in workers:
                worker.kill()
    return found


def rows_of(job: Job, answer: Answer) -> list[bench.Row]:
    """One row for each system; `same_bits` is known when all numbers of workers are."""
    rows = []
    seconds = answer.seconds
    for system in job.systems:
        step = bench.spread([1e3 * s for s in seconds[system]], inner=True)
        pairs = zip(seconds[system], seconds["ddp"], strict=True) if "ddp" in seconds else ()
        ratio = bench.spread([ours / ddp for ours, ddp in pairs], inner=True)
        assert step is not None, "a system has blocks"
        rows.append(
            {
                "system": system.removesuffix("-bf16"),
                "model": job.model,
                "workers": job.workers,
                "micro_batches": -(-job.shards // job.workers),
                "step_ms": round(step.median, 2),
                "step_time_ratio": round(ratio.median, 4) if ratio else None,
                "ratio_low": round(ratio.low, 4) if ratio else None,
                "ratio_high": round(ratio.high, 4) if ratio else None,
                "same_bits": None,
                "wire_dtype": "bfloat16" if system.endswith("bf16") else "float32",
                "cpu_ms": round(1e3 * answer.cpu_s[system], 1),
                "weights_sha256": answer.hashes[system],
                **{k: v for k, v in asdict(job).items() if k in ("image", "blocks", "steps")},
            }
        )
    return rows


def judge_bits(rows: list[bench.Row]) -> list[bench.Row]:
    """Say of each row whether all numbers of workers ended with the weights of one another."""
    judged = []
    for group in bench.by_key(rows, "model", "system", "wire_dtype").values():
        counts = len({row["workers"] for row in group})
        same = len({row["weights_sha256"] for row in group}) == 1 if counts > 1 else None
        judged += [{**row, "same_bits": same} for row in group]
    return judged


def _holder(shard: int, job: Job) -> int:
    return next(rank for rank in range(job.workers) if shard in _held(job, rank))


def _held(job: Job, rank: int) -> range:
    each, more = divmod(job.shards, job.workers)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


def _sha256(net: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in net.state_dict().items():
        digest.update(name.encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    arguments = bench.parser(__file__, __doc__)
    count, names = bench.at_least(1), bench.names
    arguments.add_argument("--models", type=names(MODELS), default=tuple(MODELS))
    arguments.add_argument("--systems", type=names(SYSTEMS), default=SYSTEMS)
    arguments.add_argument("--workers", type=names("1234"), default=tuple("1234"))
    arguments.add_argument("--shards", type=count, default=8, help="micro-batches of a step")
    arguments.add_argument("--micro-batch", type=count, default=8, help="samples")
    arguments.add_argument("--image", type=count, default=64, help="pixels of a side")
    arguments.add_argument("--blocks", type=count, default=12, help="of each system")
    arguments.add_argument("--steps", type=count, default=2, help="of a block")
    given = arguments.parse_args()
    if given.quick:
        given.models, given.blocks = ("vit-tiny",), 4
    bench.end_like_ctrl_c()
    print(bench.machine())
    rows: list[bench.Row] = []
    for model in given.models:
        for workers in map(int, given.workers):
            job = Job(
                model=model,
                workers=workers,
                systems=given.systems,
                shards=given.shards,
                micro_batch=given.micro_batch,
                image=given.image,
                blocks=given.blocks,
                steps=given.steps,
            )
            rows += rows_of(job, measure(job))
            last = [r for r in rows if (r["model"], r["workers"]) == (model, workers)]
            said = [f"{_label(r)} {r['step_ms']:.0f} ms ({r['step_time_ratio']})" for r in last]
            bench.say(f"{model}, {workers} workers: {', '.join(said)}")
    rows = judge_bits(rows)
    bench.write_rows(given.json, rows)
    columns = ("model", "workers", "system", "wire_dtype", "step_ms", "step_time_ratio")
    columns += ("ratio_low", "ratio_high", "cpu_ms", "same_bits")
    print(bench.table(columns, [[str(row[c]) for c in columns] for row in rows]))
    draw(given.json.with_suffix(".svg"), rows)
    wrong = [r for r in rows if r["system"] == "ordered" and r["same_bits"] is False]
    return 1 if wrong else 0


def draw(path: Path, rows: list[bench.Row]) -> None:
    """A picture of the step times."""
    given = [
        bench.Bar(
            group=f"{row['model']}, {row['workers']} workers",
            label=_label(row),
            parts=(("", row["step_ms"]),),
        )
        for row in rows
    ]
    bench.bars(path, given, title="Time of a step", unit="ms", log_scale=False)


def _label(row: bench.Row) -> str:
    return str(row["system"]) + (", bf16 wire" if row["wire_dtype"] == "bfloat16" else "")


if __name__ == "__main__":
    raise SystemExit(main())
