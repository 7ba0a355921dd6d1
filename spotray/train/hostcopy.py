"""Copies of live tensors into host memory, beside training where the device allows it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch


class HostCopy:
    """A copy that is under way; all of it is there after `wait`.

    From host memory it is done at once. From a GPU it runs on a stream of its own,
    truly beside the process if the targets are page-locked. What training does next on
    the GPU waits for it, since it may change the tensors; the process does not wait.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """``pairs``: (target in host memory, source) of the same type and shape."""
        self._began: torch.cuda.Event | None = None
        self._ended: torch.cuda.Event | None = None
        on_gpu = []
        for target, source in pairs:
            if source.is_cuda:
                on_gpu.append((target, source))
            else:
                target.copy_(source)
        if not on_gpu:
            return
        device = on_gpu[0][1].device
        training, aside = torch.cuda.current_stream(device), _stream(device)
        self._began = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(enable_timing=True)
        aside.wait_stream(training)
        with torch.cuda.stream(aside):
            self._began.record()
            for target, source in on_gpu:
                target.copy_(source, non_blocking=True)
            self._ended.record()
        training.wait_event(self._ended)

    def wait(self) -> float:
        """Return when all is copied; seconds that the GPU's training stood still for it."""
        if self._began is None or self._ended is None:
            return 0.0
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1000


def lock_pages(memory: torch.Tensor) -> bool:
    """Let a GPU copy into this memory by itself; False if the system does not allow it."""
    code = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    return int(code) == 0


def unlock_pages(memory: torch.Tensor) -> None:
    """Undo `lock_pages`, before the memory is unmapped."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
