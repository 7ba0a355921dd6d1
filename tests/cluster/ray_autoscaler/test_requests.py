"""On a real Ray: what applications ask the autoscaler for stands beside what we ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ray.exceptions import ActorUnschedulableError

from spotray.cluster.ray_autoscaler import requests
from spotray.errors import ClusterUnreachable

# Each look: the CPUs of each bundle and its selector, but for ours; ours; the actors there.
_ASK = """
import json
import sys
import ray
from ray.autoscaler.sdk import request_resources
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    get_or_create_autoscaling_coordinator,
)
from ray.util import list_named_actors
from spotray.cluster.ray_autoscaler.head import RayHead
from spotray.cluster.ray_autoscaler.requests import NodeRequest, standing
from spotray.errors import ClusterUnreachable

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
address = ray.get_runtime_context().gcs_address
mine = NodeRequest("test")

def look(what):
    there = standing(address)
    assert sum(one.count for one in there) == len(RayHead(address).asked().standing)
    theirs = [[one.bundle["CPU"], one.selector] for one in there for _ in range(one.count)
              if "spotray-requester" not in one.selector]
    ours = [one.bundle["CPU"] for one in there for _ in range(one.count)
            if "spotray-requester" in one.selector]
    names = [actor["name"] for actor in list_named_actors(all_namespaces=True)]
    print(json.dumps([what, theirs, ours, names]))

def keep(*cpus):
    while True:
        try:
            return mine.keep([{"CPU": one} for one in cpus])
        except ClusterUnreachable as exc:
            print(exc, file=sys.stderr)

request_resources(bundles=[{"CPU": 7}])
keep()
look("nothing of ours")
keep(9, 9)
look("two of ours")
picky = {"zone": "in(a,b)", "market": "!spot"}
request_resources(bundles=[{"CPU": 8}, {"CPU": 8}], bundle_label_selectors=[{}, picky])
look("they asked anew")
keep(9, 9)
look("ours once more")
mine = NodeRequest("test")
keep(9)
look("started anew, one less")
keep()
look("ours withdrawn")
keep(9)
actor = get_or_create_autoscaling_coordinator()
ray.get(actor.request_resources.remote("a job", [{"CPU": 5}], 60.0))
keep(9)
look("handed to the actor")
keep()
look("and withdrawn there")
"""


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_what_applications_ask_for_outlives_what_we_ask_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        capture_output=True,
        text=True,
        timeout=150,
        env=os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_enable_autoscaler_v2": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    looks = {what: (theirs, ours, actors) for what, theirs, ours, actors in lines}
    picky = {"zone": "in(a,b)", "market": "!spot"}
    first, second = [[7.0, {}]], [[8.0, {}], [8.0, picky]]
    assert looks["nothing of ours"] == (first, [], [])
    assert looks["two of ours"] == (first, [9.0, 9.0], [])
    assert by_selector(looks["they asked anew"][0]) == second
    assert looks["they asked anew"][1] == []
    for what, ours in {
        "ours once more": [9.0, 9.0],
        "started anew, one less": [9.0],
        "ours withdrawn": [],
    }.items():
        theirs, found, actors = looks[what]
        assert by_selector(theirs) == second
        assert (found, actors) == (ours, [])
    # There `request_resources` lasts for seconds only, with or without us.
    actor = ["AutoscalingCoordinator"]
    assert looks["handed to the actor"] == ([[5.0, {}], [9.0, {}]], [], actor)
    assert looks["and withdrawn there"] == ([[5.0, {}]], [], actor)


def by_selector(bundles: list[list[object]]) -> list[list[object]]:
    return sorted(bundles, key=lambda one: len(str(one)))


class Lost:
    """Ray's actor, whose node is gone."""

    @property
    def request_resources(self) -> Lost:
        return self

    def remote(self, **_: object) -> None:
        raise ActorUnschedulableError("its node is gone")


def test_an_actor_that_does_not_answer_is_looked_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Lost] = []

    def found() -> Lost:
        looked.append(Lost())
        return looked[-1]

    monkeypatch.setattr(requests, "_coordinator", found)
    mine = requests.NodeRequest("test")
    for times in (1, 2):
        with pytest.raises(ClusterUnreachable, match="its node is gone"):
            mine.keep([{"CPU": 9}])
        assert len(looked) == times
