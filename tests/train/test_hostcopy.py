"""A copy holds the state of the moment it began, whatever training does next."""

from __future__ import annotations

import mmap

import pytest
import torch

from spotray.train.hostcopy import HostCopy, lock_pages, unlock_pages


def test_from_host_memory_it_is_done_at_once() -> None:
    sources = [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.ones(5, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.empty(0, 3),
    ]
    expected = [source.clone() for source in sources]
    targets = [torch.zeros(source.shape, dtype=source.dtype) for source in sources]
    copy = HostCopy(zip(targets, sources, strict=True))
    for source in sources:
        source.zero_()
    assert copy.wait() == 0.0
    for target, value in zip(targets, expected, strict=True):
        assert torch.equal(target, value)


@pytest.mark.gpu
@pytest.mark.parametrize("locked", [True, False])
def test_from_a_gpu_what_training_does_next_is_not_in_it(locked: bool) -> None:
    sources = [torch.full((2**22,), float(i), device="cuda") for i in range(8)]
    sources.append(torch.arange(2.0**20, device="cuda").reshape(2**10, -1).t())
    expected = [source.cpu() for source in sources]
    size = sum(source.nbytes for source in sources)
    memory = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    if locked:
        assert lock_pages(memory)
    targets, offset = [], 0
    for source in sources:
        part = memory[offset : offset + source.nbytes]
        targets.append(part.view(source.dtype).view(source.shape))
        offset += source.nbytes
    for _ in range(3):
        copy = HostCopy(zip(targets, sources, strict=True))
        for source in sources:
            source.add_(1)
        assert copy.wait() > 0
        for target, value in zip(targets, expected, strict=True):
            assert torch.equal(target, value)
            value.add_(1)
    if locked:
        torch.cuda.synchronize()
        unlock_pages(memory)
