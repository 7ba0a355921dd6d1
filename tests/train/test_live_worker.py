from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ray.train
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from spotray.train.config import SpotConfig
from spotray.train.live_worker import Outcome, work
from spotray.train.member import Member
from tests.train.scripted_calls import Scripted


def outcome_of(loop: Callable[..., None]) -> Outcome:
    """How a worker's training loop ends that gets no further than `Run.prepare`."""
    device = torch.device("cpu")
    return work(
        loop,
        {},
        Member(Scripted(), name="a", node_id="n-a", device=device),
        run_id="r1",
        store=None,
        spot=SpotConfig(),
        shm_dir=None,
        device=device,
        node_id="n-a",
    )


def shards_its_model() -> None:
    fully_shard(torch.nn.Linear(4, 4))


def asks_torch_for_its_rank() -> None:
    dist.get_rank()


def makes_a_process_group() -> None:
    dist.init_process_group("gloo")


@pytest.mark.parametrize("loop", [shards_its_model, asks_torch_for_its_rank, makes_a_process_group])
def test_a_loop_that_needs_a_process_group_too_early_gives_way_in_plain_words(
    loop: Callable[..., None],
) -> None:
    outcome = outcome_of(loop)
    assert outcome.kind == "unsupported"
    assert outcome.why == (
        "fully_shard, or a torch.distributed call of the loop's own, needs a process group "
        "before run.prepare(), and under live recovery there is none yet: "
        "Ray Train's workers take over"
    )
    assert not dist.is_initialized()


def test_a_loop_in_ray_trains_own_words_gives_way_too() -> None:
    outcome = outcome_of(lambda: ray.train.report({}))
    assert outcome.kind == "unsupported"
    assert outcome.why.startswith("the loop calls Ray Train itself")


def test_a_bug_that_has_nothing_to_do_with_ray_train_is_raised() -> None:
    def loop(config: dict[str, Any]) -> None:
        raise ValueError("a bug of the user's")

    with pytest.raises(ValueError, match="a bug of the user's"):
        outcome_of(loop)
