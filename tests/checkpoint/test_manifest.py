"""A reader takes a checkpoint that is whole, or none."""

from __future__ import annotations

import hashlib
import json
import math
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import MANIFEST, Manifest, Retention, folder_name
from spotray.errors import CheckpointCorrupt, ConfigError
from spotray.storage import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.at(tmp_path)


def fill(
    store: Store,
    step: int,
    *,
    text: str = "",
    name: str | None = None,
    extra: dict[str, Any] | None = None,
) -> Manifest:
    """A committed checkpoint of two files."""
    folder = store.child(name or folder_name(step))
    files = {}
    for rank in range(2):
        data = f"step {step} rank {rank} {text}".encode() * 100
        file = f"rank{rank}.bin"
        folder.write(file, data)
        files[file] = (len(data), hashlib.sha256(data).hexdigest())
    manifest = Manifest(
        run_id="r1",
        step=step,
        epoch=3,
        world_size=2,
        created_at_s=1.5,
        files=files,
        global_batch_size=64,
        state={"model.w": "float32[2, 3]"},
        extra=extra or {"who": "test"},
    )
    manifests.write(folder, manifest)
    return manifest


def test_a_manifest_is_read_as_it_was_written(store: Store) -> None:
    manifest = fill(store, 120)
    assert manifests.read(store.child("step-00000120")) == manifest
    manifests.verify(store.child("step-00000120"), manifest)


@pytest.mark.parametrize("keep_frac", [0.0, 0.3, 0.99])
def test_half_a_manifest_is_corrupt(store: Store, keep_frac: float) -> None:
    fill(store, 1)
    folder = store.child(folder_name(1))
    data = folder.read(MANIFEST)
    folder.write(MANIFEST, data[: int(len(data) * keep_frac)])
    with pytest.raises(CheckpointCorrupt, match=MANIFEST):
        manifests.read(folder)


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"format": 1}', "{}", '"x"', "\x00"])
def test_other_json_is_corrupt(store: Store, text: str) -> None:
    store.write(MANIFEST, text.encode())
    with pytest.raises(CheckpointCorrupt, match=MANIFEST):
        manifests.read(store)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", "12"),
        ("step", True),
        ("world_size", None),
        ("files", {"a": [1]}),
        ("files", {"a": ["1", "x"]}),
        ("files", []),
        ("run_id", 5),
        ("surprise", 1),
    ],
)
def test_wrong_types_are_corrupt_even_with_a_right_digest(
    store: Store, field: str, value: Any
) -> None:
    fill(store, 1)
    folder = store.child(folder_name(1))
    fields = json.loads(folder.read(MANIFEST))
    version, _ = fields.pop("format"), fields.pop("digest")
    fields[field] = value
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    folder.write(MANIFEST, json.dumps({"format": version, "digest": digest, **fields}).encode())
    with pytest.raises(CheckpointCorrupt, match="is not understood"):
        manifests.read(folder)


def test_a_changed_step_number_is_noticed(store: Store) -> None:
    fill(store, 12)
    folder = store.child(folder_name(12))
    folder.write(MANIFEST, folder.read(MANIFEST).replace(b'"step": 12', b'"step": 13'))
    with pytest.raises(CheckpointCorrupt, match="digest"):
        manifests.read(folder)


def test_a_newer_format_is_told(store: Store) -> None:
    fill(store, 1)
    folder = store.child(folder_name(1))
    folder.write(MANIFEST, folder.read(MANIFEST).replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(CheckpointCorrupt, match="has format 2"):
        manifests.read(folder)


def test_verify_names_the_file_that_is_wrong(store: Store) -> None:
    manifest = fill(store, 1)
    folder = store.child(folder_name(1))
    data = folder.read("rank1.bin")
    folder.write("rank1.bin", b"X" + data[1:])
    manifests.verify(folder, manifest, checksums=False)
    with pytest.raises(CheckpointCorrupt, match=r"rank1\.bin is damaged"):
        manifests.verify(folder, manifest)
    folder.write("rank1.bin", data[:-1])
    with pytest.raises(CheckpointCorrupt, match=r"rank1\.bin has \d+ bytes instead of \d+"):
        manifests.verify(folder, manifest, checksums=False)
    folder.delete("rank1.bin")
    with pytest.raises(CheckpointCorrupt, match=r"rank1\.bin is missing"):
        manifests.verify(folder, manifest, checksums=False)


def test_checkpoints_are_listed_newest_first(store: Store) -> None:
    for step in (5, 120, 99_999_999_9):
        fill(store, step)
    store.write("step-00000200/rank0.bin", b"not committed")
    store.write("other/manifest.json", b"{}")
    assert [step for step, _ in manifests.list_checkpoints(store)] == [999999999, 120, 5]


def test_the_newest_valid_one_is_found_behind_damaged_ones(store: Store) -> None:
    expected = fill(store, 10)
    fill(store, 20)
    fill(store, 30)
    store.write("step-00000020/rank0.bin", b"damaged")
    store.write("step-00000030/manifest.json", b"{")
    rejected: list[tuple[str, str]] = []
    found = manifests.newest_valid(store, lambda name, why: rejected.append((name, why)))
    assert found == ("step-00000010", expected)
    assert [name for name, _ in rejected] == ["step-00000030", "step-00000020"]
    assert "rank0.bin" in rejected[1][1]


def test_a_manifest_in_another_steps_folder_is_rejected(store: Store) -> None:
    fill(store, 10)
    store.write("step-00000011/manifest.json", store.read("step-00000010/manifest.json"))
    rejected: list[str] = []
    found = manifests.newest_valid(store, lambda name, why: rejected.append(name))
    assert found is not None
    assert found[0] == "step-00000010"
    assert rejected == ["step-00000011"]


def test_an_empty_folder_has_no_checkpoint(store: Store) -> None:
    assert manifests.newest_valid(store, lambda name, why: None) is None


def test_storage_that_fails_does_not_make_a_checkpoint_corrupt(store: Store) -> None:
    class Broken(Store):
        def read(self, name: str) -> bytes:
            raise OSError("network is down")

    fill(store, 10)
    broken = Broken(store.fs, store.child(folder_name(10)).root, url=store.url)
    with pytest.raises(OSError, match="network is down"):
        manifests.read(broken)


def test_retain_keeps_the_newest_whole_ones(store: Store) -> None:
    for step in (10, 20, 30, 40):
        fill(store, step)
    store.write("step-00000040/rank0.bin", b"damaged")
    store.write("step-00000015/rank0.bin", b"its writer died")
    store.write("step-00000050/rank0.bin", b"its writer is at it")
    removed = manifests.retain(store, Retention(last=2))
    assert removed == ["step-00000010", "step-00000015"]
    assert [step for step, _ in manifests.list_checkpoints(store)] == [40, 30, 20]
    assert store.exists("step-00000050/rank0.bin")


def names(store: Store) -> list[str]:
    return [name for _, name in manifests.list_checkpoints(store)]


def test_what_ended_a_training_is_never_removed(store: Store) -> None:
    for step in (10, 20, 30, 40):
        fill(store, step, extra={"final": step == 20})
    manifests.retain(store, Retention(last=1))
    assert names(store) == ["step-00000040", "step-00000020"]


LOSSES: dict[int, Any] = {10: 0.5, 20: 0.3, 30: 0.3, 40: math.nan, 50: "0.1", 60: None, 70: 0.4}


@pytest.mark.parametrize(("direction", "best"), [("min", 20), ("max", 10)])
def test_the_best_one_stays_and_of_equal_ones_the_oldest(
    store: Store, direction: Literal["min", "max"], best: int
) -> None:
    for step, loss in LOSSES.items():
        fill(store, step, extra={"metrics": {"loss": loss} if loss is not None else {}})
        manifests.retain(store, Retention(last=1, best=("loss", direction)))
    assert names(store) == ["step-00000070", f"step-{best:08d}"]


def test_without_its_metric_no_checkpoint_is_the_best(store: Store) -> None:
    for step in (10, 20):
        fill(store, step)
    manifests.retain(store, Retention(last=1, best=("accuracy", "max")))
    assert names(store) == ["step-00000020"]


def test_the_first_one_after_each_multiple_of_steps_stays(store: Store) -> None:
    for step in (30, 90, 110, 190, 200, 350, 390, 410, 440):
        fill(store, step)
        manifests.retain(store, Retention(last=1, every_steps=100))
    assert [step for step, _ in manifests.list_checkpoints(store)] == [440, 410, 350, 200, 110]


def test_of_one_step_the_newest_workers_checkpoint_counts_and_the_others_go(store: Store) -> None:
    for step, generation, attempt in [(10, 1, 1), (20, 1, 1), (20, 2, 1), (20, 2, 2)]:
        fill(store, step, name=folder_name(step, generation, attempt))
    assert names(store)[0] == "step-00000020-g2.2"
    manifests.retain(store, Retention(last=2), generation=2)
    assert names(store) == ["step-00000020-g2.2", "step-00000010-g1"]


def test_names_of_all_generations_are_in_the_order_of_their_age(store: Store) -> None:
    for name in ("step-00000020", "step-00000020-g10", "step-00000020-g9.11", "step-00000020-g9.2"):
        fill(store, 20, name=name)
    for name in ("step-00000030-g", "step-00000030-g1.", "step-00000030-x1", "step-30-g1"):
        fill(store, 30, name=name)
    assert names(store) == [
        "step-00000020-g10",
        "step-00000020-g9.11",
        "step-00000020-g9.2",
        "step-00000020",
    ]


def test_leftovers_of_older_workers_go_and_what_is_being_written_stays(store: Store) -> None:
    fill(store, 40, name=folder_name(40, 3))
    left = ["step-00000010", "step-00000050-g2", "step-00000040-g2.2", "step-00000030-g3"]
    being_written = ["step-00000050-g3", "step-00000040-g3.2", "step-00000020-g4"]
    for name in [*left, *being_written]:
        store.write(f"{name}/rank0.bin", b"no manifest yet")
    assert manifests.retain(store, Retention(), generation=3) == sorted(left)
    for name in being_written:
        assert store.exists(f"{name}/rank0.bin")


@pytest.mark.parametrize("wrong", [{"last": 0}, {"every_steps": 0}])
def test_retention_needs_numbers_above_0(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"is 0: (keep at least 1|give 1 or more)"):
        Retention(**wrong)  # type: ignore[arg-type]


class Crash(Exception):
    """The process died."""


class MortalStore(Store):
    """A store whose user dies after ``life`` more operations on files.

    The operation during which it dies may leave half a data file behind, which is
    worse than a `Store` promises; only a manifest is always whole or not there.
    """

    life: list[int] = [1 << 30]  # shared by children; `with_life` gives a new one

    def child(self, *parts: str) -> Store:
        plain = super().child(*parts)
        child = MortalStore(plain.fs, plain.root, url=plain.url)
        child.life = self.life
        return child

    @contextmanager
    def open_output(self, name: str) -> Iterator[BinaryIO]:
        with super().open_output(name) as stream:
            dying = self.life[0] <= 0
            if dying and name == MANIFEST:
                raise Crash
            yield stream
            if dying:
                stream.truncate(stream.tell() // 2)
        self._spend()

    def delete(self, name: str) -> None:
        self._spend()
        super().delete(name)

    def delete_tree(self, name: str = "") -> None:
        names = [file for file, _ in self.list(name)]
        random.Random(len(names)).shuffle(names)
        for file in names:
            self.delete(file)
        super().delete_tree(name)

    def _spend(self) -> None:
        self.life[0] -= 1
        if self.life[0] < 0:
            raise Crash


class CrashingWriter(RuleBasedStateMachine):
    """Writers that die anywhere, one after the other, beside a reader that never fails."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="spotray-test-")
        self.store = Store.at(self.folder.name)
        self.step = 0
        self.attempts = 0
        self.committed: dict[int, Manifest] = {}

    def mortal(self, life: int) -> MortalStore:
        store = MortalStore(self.store.fs, self.store.root, url=self.store.url)
        store.life = [life]
        return store

    @rule(life=st.integers(0, 12), again=st.booleans())
    def write(self, life: int, again: bool) -> None:
        """A new step, or the one once more that the last writer died at."""
        if not again or self.step in self.committed:
            self.step += 10
        self.attempts += 1
        try:
            manifest = fill(self.mortal(life), self.step, text=f"attempt {self.attempts}")
        except Crash:
            return
        self.committed[self.step] = manifest

    @rule(life=st.integers(0, 12), keep_last=st.integers(1, 3))
    def retain(self, life: int, keep_last: int) -> None:
        try:
            manifests.retain(self.mortal(life), Retention(last=keep_last))
        except Crash:
            return
        assert len(manifests.list_checkpoints(self.store)) <= keep_last

    @invariant()
    def whatever_looks_committed_is_whole(self) -> None:
        for _, name in manifests.list_checkpoints(self.store):
            manifests.verify(self.store.child(name), manifests.read(self.store.child(name)))

    @invariant()
    def the_newest_commit_is_found_whole(self) -> None:
        rejected: list[str] = []
        found = manifests.newest_valid(self.store, lambda name, why: rejected.append(name))
        if not self.committed:
            assert found is None or found[1].step > 0
            return
        assert found is not None
        assert found[1].step >= max(self.committed)
        if found[1].step in self.committed:
            assert found[1] == self.committed[found[1].step]
        assert rejected == []  # what is half there was never committed

    def teardown(self) -> None:
        self.folder.cleanup()


CrashingWriter.TestCase.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
TestCrashingWriter = CrashingWriter.TestCase
