"""Files go in, all that is wrong comes out; what Ray alone knows is found by a rehearsal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.cluster.presets import NAMES, preset, presets
from spotray.cluster.render import render
from spotray.cluster.validate import Verdict, validate

ROOT = Path(__file__).parents[2]
AWS = [name for name, spec in presets().items() if spec.cloud == "aws"]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where the files of cluster-configs/ are used


def changed(change: Callable[[dict[str, Any]], Any], name: str = "aws-g5-spot") -> str:
    config = yaml.safe_load(render(preset(name), made_by="a test", file="x.yaml"))
    change(config)
    return yaml.safe_dump(config)


def quick(text: str) -> Verdict:
    (verdict,) = validate({"x.yaml": text}, rehearsal=False)
    return verdict


@pytest.fixture(scope="module")
def rehearsed() -> dict[str, Verdict]:
    """One process for all of them: most of its time goes into imports."""
    files = {name: (ROOT / f"cluster-configs/{name}.yaml").read_text() for name in NAMES}

    def node(config: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = config["available_node_types"]["gpu"]["node_config"]
        return found

    def without_roles(config: dict[str, Any]) -> None:
        for one in config["available_node_types"].values():
            del one["node_config"]["IamInstanceProfile"]
            one["node_config"]["ImageId"] = "ami-12345678"

    files |= {
        "typo": changed(lambda c: node(c).update(EbsOptimised=True)),
        "deep typo": changed(lambda c: node(c).update(MetadataOptions={"HttpToken": "required"})),
        "no such type": changed(
            lambda c: (
                node(c).update(InstanceType="g99.huge"),
                c["provider"].update(markets={}),
            )
        ),
        "no such zone": changed(
            lambda c: c["provider"].update(availability_zone="us-west-2a,us-west-2z")
        ),
        "a role of Ray's making": changed(without_roles),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return {one.file: one for one in validate(files)}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_cluster_configs_is_right(rehearsed: dict[str, Verdict], name: str) -> None:
    verdict = rehearsed[name]
    assert not verdict.is_wrong, verdict.problems
    assert all("stands for" in one.what for one in verdict.problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", AWS)
def test_every_node_type_is_launched_as_it_should_be(
    rehearsed: dict[str, Verdict], name: str
) -> None:
    spec, launched = preset(name), rehearsed[name].launched
    zone = spec.zones[0]
    assert launched == {
        "head": f"aws/{zone}/{spec.head.instance_type}/on-demand",
        **{one.name: f"aws/{zone}/{one.instance_types[0]}/{one.purchase}" for one in spec.workers},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path", "cure"),
    [
        ("typo", "available_node_types.gpu.node_config.EbsOptimised", "EbsOptimized"),
        (
            "deep typo",
            "available_node_types.gpu.node_config.MetadataOptions.HttpToken",
            "HttpTokens",
        ),
        ("no such type", "(file)", "ray up"),
        ("no such zone", "provider.availability_zone", "exist"),
    ],
)
def test_what_only_ec2_knows_is_found_by_the_rehearsal(
    rehearsed: dict[str, Verdict], name: str, path: str, cure: str
) -> None:
    wrong = [one for one in rehearsed[name].problems if not one.is_warning]
    assert [one for one in wrong if one.path == path and cure in one.cure], wrong


@pytest.mark.slow
def test_a_cluster_without_roles_of_its_own_gets_as_far_as_its_launches(
    rehearsed: dict[str, Verdict],
) -> None:
    verdict = rehearsed["a role of Ray's making"]
    wrong = [one.path for one in verdict.problems if not one.is_warning]
    assert wrong == ["available_node_types.gpu.node_config.IamInstanceProfile"]
    assert set(verdict.launched) == {"head", "gpu"}


def test_a_rehearsal_that_breaks_is_a_problem_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(configs: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("spotray.cluster.validate.rehearse", broken)
    (verdict,) = validate({"x": changed(lambda c: None)})
    assert verdict.is_wrong
    assert "out of memory" in verdict.problems[0].what


def test_a_file_for_another_cloud_says_what_was_not_done() -> None:
    (verdict,) = validate({"x": changed(lambda c: None, "gcp-l4-spot")})
    assert not verdict.is_wrong
    assert "EC2 only" in verdict.not_done


@pytest.mark.parametrize(
    ("change", "path", "cure"),
    [
        (lambda c: c.update(max_worker=3), "max_worker", "max_workers"),
        (
            lambda c: c["available_node_types"]["gpu"].update(max_worker=3),
            "available_node_types.gpu.max_worker",
            "max_workers",
        ),
        (
            lambda c: c["available_node_types"]["gpu"].update(labels={"a": 1}),
            "available_node_types.gpu.labels.a",
            "schema",
        ),
        (
            lambda c: c["available_node_types"]["gpu"].update(resources={"CPU": 0.5}),
            "available_node_types.gpu.resources.CPU",
            "schema",
        ),
        (lambda c: c.pop("cluster_name"), "(file)", "schema"),
        (
            lambda c: c["provider"].update(security_group={"GroupNam": "x"}),
            "provider.security_group.GroupNam",
            "GroupName",
        ),
    ],
)
def test_what_rays_schema_forbids_is_named_with_its_place(
    change: Callable[[dict[str, Any]], Any], path: str, cure: str
) -> None:
    verdict = quick(changed(change))
    assert verdict.is_wrong
    found = [one for one in verdict.problems if one.path == path and cure in one.cure]
    assert found, verdict.problems


def test_lint_and_schema_are_told_together() -> None:
    def both(config: dict[str, Any]) -> None:
        config["max_worker"] = 3
        config["provider"]["regoin"] = "x"

    paths = {one.path for one in quick(changed(both)).problems}
    assert {"max_worker", "provider.regoin"} <= paths


@pytest.mark.parametrize("text", ["a: [", "- a", "", "3"])
def test_what_is_no_config_is_one_problem(text: str) -> None:
    verdict = quick(text)
    assert [one.path for one in verdict.problems] == ["(file)"]
    assert verdict.is_wrong


def test_warnings_come_last_and_make_nothing_wrong() -> None:
    verdict = quick(changed(lambda c: c.update(upscaling_speed=0.1)))
    assert not verdict.is_wrong
    mixed = quick(changed(lambda c: c.update(upscaling_speed=0.1, head_node_type="haed")))
    assert [one.is_warning for one in mixed.problems] == sorted(
        one.is_warning for one in mixed.problems
    )


@pytest.mark.parametrize(
    ("given", "key", "told"),
    [
        ({"vmSise": "Standard_NC4as_T4_v3"}, "vmSise", "did you mean vmSize?"),
        ({"osDiskSize": "150"}, "osDiskSize", "'150' is no int"),
        ({"osDiskSize": True}, "osDiskSize", "True is no int"),
        ({"billingProfile": -1}, "billingProfile", "-1 is no object"),
        ({"vmCount": 2}, "vmCount", "not a key"),  # Ray's own
    ],
)
def test_what_azure_would_refuse_of_a_node_is_found_without_azure(
    given: dict[str, Any], key: str, told: str
) -> None:
    def change(config: dict[str, Any]) -> None:
        node = config["available_node_types"]["gpu"]["node_config"]
        node["azure_arm_parameters"].update(given)

    verdict = quick(changed(change, "azure-nc-t4-spot"))
    (one,) = (one for one in verdict.problems if not one.is_warning)
    assert one.path == f"available_node_types.gpu.node_config.azure_arm_parameters.{key}"
    assert told in str(one)
