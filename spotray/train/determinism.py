"""torch's switches for kernels that give the same bits each time they run.

The order of samples, of random numbers and of the gradient sum is fixed anyhow. What is
left are kernels, above all on GPUs, that add with atomics or are chosen by a race.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
# torch has no class for these warnings.
_NO_SUCH_KERNEL = re.compile(r"(?P<kernel>\S+) does not have a deterministic implementation")
_CUBLAS = "not deterministic because it uses CuBLAS"

Tell = Callable[[str], None]


def use_deterministic_kernels(tell: Tell) -> Callable[[], None]:
    """Take kernels that give the same bits each time, wherever torch has one.

    They may be slower. Where torch has none, the other one runs. cuBLAS reads its
    environment variable once, so this belongs before the first use of a GPU. Calls may be
    nested; the first one's ``tell`` is told.

    Args:
        tell: Called with one line, once for each kernel without a deterministic form.

    Returns:
        What puts the former switches back, once all calls are undone; more than one call
        of it does nothing.
    """
    global _switched
    if _switched is None:
        _switched = _Switched(_Switches.now(), tell)
        _Switches(True, True, True, False, os.environ.get(_WORKSPACE, ":4096:8")).use()
        warnings.showwarning = _switched.show
    _switched.uses += 1
    undone = False

    def put_back() -> None:
        nonlocal undone
        if not undone:
            undone = True
            _undo()

    return put_back


def _undo() -> None:
    global _switched
    assert _switched is not None, "undone as often as done"
    _switched.uses -= 1
    if _switched.uses == 0:
        _switched.former.use()
        if warnings.showwarning == _switched.show:  # else somebody has put another one over it
            warnings.showwarning = _switched.former_show
        _switched = None


@dataclass(frozen=True)
class _Switches:
    algorithms: bool
    warn_only: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    workspace: str | None  # the environment variable; None: not set

    @classmethod
    def now(cls) -> _Switches:
        return cls(
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
            os.environ.get(_WORKSPACE),
        )

    def use(self) -> None:
        torch.use_deterministic_algorithms(self.algorithms, warn_only=self.warn_only)
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        if self.workspace is None:
            os.environ.pop(_WORKSPACE, None)
        else:
            os.environ[_WORKSPACE] = self.workspace


class _Switched:
    """What to go back to, and who hears of kernels that are not deterministic."""

    def __init__(self, former: _Switches, tell: Tell) -> None:
        self.former = former
        self.former_show: Callable[..., None] = warnings.showwarning
        self.uses = 0
        self._tell = tell
        self._told: set[str] = set()

    def show(self, message: Warning | str, *args: Any, **kwargs: Any) -> None:
        """Stands for `warnings.showwarning`."""
        text = str(message)
        found = _NO_SUCH_KERNEL.search(text)
        kernel = found["kernel"] if found else "cuBLAS" if _CUBLAS in text else ""
        if not kernel:
            self.former_show(message, *args, **kwargs)
        elif kernel not in self._told:
            self._told.add(kernel)
            self._tell(
                f"{kernel} has no deterministic form here: a run that is repeated may end with "
                "other bits"
            )


_switched: _Switched | None = None
