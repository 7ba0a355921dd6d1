"""Each test runs in a process of its own: what torch has declared once, it keeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str, *, path: Path | None = None) -> str:
    """The output of ``code`` in a fresh Python that finds modules in ``path`` first."""
    before = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run(
        [sys.executable, "-c", before + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fake_torchvision(folder: Path, version: str) -> Path:
    home = folder / "torchvision"
    home.mkdir()
    (home / "__init__.py").write_text("raise RuntimeError('nobody should import this')")
    (home / "version.py").write_text(f"__version__ = '{version}'\ngit_version = 'x'\n")
    (home / "_C.so").write_bytes(b"not a library that fits")
    return folder


MEND = "from spotray.train.vision_compat import mend_torchvision\nprint(mend_torchvision())\n"
DECLARED = "import torch\nprint(hasattr(torch.ops.torchvision, 'nms'))\n"


def test_timm_and_torchvision_can_be_imported_whatever_was_installed() -> None:
    code = (
        "from spotray.train.vision_compat import mend_torchvision\n"
        "mend_torchvision()\n"
        "import timm, torch, torchvision\n"
        "model = timm.create_model('vit_tiny_patch16_224', img_size=32, num_classes=10)\n"
        "print(tuple(model(torch.zeros(2, 3, 32, 32)).shape))\n"
    )
    assert run(code) == "(2, 10)"


def test_it_mends_where_torchvision_is_broken_and_only_there() -> None:
    works = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, check=False
    )
    assert run(MEND) == str(works.returncode != 0)


def test_it_imports_neither_torchvision_nor_timm_and_is_quick() -> None:
    code = (
        "import sys, time, torch\n"
        "from spotray.train.vision_compat import mend_torchvision\n"
        "start = time.perf_counter()\n"
        "mend_torchvision()\n"
        "print(time.perf_counter() - start, *({'timm', 'torchvision'} & set(sys.modules)))\n"
    )
    seconds, *loaded = run(code).split()
    assert loaded == []
    assert float(seconds) < 0.5  # milliseconds; the rest is for a loaded machine


def test_it_may_be_called_twice() -> None:
    first, second = run(MEND + "print(mend_torchvision())").split()
    assert first == second


def test_a_mended_operator_says_that_it_has_no_body(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "from spotray.train.vision_compat import mend_torchvision\n"
        "assert mend_torchvision() == (torch.version.cuda is None)\n"
        "try:\n"
        "    torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)\n"
        "except (NotImplementedError, AttributeError) as exc:\n"
        "    print(type(exc).__name__)\n"
    )
    assert run(code, path=fake_torchvision(tmp_path, "0.28.0+cu130")) in (
        "NotImplementedError",
        "AttributeError",
    )


@pytest.mark.parametrize("version", ["0.28.0", "0.28.0+cpu"])
def test_a_torchvision_that_is_no_cuda_build_is_left_alone(tmp_path: Path, version: str) -> None:
    fake = fake_torchvision(tmp_path, version)
    assert run(MEND + DECLARED, path=fake) == "False\nFalse"


def test_a_torch_with_cuda_is_left_alone(tmp_path: Path) -> None:
    cuda = "import torch.version\ntorch.version.cuda = '13.0'\n"
    fake = fake_torchvision(tmp_path, "0.28.0+cu130")
    assert run(cuda + MEND + DECLARED, path=fake) == "False\nFalse"


def test_a_library_that_loads_is_left_alone(tmp_path: Path) -> None:
    fake = fake_torchvision(tmp_path, "0.28.0+cu130")
    # Any shared library will do for one that fits.
    any_library = (
        "import torch, glob, os, shutil\n"
        "found = glob.glob(os.path.join(os.path.dirname(torch.__file__), 'lib', 'libshm.so'))\n"
        f"shutil.copy(found[0], {str(fake / 'torchvision' / '_C.so')!r})\n"
    )
    assert run(any_library + MEND + DECLARED, path=fake) == "False\nFalse"


def test_without_torchvision_there_is_nothing_to_mend() -> None:
    assert run("import sys; sys.modules['torchvision'] = None\n" + MEND) == "False"
