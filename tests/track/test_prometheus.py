"""A run's numbers for Prometheus, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
import urllib.request
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest

from spotray.clock import SystemClock, wait_until
from spotray.events import NodeUp
from spotray.ledger.rundir import RunEvents
from spotray.ledger.summary import RunSummary, summarize
from spotray.track.prometheus import METRICS, RayMetrics, measures
from tests.ledger.story import Story, four_losses

DASHBOARD: dict[str, Any] = json.loads(
    resources.files("spotray").joinpath("track/grafana.json").read_text(encoding="utf-8")
)


def summary_of(story: Story) -> RunSummary:
    return summarize(RunEvents(run_dir="", events=tuple(story.events), journals=()))


def test_what_prometheus_is_told_is_what_the_ledger_says() -> None:
    summary = summary_of(four_losses())
    told = {(one.name, one.tag): one.value for one in measures(summary)}
    losses = summary.recovery
    assert told["spotray_step", ""] == summary.step == 80
    assert told["spotray_running", ""] == 0
    assert told["spotray_preemptions", "yes"] == losses.preemptions_noticed == 2
    assert told["spotray_preemptions", "no"] == losses.preemptions_silent == 3
    assert told["spotray_recovery_seconds_max", ""] == losses.recovery_s_max
    assert told["spotray_goodput_ratio", ""] == summary.goodput.goodput_frac
    assert told["spotray_cost_usd", ""] == summary.cost.total.cost_usd
    lost = sum(value for (name, _), value in told.items() if name == "spotray_lost_seconds")
    assert lost + summary.goodput.useful_s == pytest.approx(summary.goodput.wall_s)
    assert {name for name, _ in told} == METRICS.keys()


def test_nodes_are_counted_by_price_kind_while_they_are_up() -> None:
    story = Story()
    story.node_up("n1", "n2")
    first = next(event for event in story.events if isinstance(event, NodeUp))
    story.note(
        replace(first, node_id="n3", spot=False, market="aws/us-east-1a/g5.xlarge/on-demand")
    )
    story.job_starts()
    story.group("n1", "n2", "n3", restored=0, source="fresh")
    story.steps(4)
    story.silent_loss("n2")
    told = {one.tag: one.value for one in measures(summary_of(story)) if "nodes" in one.name}
    assert told == {"spot": 1, "on-demand": 1}


def test_what_nobody_knows_is_left_out() -> None:
    story = Story()
    story.job_starts()
    names = {one.name for one in measures(summary_of(story))}
    assert not names & {"spotray_loss", "spotray_cost_usd", "spotray_recovery_seconds_max"}
    assert "spotray_running" in names


def expressions() -> list[str]:
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    found += [one["expr"] for one in DASHBOARD["annotations"]["list"]]
    return [*found, *(one["query"]["query"] for one in DASHBOARD["templating"]["list"][1:])]


def test_the_dashboard_asks_for_all_metrics_and_for_no_others() -> None:
    asked = {name for expr in expressions() for name in re.findall(r"ray_(\w+)", expr)}
    assert asked == METRICS.keys()


def test_the_dashboard_asks_for_tags_that_the_metrics_have() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            (names, shown) = (
                re.findall(r"ray_(\w+)", target["expr"]),
                re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]),
            )
            assert set(shown) <= {"run", *(METRICS[name][1] for name in names)}, panel["title"]
            assert target["expr"].count('{run=~"$run"}') == len(names), panel["title"]


def test_the_dashboards_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_rays_own_endpoint_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "500")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        (node,) = ray.nodes()
        url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
        metrics, summary = RayMetrics("vit"), summary_of(four_losses())
        seen = ""

        def all_there() -> bool:
            nonlocal seen
            metrics(summary)
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    seen = answer.read().decode()
            except OSError:
                return False  # the node's agent is not up yet
            return METRICS.keys() <= set(re.findall(r"^ray_(spotray_\w+)\{", seen, re.MULTILINE))

        assert wait_until(all_there, timeout_s=120, clock=SystemClock(), poll_s=0.5), seen
        (line,) = re.findall(r"^ray_spotray_preemptions\{.*notice=\"no\".*", seen, re.MULTILINE)
        assert 'run="vit"' in line
        assert float(line.split()[-1]) == 3
    finally:
        ray.shutdown()
