from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.controller.asking import missing_nodes, whole_node, without

GPU_NODE = {"GPU": 1.0, "CPU": 4.0}
ONE_GPU = {"GPU": 1.0}


@pytest.mark.parametrize(
    ("others", "missing"),
    [
        ([], 3),
        ([ONE_GPU], 2),
        ([ONE_GPU] * 2, 1),  # the job has both nodes: one more
        ([ONE_GPU] * 3, 0),  # it asks for one more itself
        ([ONE_GPU] * 5, 0),
        ([{"CPU": 1.0}] * 4, 2),  # all on one node
        ([{"CPU": 1.0}] * 5, 1),
        ([{"TPU": 1.0}] * 5, 3),  # no node of ours would do
    ],
)
def test_what_others_ask_for_is_not_asked_for_again(
    others: list[dict[str, float]], missing: int
) -> None:
    assert missing_nodes(3, nodes=[GPU_NODE] * 2, others=others, whole=ONE_GPU) == missing


@given(wanted=st.integers(0, 8), there=st.integers(0, 6), jobs=st.integers(0, 10))
def test_all_together_is_never_more_than_anybody_wants(wanted: int, there: int, jobs: int) -> None:
    asked = missing_nodes(wanted, nodes=[GPU_NODE] * there, others=[ONE_GPU] * jobs, whole=ONE_GPU)
    assert asked + jobs == max(wanted, jobs)


def test_a_whole_node_is_what_all_of_them_have() -> None:
    assert whole_node([GPU_NODE, {"GPU": 2.0, "CPU": 8.0}]) == GPU_NODE
    assert whole_node([{"CPU": 4.0}, GPU_NODE]) == {"CPU": 4.0}
    assert whole_node([]) == {}


@pytest.mark.parametrize("job", [{"CPU": 1.0}, {"GPU": 1.0}, {"CPU": 0.5, "GPU": 0.5}])
def test_a_whole_node_does_not_fit_beside_a_job(job: dict[str, float]) -> None:
    left = {resource: amount - job.get(resource, 0.0) for resource, amount in GPU_NODE.items()}
    assert any(left[resource] < amount for resource, amount in whole_node([GPU_NODE]).items())


def test_own_requests_are_told_from_those_of_others() -> None:
    merged = [ONE_GPU, ONE_GPU, {"CPU": 1.0}]
    assert without(merged, [ONE_GPU]) == [ONE_GPU, {"CPU": 1.0}]
    assert without(merged, [{"GPU": 9.0}]) == merged
