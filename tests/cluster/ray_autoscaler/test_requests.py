"""On a real Ray: what applications ask the autoscaler for stands until somebody asks for more."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

_ASK = """
import json
import sys
import ray
from ray.autoscaler.sdk import request_resources
from ray.util import list_named_actors
from spotray.cluster.ray_autoscaler.head import RayHead
from spotray.cluster.ray_autoscaler.requests import NodeRequest
from spotray.errors import ClusterUnreachable

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
head = RayHead(ray.get_runtime_context().gcs_address)
mine = NodeRequest("test")

def look():
    names = [actor["name"] for actor in list_named_actors(all_namespaces=True)]
    print(json.dumps([list(head.asked().standing), names]))

request_resources(bundles=[{"CPU": 7}])
def keep(wish):
    while True:
        try:
            return mine.keep(wish)
        except ClusterUnreachable as exc:  # the actor takes its time to start
            print(exc, file=sys.stderr)

for wish in ([], [{"CPU": 9}], []):
    keep(wish)
    look()
"""


def test_who_asks_for_nothing_leaves_the_applications_request_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        capture_output=True,
        text=True,
        timeout=150,
        env=os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_enable_autoscaler_v2": "1"},
    )
    assert done.returncode == 0, done.stderr
    looks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    # With the actor that adds requests up, `request_resources` would last for seconds only.
    assert looks[0] == [[{"CPU": 7.0}], []]
    assert looks[1] == [[{"CPU": 9.0}], ["AutoscalingCoordinator"]]
    assert looks[2] == [[], ["AutoscalingCoordinator"]]
