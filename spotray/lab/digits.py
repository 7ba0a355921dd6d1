"""Real data for a laptop: scikit-learn's handwritten digits, as Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spotray.errors import ConfigError

_PIXELS = 64  # 8 x 8
_BRIGHTEST = 16.0  # of a pixel in the source


@dataclass(frozen=True, kw_only=True)
class DigitsPaths:
    """Where the two Parquet files are, and how many rows each has."""

    train: Path
    test: Path
    train_rows: int
    test_rows: int


def write_digits(
    folder: str | Path, *, rows_per_group: int = 128, test_frac: float = 0.2, seed: int = 0
) -> DigitsPaths:
    """Write the 1,797 digits to ``folder`` as ``train.parquet`` and ``test.parquet``.

    Each row has ``image``, 64 float32 in 0..1 (8 rows of 8 pixels), and ``label``,
    int64 in 0..9. The same arguments write the same rows.

    Args:
        folder: Local; made if it is missing.
        rows_per_group: Rows of one Parquet row group, >= 1.
        test_frac: Fraction of the digits that is kept for the test, inside (0, 1).
        seed: Of the split.

    Raises:
        ConfigError: scikit-learn is not installed, or an argument is out of range.

    Source:
        E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
        Machine Learning Repository, 1998; the part that scikit-learn ships.
    """
    if rows_per_group < 1:
        raise ConfigError(f"rows_per_group={rows_per_group}: a row group has at least one row")
    try:
        from sklearn.datasets import load_digits
    except ImportError as exc:
        raise ConfigError(
            'the digits come with scikit-learn, which is missing: pip install "spotray[demo]"'
        ) from exc
    digits = load_digits()
    images = (digits.data / _BRIGHTEST).astype(np.float32)  # (1797, 64)
    labels = digits.target.astype(np.int64)  # (1797,)
    test_rows = round(len(labels) * test_frac)
    if not 0 < test_rows < len(labels):
        raise ConfigError(
            f"test_frac={test_frac} leaves {test_rows} of {len(labels)} digits for the test: "
            "give a fraction such as 0.2"
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    paths = DigitsPaths(
        train=home / "train.parquet",
        test=home / "test.parquet",
        train_rows=len(labels) - test_rows,
        test_rows=test_rows,
    )
    for path, rows in ((paths.test, order[:test_rows]), (paths.train, order[test_rows:])):
        table = pa.table(
            {
                "image": pa.FixedSizeListArray.from_arrays(images[rows].reshape(-1), _PIXELS),
                "label": labels[rows],
            }
        )
        pq.write_table(table, path, row_group_size=rows_per_group)
    return paths
