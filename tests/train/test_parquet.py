from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotray.errors import ConfigError
from spotray.train.order import epoch_order
from spotray.train.parquet import ParquetDataset


def table_of(rows: range) -> pa.Table:
    ids = list(rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "image": pa.array([[i, i + 0.5] for i in ids], pa.list_(pa.float32(), 2)),
            "words": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.int32())),
            "name": pa.array([f"row {i}" for i in ids], pa.string()),
        }
    )


def write_folder(folder: Path, *, sizes: tuple[int, ...] = (10, 7), rows_per_group: int = 4) -> str:
    """Files a-0, a-1, ... that together hold ids 0, 1, 2, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, size in enumerate(sizes):
        table = table_of(range(start, start + size))
        pq.write_table(table, folder / f"a-{number}.parquet", row_group_size=rows_per_group)
        start += size
    return str(folder)


class CountingDataset(ParquetDataset):
    """Notes which row groups are read."""

    reads: list[tuple[str, int]]

    def _load(self, group: Any) -> Any:
        self.__dict__.setdefault("reads", []).append((group.file, group.index))
        return super()._load(group)


def pair(row: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return row["image"], int(row["id"])


def test_a_row_holds_tensors_and_python_objects(tmp_path: Path) -> None:
    row = ParquetDataset(write_folder(tmp_path))[6]
    assert row["id"].item() == 6
    assert row["id"].dtype == torch.int64
    assert row["image"].tolist() == [6.0, 6.5]
    assert row["image"].dtype == torch.float32
    assert row["words"].tolist() == [0, 1]
    assert row["name"] == "row 6"


def test_rows_keep_the_order_of_file_names_and_of_the_files(tmp_path: Path) -> None:
    dataset = ParquetDataset(write_folder(tmp_path), columns=["id"])
    assert len(dataset) == 17
    assert [int(row["id"]) for row in dataset] == list(range(17))
    assert dataset.row_groups == [4, 4, 2, 4, 3]


def test_an_index_past_either_end_is_an_index_error(tmp_path: Path) -> None:
    dataset = ParquetDataset(write_folder(tmp_path))
    assert int(dataset[-1]["id"]) == 16
    for index in (17, -18):
        with pytest.raises(IndexError, match=rf"row {index} of a dataset of 17 rows"):
            dataset[index]


@given(indices=st.lists(st.integers(-17, 16), max_size=40))
def test_many_rows_at_once_are_the_rows_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, indices: list[int]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "many"
    if not folder.exists():
        write_folder(folder)
    dataset = ParquetDataset(folder, transform=lambda row: (int(row["id"]), row["name"]))
    assert dataset.__getitems__(indices) == [(i % 17, f"row {i % 17}") for i in indices]
    assert [dataset[i] for i in indices] == dataset.__getitems__(indices)


def test_a_transform_makes_the_sample_and_torch_loads_it(tmp_path: Path) -> None:
    dataset = ParquetDataset(write_folder(tmp_path), columns=["image", "id"], transform=pair)
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=5))
    assert [x.shape for x, _ in batches] == [(5, 2), (5, 2), (5, 2), (2, 2)]
    assert torch.cat([y for _, y in batches]).tolist() == list(range(17))


def test_changing_a_sample_does_not_change_the_data(tmp_path: Path) -> None:
    dataset = ParquetDataset(write_folder(tmp_path))
    for column in ("image", "words", "id"):
        dataset[3][column].add_(100)
    assert dataset[3]["image"].tolist() == [3.0, 3.5]
    assert dataset[3]["words"].tolist() == [0, 1, 2]
    assert dataset[3]["id"].item() == 3


def test_only_footers_are_read_before_the_first_row(tmp_path: Path) -> None:
    dataset = CountingDataset(write_folder(tmp_path))
    assert not hasattr(dataset, "reads")
    dataset[9]
    dataset[8]
    assert dataset.reads == [("a-0.parquet", 2)]


@pytest.mark.parametrize("micro_batch", [1, 7, 32])
def test_the_elastic_order_reads_every_row_group_once(tmp_path: Path, micro_batch: int) -> None:
    dataset = CountingDataset(
        write_folder(tmp_path, sizes=(40, 40), rows_per_group=8),
        columns=["id"],
        cache_bytes=4 * 8 * 8,  # four row groups of eight int64: one window of the order
    )
    order = epoch_order(len(dataset), seed=1, epoch=0, blocks=dataset.row_groups)
    used = [
        int(row["id"])
        for start in range(0, len(order), micro_batch)
        for row in dataset.__getitems__([int(i) for i in order[start : start + micro_batch]])
    ]
    assert used == order.tolist()
    assert len(dataset.reads) == len(set(dataset.reads)) == 10


def test_the_cache_holds_no_more_bytes_than_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group_bytes = 4 * 8  # four int64
    dataset = CountingDataset(write_folder(tmp_path), columns=["id"], cache_bytes=2 * group_bytes)
    for i in (0, 4, 0, 8, 0, 4):  # the third row group drives out the second
        dataset[i]
    assert [index for _, index in dataset.reads] == [0, 1, 2, 1]
    assert "raise cache_bytes" in caplog.text


def test_a_row_group_larger_than_the_cache_is_read_all_the_same(tmp_path: Path) -> None:
    dataset = CountingDataset(write_folder(tmp_path), cache_bytes=0)
    assert [int(dataset[i]["id"]) for i in (0, 1, 5, 4)] == [0, 1, 5, 4]
    assert len(dataset.reads) == 2


def test_a_pickled_dataset_takes_no_data_along(tmp_path: Path) -> None:
    dataset = ParquetDataset(
        write_folder(tmp_path, sizes=(20_000,), rows_per_group=5_000), transform=pair
    )
    dataset[0]
    data = pickle.dumps(dataset)
    assert len(data) < 5_000
    again = pickle.loads(data)
    assert again[12_345][1] == 12_345
    assert again.row_groups == dataset.row_groups


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_torch_loader_processes_read_the_same_rows(tmp_path: Path, method: str) -> None:
    dataset = ParquetDataset(write_folder(tmp_path), columns=["image", "id"], transform=pair)
    dataset[0]  # a fork inherits an open dataset
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=4, num_workers=1, multiprocessing_context=method
    )
    assert torch.cat([y for _, y in loader]).tolist() == list(range(17))


def test_one_file_is_a_dataset(tmp_path: Path) -> None:
    file = tmp_path / "no-suffix"
    pq.write_table(table_of(range(3)), file)
    assert [int(row["id"]) for row in ParquetDataset(file)] == [0, 1, 2]


def test_other_files_hidden_files_and_empty_row_groups_are_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path / "part=1", sizes=(3,))
    pq.write_table(table_of(range(0)), tmp_path / "empty.parquet")
    (tmp_path / "README.txt").write_text("not data")
    (tmp_path / "_tmp").mkdir()
    (tmp_path / "_tmp" / "half.parquet").write_bytes(b"PAR1")
    (tmp_path / ".x.parquet").write_bytes(b"")
    dataset = ParquetDataset(tmp_path)
    assert dataset.row_groups == [3]
    assert int(dataset[2]["id"]) == 2


KINDS = {
    "bool": (pa.bool_(), [True, False, True], torch.bool),
    "uint8": (pa.uint8(), [0, 255, 3], torch.uint8),
    "uint16": (pa.uint16(), [0, 65_535, 3], torch.uint16),
    "float16": (pa.float16(), [np.float16(0.5)] * 3, torch.float16),
    "float64": (pa.float64(), [0.1, 0.2, 0.3], torch.float64),
    "dictionary": (pa.dictionary(pa.int32(), pa.int64()), [7, 8, 7], torch.int64),
    "nested": (pa.list_(pa.list_(pa.int64(), 2), 2), [[[1, 2], [3, 4]]] * 3, torch.int64),
    "list of one length": (pa.list_(pa.int16()), [[1, 2]] * 3, torch.int16),
    "large list": (pa.large_list(pa.int64()), [[1], [], [2, 3]], torch.int64),
    "ragged rows of pairs": (
        pa.list_(pa.list_(pa.float32(), 2)),
        [[[1, 2]], [], [[3, 4], [5, 6]]],
        torch.float32,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_at_any_depth_become_tensors(tmp_path: Path, kind: str) -> None:
    arrow, values, dtype = KINDS[kind]
    pq.write_table(pa.table({"x": pa.array(values, arrow)}), tmp_path / "x.parquet")
    rows = [row["x"] for row in ParquetDataset(tmp_path)]
    assert {row.dtype for row in rows} == {dtype}
    assert [row.tolist() for row in rows] == values


def test_a_tensor_column_keeps_its_shape(tmp_path: Path) -> None:
    cubes = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(cubes)
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    assert torch.equal(ParquetDataset(tmp_path)[1]["x"], torch.from_numpy(cubes[1]))


def test_what_no_tensor_holds_stays_a_python_object(tmp_path: Path) -> None:
    table = pa.table({"jpeg": [b"\xff\xd8", None], "deep": [[[1], [2, 3]], []]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert list(ParquetDataset(tmp_path)) == [
        {"jpeg": b"\xff\xd8", "deep": [[1], [2, 3]]},
        {"jpeg": None, "deep": []},
    ]


def test_a_missing_float_is_nan_and_a_missing_integer_an_error(tmp_path: Path) -> None:
    table = pa.table({"f": [1.0, None], "i": [1, None], "l": [[1, 2], None]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert torch.isnan(ParquetDataset(tmp_path, columns=["f"])[1]["f"])
    for column in ("i", "l"):
        with pytest.raises(ConfigError, match=f"'{column}' has missing values in x.parquet"):
            ParquetDataset(tmp_path, columns=[column])[0]


# -- bad input ------------------------------------------------------------------


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/nowhere does not exist"):
        ParquetDataset(tmp_path / "nowhere")


def test_a_folder_without_parquet_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b")
    with pytest.raises(ConfigError, match=r"has no Parquet files: none of its 1 files"):
        ParquetDataset(tmp_path)


def test_an_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"no column 'imgae'.*did you mean 'image'"):
        ParquetDataset(folder, columns=["imgae"])
    with pytest.raises(ConfigError, match=r"no column 'zzzz'.*there are \['id', 'image'"):
        ParquetDataset(folder, columns=["zzzz"])
    with pytest.raises(ConfigError, match="leaves nothing to read"):
        ParquetDataset(folder, columns=[])
    with pytest.raises(TypeError, match=r"write \['id'\]"):
        ParquetDataset(folder, columns="id")


def test_files_of_different_schemas_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    pq.write_table(pa.table({"id": pa.array([1.5])}), tmp_path / "b.parquet")
    with pytest.raises(ConfigError, match=r"a-0.parquet and b.parquet have different columns"):
        ParquetDataset(tmp_path)
    with pytest.raises(ConfigError, match=r"'id' is int64 in a-0.parquet and double in b.parquet"):
        ParquetDataset(tmp_path, columns=["id"])
    with pytest.raises(ConfigError, match=r"'name' is string in a-0.parquet and missing in b"):
        ParquetDataset(tmp_path, columns=["name"])


def test_a_dataset_without_rows_is_an_error(tmp_path: Path) -> None:
    pq.write_table(table_of(range(0)), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"has no rows: training needs at least one sample"):
        ParquetDataset(tmp_path)


@pytest.mark.parametrize("data", [b"", b"PAR1 is how it begins, and not more"])
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes) -> None:
    write_folder(tmp_path)
    (tmp_path / "bad.parquet").write_bytes(data)
    with pytest.raises(ConfigError, match=r"cannot read bad.parquet as Parquet") as caught:
        ParquetDataset(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_changed_is_named_and_not_misread(tmp_path: Path) -> None:
    dataset = ParquetDataset(write_folder(tmp_path))
    again = pickle.loads(pickle.dumps(dataset))
    write_folder(tmp_path, sizes=(3, 7))
    with pytest.raises(ConfigError, match=r"a-0.parquet is not the file any more"):
        again[0]


# -- object storage ---------------------------------------------------------------


def upload(s3_server: Any, source: Path) -> None:
    import boto3

    for file in source.iterdir():
        boto3.client("s3").upload_file(str(file), s3_server.bucket, f"data/{file.name}")


def test_a_bucket_reads_as_a_folder_does(tmp_path: Path, s3_server: Any) -> None:
    write_folder(tmp_path)
    upload(s3_server, tmp_path)
    dataset = ParquetDataset(f"s3://{s3_server.bucket}/data", columns=["id"])
    assert [int(row["id"]) for row in dataset] == list(range(17))
    again = pickle.loads(pickle.dumps(dataset))
    assert int(again[16]["id"]) == 16
    one = ParquetDataset(f"s3://{s3_server.bucket}/data/a-1.parquet")
    assert int(one[0]["id"]) == 10


def test_the_address_of_the_server_may_stand_in_the_url(
    tmp_path: Path, s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path)
    upload(s3_server, tmp_path)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    host = s3_server.endpoint_url.removeprefix("http://")
    dataset = ParquetDataset(
        f"s3://{s3_server.bucket}/data?scheme=http&endpoint_override={host}&region=us-east-1"
    )
    assert int(dataset[16]["id"]) == 16


def test_a_forked_loader_reads_from_a_bucket(tmp_path: Path, s3_server: Any) -> None:
    write_folder(tmp_path)
    upload(s3_server, tmp_path)
    dataset = ParquetDataset(
        f"s3://{s3_server.bucket}/data", columns=["image", "id"], transform=pair
    )
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    assert torch.cat([y for _, y in loader]).tolist() == list(range(17))


def test_a_missing_bucket_or_folder_is_named(s3_server: Any) -> None:
    for url in (f"s3://{s3_server.bucket}/nothing-here", "s3://no-such-bucket-9/data"):
        with pytest.raises(ConfigError, match=url):
            ParquetDataset(url)
