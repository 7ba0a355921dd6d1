from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from spotray.errors import ConfigError
from spotray.lab.digits import write_digits
from spotray.train.parquet import ParquetDataset


def test_every_digit_is_in_one_of_the_two_files(tmp_path: Path) -> None:
    paths = write_digits(tmp_path / "new", rows_per_group=100)
    train, test = ParquetDataset(paths.train), ParquetDataset(paths.test)
    assert (len(train), len(test)) == (paths.train_rows, paths.test_rows) == (1438, 359)
    assert train.row_groups == [100] * 14 + [38]
    rows = [*train, *test]
    images = torch.stack([row["image"] for row in rows])
    assert images.shape == (1797, 64)
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert {int(row["label"]) for row in rows} == set(range(10))
    distinct = {tuple(image.tolist()) for image in images}
    assert len(distinct) == 1797  # no digit twice


def test_the_same_arguments_write_the_same_rows(tmp_path: Path) -> None:
    one, two = write_digits(tmp_path / "1"), write_digits(tmp_path / "2")
    other = write_digits(tmp_path / "3", seed=1)
    assert pq.read_table(one.train).equals(pq.read_table(two.train))
    assert not pq.read_table(one.train).equals(pq.read_table(other.train))


def test_without_scikit_learn_the_cure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ConfigError, match=r'pip install "spotray\[demo\]"'):
        write_digits(tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("argument", "match"),
    [
        ({"rows_per_group": 0}, "rows_per_group=0"),
        ({"test_frac": 0.0}, "test_frac=0.0"),
        ({"test_frac": 1.0}, "test_frac=1.0"),
        ({"test_frac": -3.0}, "test_frac=-3.0"),
    ],
)
def test_arguments_out_of_range_are_named(
    tmp_path: Path, argument: dict[str, float], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        write_digits(tmp_path / "x", **argument)  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
