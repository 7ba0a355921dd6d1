"""Lets ``import timm`` work where torch is a CPU build and torchvision a CUDA one.

pip chooses the two wheels apart. On a machine whose index offers torch for CPU, it
may still bring the torchvision of PyPI, which is built for CUDA: its C library then
cannot be loaded, torchvision goes on without it, and a moment later dies of
``operator torchvision::nms does not exist``, as it describes two operators of that
library to the compiler whether or not they are there. timm imports torchvision, so
it dies too, though it needs neither. Declaring the two operators (without a body:
calling one still says that the library is missing) is enough for both to import.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from pathlib import Path

import torch

log = logging.getLogger(__name__)

_SCHEMAS = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)
_declared: list[torch.library.Library] = []  # a Library takes its operators with it when it goes


def mend_torchvision() -> bool:
    """Declare torchvision's operators if its C library does not fit this torch.

    To be called in each process before user code that may import timm or torchvision.
    It imports neither, costs about a millisecond, may be called again, and does nothing
    where torchvision is absent or works.

    Returns:
        Whether the operators are declared by us now.
    """
    if _declared:
        return True
    folder = _torchvision_folder()
    if folder is None or not _suspicious(folder) or _loads(folder):
        return False
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
    log.debug("torchvision in %s is not built for torch %s: mended", folder, torch.__version__)
    return True


def _torchvision_folder() -> Path | None:
    try:
        spec = importlib.util.find_spec("torchvision")  # of a top-level name: imports nothing
    except ValueError:  # somebody put a torchvision without a spec into sys.modules
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def _suspicious(folder: Path) -> bool:
    """Whether torchvision is a build for CUDA, and torch is none.

    The build is a suffix of torchvision's own version ("0.28.0+cu130"), which wheels
    from PyPI leave out of their metadata.
    """
    if torch.version.cuda is not None:
        return False
    try:
        version = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"""__version__\s*=\s*['"][^'"]*\+cu\d""", version) is not None


def _loads(folder: Path) -> bool:
    """Whether torchvision's C library can be loaded, as torchvision itself will find out."""
    for library in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            continue
        return True
    return False
