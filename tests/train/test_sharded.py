"""Models sharded by ``fully_shard``: their sum, their state at other numbers of workers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import init_device_mesh
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from spotray.errors import CheckpointError, ConfigError
from spotray.events import CheckpointCommitted, CheckpointRejected, Restored, SnapshotTaken, Warned
from spotray.storage import Store
from spotray.train import session as session_module
from spotray.train.checkpoint_files import read_checkpoint
from spotray.train.config import SpotConfig
from spotray.train.run import Run
from spotray.train.session import Progress, Session, StopRequest
from spotray.train.state import weights_sha256
from spotray.train.world import World
from tests.train.jobs import Images, Memory
from tests.train.workers import WorkerPool


class Net(nn.Module):
    """Rows that do not divide among workers, a BatchNorm, a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 33)
        self.norm = nn.BatchNorm1d(33)
        self.body = nn.Sequential(nn.Linear(33, 19), nn.GELU(), nn.Linear(19, 33))
        self.head = nn.Linear(33, 10)
        self.small = nn.Parameter(torch.ones(3))  # fewer rows than workers
        self.unused = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(x.flatten(1)))
        return self.head(x + self.body(x)) * self.small.prod()


class Link:
    """Asks for what the test says, at the step that it says."""

    def __init__(self, notice_at: int | None, stop_at: int | None) -> None:
        self._notice_at, self._stop_at = notice_at, stop_at
        self.told: list[Progress] = []
        self.held_at: list[int] = []

    @property
    def _step(self) -> int:
        return self.told[-1].step + 1 if self.told else 1

    def notice_deadline_s(self) -> float | None:
        noticed = self._notice_at is not None and self._step >= self._notice_at
        return 4e9 if noticed else None

    def asks_to_stop(self) -> StopRequest | None:
        return StopRequest("a test", False) if self._step == self._stop_at else None

    def progress(self, progress: Progress) -> None:
        self.told.append(progress)

    def held(self, *, step: int, why: str) -> None:
        self.held_at.append(step)

    def wait_for_end(self, timeout_s: float) -> None:
        return

    def losses(self) -> tuple[int, float]:
        return 0, 0.0

    def report(self, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        return


@contextmanager
def group_of_one(world: World) -> Iterator[None]:
    """Ray Train makes a process group for one worker too, which fully_shard needs."""
    if world.size > 1:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1
        )
        try:
            yield
        finally:
            dist.destroy_process_group()


def shard(net: Net, how: str) -> None:
    if how == "layers":  # the embedding, the norm and the head stay whole
        fully_shard(net.body)
    elif how == "copies":  # two copies of the model, each cut among half of the workers
        shape = (2, dist.get_world_size() // 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copy", "piece"))
        fully_shard(net.body, mesh=mesh)
        fully_shard(net, mesh=mesh)
    elif how != "none":
        fully_shard(net.body)
        fully_shard(net)


def full(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return np.array(value.detach() if isinstance(value, torch.Tensor) else value)


def state_of(models: Mapping[str, nn.Module], optimizer: Any) -> dict[str, Any]:
    state = {f"{n}/{k}": full(v) for n, m in models.items() for k, v in m.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        for name, value in slots.items():
            state[f"optimizer/{index}/{name}"] = full(value)
    return state


def train(
    world: World,
    folder: str | None = None,
    *,
    how: str = "all",
    stop_at: int | None = None,
    epochs: int = 2,
    spot: Mapping[str, Any] | None = None,
    run_args: Mapping[str, Any] | None = None,
    amp: bool = False,
    clip: bool = True,
    second: bool = False,
    evaluate: bool = False,
    abandon_at: int | None = None,
    notice_at: int | None = None,
    leave_at: int | None = None,
) -> dict[str, Any]:
    """One worker's training; after ``stop_at`` steps it ends, with the last state in storage."""
    with group_of_one(world):
        journal = Memory()
        link = Link(notice_at, leave_at)
        session = None
        if folder is not None:
            session = Session(
                run_id="r1",
                world=world,
                spot=SpotConfig(**{"checkpoint_interval_s": 86400.0, **(spot or {})}),
                store=Store.at(f"{folder}/store"),
                shm_dir=Path(folder) / f"shm-{world.rank}",
                node_id=f"n{world.rank}",
                link=link,
                journal=journal,
            )
        session_module.enter(session)
        try:
            arguments = {"global_batch_size": 16, "micro_batch_size": 4, "seed": 3}
            run = Run(**{**arguments, **(run_args or {})})  # type: ignore[arg-type]
            if session is None:
                run._stepping.world = world
            net = Net()
            shard(net, how)
            models: dict[str, nn.Module] = {"net": net}
            if second:
                models["second"] = nn.Linear(10, 10)
            params = [p for m in models.values() for p in m.parameters()]
            optimizer = torch.optim.AdamW(params, lr=2e-3, eps=1e-4)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=amp)
            prepared = run.prepare(*models.values(), optimizer, scaler, Images(70))
            optimizer, scaler, loader = prepared[-3:]
            first = state_of(models, optimizer)
            losses: list[float] = []
            norms: list[float] = []

            def result() -> dict[str, Any]:
                return {
                    "first": first,
                    "state": state_of(models, optimizer),
                    "losses": losses,
                    "norms": norms,
                    "step": run.step,
                    "sha256": run._weights,
                    "recomputed": weights_sha256(run._models),
                    "events": journal.events,
                    "progress": link.told,
                    "held": link.held_at,
                    "reduction": run.reduction,
                }

            for _ in run.epochs(epochs):
                for x, y in loader:
                    out = net(x)
                    if second:
                        out = out + models["second"](out)
                    loss = F.cross_entropy(out, y)
                    run.backward(scaler.scale(loss))
                    if abandon_at is not None and run.step >= abandon_at:
                        abandon_at = None
                        break
                    scaler.unscale_(optimizer)
                    if clip:
                        norm = full(torch.nn.utils.clip_grad_norm_(params, 0.5))
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                    if run._stepping.is_complete:
                        losses.append(run.loss or 0.0)
                        norms.append(float(norm) if clip else 0.0)
                        if stop_at is not None and run.step + 1 >= stop_at:
                            run._stepping.end_step()
                            saver = run._stepping.ready.keeper.saver
                            saver.checkpoint_now(run.step, run.epoch)
                            return result()
                if evaluate:
                    net.eval()
                    with torch.no_grad():
                        net(torch.zeros(4, 64))
                    net.train()
            run.finish()
            return result()
        finally:
            session_module.enter(None)


def job(world: Any, folder: str | None, options: dict[str, Any]) -> dict[str, Any]:
    return train(world, folder, **options)


def assert_same_bits(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), f"{name} differs: {a[name]} {b[name]}"


def assert_close(a: dict[str, Any], b: dict[str, Any], rtol: float = 1e-3) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=1e-4, err_msg=name)


def of(result: dict[str, Any], kind: type[Any]) -> list[Any]:
    return [e for e in result["events"] if isinstance(e, kind)]


@pytest.fixture(scope="module")
def undisturbed(workers: WorkerPool) -> dict[str, Any]:
    """The same loop in one process, with nothing sharded."""
    return dict(workers.run(1, job, None, {"how": "none"})[0])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_any_number_of_workers_agrees_with_an_unsharded_run(
    workers: WorkerPool, undisturbed: dict[str, Any], size: int
) -> None:
    # 4 shards a step, and 2 in an epoch's last one: some workers have fewer, some have none.
    for result in workers.run(size, job, None, {}):
        assert result["reduction"] == "fsdp"
        assert len(result["losses"]) == 10
        np.testing.assert_allclose(result["losses"], undisturbed["losses"], rtol=1e-4)
        np.testing.assert_allclose(result["norms"], undisturbed["norms"], rtol=1e-3)
        assert_close(result["state"], undisturbed["state"])


def test_who_asks_for_ddp_was_promised_no_bits(workers: WorkerPool, tmp_path: Path) -> None:
    options = {"epochs": 1, "run_args": {"reduction": "ddp"}}
    result = workers.run(2, job, str(tmp_path), options)[0]
    assert result["reduction"] == "fsdp"
    assert ["rounding" in e.what for e in of(result, Warned)] == [False]


@pytest.mark.parametrize("options", [{"how": "layers"}, {"second": True}, {"amp": True}])
def test_models_that_are_sharded_in_part_agree_with_an_unsharded_run(
    workers: WorkerPool, options: dict[str, Any]
) -> None:
    # torch clips no gradients of which some are sharded and others are not.
    options = {**options, "epochs": 1, "clip": False}
    reference = workers.run(1, job, None, {**options, "how": "none"})[0]
    for size in (2, 3):
        results = workers.run(size, job, None, options)
        for result in results:
            np.testing.assert_allclose(result["losses"], reference["losses"], rtol=1e-4)
            assert_close(result["state"], reference["state"])
            assert_same_bits(result["state"], results[0]["state"])


def test_an_evaluation_between_epochs_changes_nothing(
    workers: WorkerPool, undisturbed: dict[str, Any]
) -> None:
    # FSDP leaves the root's parameters gathered after a forward pass without a backward one.
    result = workers.run(3, job, None, {"evaluate": True})[0]
    np.testing.assert_allclose(result["losses"], undisturbed["losses"], rtol=1e-4)
    assert_close(result["state"], undisturbed["state"])


def test_a_step_that_the_loop_left_counts_for_nothing(workers: WorkerPool) -> None:
    # On one worker all 4 shards of a step are its own: the first one's gradient stays behind.
    reference = workers.run(1, job, None, {"how": "none", "abandon_at": 2})[0]
    assert len(reference["losses"]) == 2 + 5
    result = workers.run(1, job, None, {"abandon_at": 2})[0]
    np.testing.assert_allclose(result["losses"], reference["losses"], rtol=1e-4)
    assert_close(result["state"], reference["state"])


def test_4_2_3_1_workers_go_on_from_each_others_pieces(
    workers: WorkerPool, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    folder = str(tmp_path)
    before: dict[str, Any] | None = None
    losses: list[float] = []
    for size, stop_at in ((4, 2), (2, 5), (3, 7), (1, None)):
        results = workers.run(size, job, folder, {"stop_at": stop_at})
        for result in results:
            assert_same_bits(result["state"], results[0]["state"])
            if before is not None:
                assert_same_bits(result["first"], before["state"])
        if before is not None:
            restored = of(results[0], Restored)
            assert [(e.step, e.source) for e in restored] == [(before["step"], "checkpoint")]
            assert not of(results[0], Warned), "it was said at the start"
        losses += results[0]["losses"]
        before = results[0]
    assert before is not None
    assert any(name.endswith("exp_avg_sq") for name in before["first"])
    np.testing.assert_allclose(losses, undisturbed["losses"], rtol=1e-4)
    assert_close(before["state"], undisturbed["state"])
    assert before["sha256"] == before["recomputed"]


def test_copies_of_a_sharded_model_are_written_once_and_read_by_all(
    workers: WorkerPool, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    folder = str(tmp_path)
    first = workers.run(4, job, folder, {"how": "copies", "stop_at": 3})
    (written,) = (tmp_path / "store" / "checkpoints").iterdir()
    weight = FileSystemReader(written).read_metadata().state_dict_metadata["/model/embed.weight"]
    assert [tuple(chunk.offsets) for chunk in weight.chunks] == [(0, 0), (17, 0)]
    second = workers.run(3, job, folder, {"stop_at": 6})
    assert_same_bits(second[2]["first"], first[0]["state"])
    third = workers.run(2, job, folder, {"how": "copies"})
    assert_same_bits(third[1]["first"], second[0]["state"])
    assert_close(third[0]["state"], undisturbed["state"])


def test_the_weights_have_the_fingerprint_of_the_same_weights_unsharded(
    workers: WorkerPool, tmp_path: Path
) -> None:
    sharded = workers.run(3, job, str(tmp_path), {"epochs": 1})
    assert len({r["sha256"] for r in sharded}) == 1
    # A job that is not sharded goes on from the pieces, with the same bits.
    whole = workers.run(2, job, str(tmp_path), {"epochs": 1, "how": "none"})[0]
    assert_same_bits(whole["first"], sharded[0]["state"])
    assert whole["sha256"] == sharded[0]["sha256"]
    assert whole["losses"] == []


def test_the_final_checkpoint_is_whole_for_a_reader_of_its_own(
    workers: WorkerPool, tmp_path: Path
) -> None:
    result = workers.run(4, job, str(tmp_path), {"epochs": 1})[0]
    done = of(result, CheckpointCommitted)[-1]
    tensors = read_checkpoint(Store.at(done.path)).tensors
    weights = {n: v for n, v in result["state"].items() if n.startswith("net/")}
    assert_same_bits(
        {f"net/{n[7:]}": tensors[n].numpy() for n in tensors if "/model/" in n}, weights
    )


def test_no_snapshot_is_taken_and_it_is_said_once(workers: WorkerPool, tmp_path: Path) -> None:
    spot = {"snapshot_interval_s": 1e-9}
    result = workers.run(2, job, str(tmp_path), {"epochs": 1, "spot": spot})[0]
    assert not of(result, SnapshotTaken)
    bits, home = of(result, Warned)
    assert "up to rounding" in bits.what
    assert "storage alone" in home.what
    assert all(p.no_snapshots for p in result["progress"])


def damage(folder: Path, path: str, rank: int) -> None:
    (file,) = (folder / "store" / "checkpoints" / Path(path).name).glob(f"__{rank}_*")
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def test_one_damaged_piece_sends_all_workers_to_the_previous_checkpoint(
    workers: WorkerPool, tmp_path: Path
) -> None:
    saved = {}
    for stop_at in (2, 4):
        result = workers.run(4, job, str(tmp_path), {"stop_at": stop_at})[0]
        saved[stop_at] = (result["state"], of(result, CheckpointCommitted)[-1].path)
    # Of three workers, only one or two read what the last of four has written.
    damage(tmp_path, saved[4][1], rank=3)
    results = workers.run(3, job, str(tmp_path), {"stop_at": 3})
    for result in results:
        assert_same_bits(result["first"], saved[2][0])
    (rejected,) = of(results[0], CheckpointRejected)
    assert "differ from the manifest's" in rejected.why
    assert [(e.step, e.source) for e in of(results[0], Restored)] == [(2, "checkpoint")]


def test_damage_in_all_checkpoints_ends_the_job_on_every_worker(
    workers: WorkerPool, tmp_path: Path
) -> None:
    result = workers.run(2, job, str(tmp_path), {"stop_at": 2})[0]
    damage(tmp_path, of(result, CheckpointCommitted)[-1].path, rank=1)
    with pytest.raises(CheckpointError, match="all checkpoints of this job are damaged"):
        workers.run(3, job, str(tmp_path), {})


def test_a_planned_move_waits_for_storage(workers: WorkerPool, tmp_path: Path) -> None:
    results = workers.run(2, job, str(tmp_path), {"leave_at": 3})
    assert results[0]["held"] == [3]
    committed = [(e.step, e.why) for e in of(results[0], CheckpointCommitted)]
    assert committed == [(3, "interval"), (10, "end")]


def test_a_move_at_an_epochs_end_is_in_storage_before_the_loop_evaluates(
    workers: WorkerPool, tmp_path: Path
) -> None:
    results = workers.run(2, job, str(tmp_path), {"leave_at": 5})
    assert results[0]["held"] == [5]
    assert [e.step for e in of(results[0], CheckpointCommitted)] == [5, 5, 10]


def test_a_notice_brings_a_checkpoint_once_its_time_is_known(
    workers: WorkerPool, tmp_path: Path
) -> None:
    results = workers.run(2, job, str(tmp_path), {"leave_at": 3, "notice_at": 6})
    assert 6 in [e.step for e in of(results[0], CheckpointCommitted)]
    unknown = workers.run(2, job, str(tmp_path / "b"), {"notice_at": 6})
    assert [e.step for e in of(unknown[0], CheckpointCommitted)] == [10]


class RowSums(torch.optim.SGD):
    """Keeps one number for each row of a matrix."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for param in self.param_groups[0]["params"]:
            if param.grad is not None and param.dim() == 2:
                self.state[param]["sums"] = param.grad.sum(1)


def refused(world: World, case: str) -> str:
    """How `Run.prepare` refuses a model, in its words."""
    with group_of_one(world):
        run = Run(
            global_batch_size=16,
            micro_batch_size=4,
            wire_dtype="bfloat16" if case == "wire" else "float32",
        )
        if case != "alone":
            run._stepping.world = world
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters())
        if case == "replicated":
            mesh = init_device_mesh("cpu", (world.size,))
            weight = distribute_tensor(net.head.weight.detach(), mesh, [Replicate()])
            net.head.weight = nn.Parameter(weight)
        else:
            fully_shard(net)
        if case != "early":
            optimizer = torch.optim.AdamW(net.parameters())
        if case == "rows":
            optimizer = RowSums(net.parameters())  # type: ignore[assignment]
        try:
            _, optimizer, loader = run.prepare(net, optimizer, Images(32))
            for x, y in loader:
                run.backward(F.cross_entropy(net(x), y))
                optimizer.step()
            run._stepping.ready.keeper._state.capture()
        except ConfigError as exc:
            return str(exc)
        return ""


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("wire", "MixedPrecisionPolicy"),
        ("replicated", "sharded by fully_shard alone"),
        ("early", "make it after fully_shard"),
        ("alone", "is sharded over 2 processes, and 1 train"),
        ("rows", "of another form than its parameter's"),
    ],
)
def test_what_cannot_be_trained_is_refused(workers: WorkerPool, case: str, words: str) -> None:
    for told in workers.run(2, refused, case):
        assert words in told
        assert "\n" not in told
