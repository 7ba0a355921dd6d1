"""Each thing that a project on Google Cloud may have against a cluster is one clear line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from spotray.cluster.preflight import check
from spotray.cluster.presets import preset
from spotray.cluster.problems import Problem
from spotray.cluster.render import render
from tests.cluster.emulated_gce import head_labels
from tests.cluster.gce_server import PROJECT, GceServer

GPU = "available_node_types.gpu.node_config"
IMAGE = f"{GPU}.disks[0].initializeParams.sourceImage"
CUDA = "projects/deeplearning-platform-release/global/images/family/"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GceServer]:
    with GceServer() as server:
        server.serve_google(monkeypatch)
        yield server


def config_of(name: str = "gcp-l4-spot") -> dict[str, Any]:
    text = render(preset(name), made_by="a test", file="x.yaml")
    text = text.replace("my-bucket", "runs").replace("my-project", PROJECT)
    text = text.replace(",us-central1-f", "")
    config: dict[str, Any] = yaml.safe_load(text)
    config["provider"]["gcp_credentials"] = {"type": "credentials_token", "credentials": "x"}
    return config


def node(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config["available_node_types"]["gpu"]["node_config"]
    return found


def errors(problems: list[Problem]) -> list[Problem]:
    return [one for one in problems if not one.is_warning]


@pytest.mark.parametrize("name", ["gcp-l4-spot", "gcp-t4-spot"])
def test_a_good_cluster_has_nothing_against_it_and_nothing_is_changed(
    google: GceServer, name: str
) -> None:
    assert check(config_of(name)) == []
    posted = {one for one in google.asked if not one.startswith("GET")}
    assert posted == {f"POST /v1/projects/{PROJECT}:testIamPermissions"}
    assert google.unanswered == []


def test_without_credentials_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file")
    config = config_of()
    del config["provider"]["gcp_credentials"]
    (one,) = check(config)
    assert one.path == "provider"
    assert "no credentials" in one.what
    assert "gcloud auth" in one.cure


def test_a_project_that_does_not_exist_is_one_line(google: GceServer) -> None:
    config = config_of()
    config["provider"]["project_id"] = "nobodys"
    (one,) = check(config)
    assert "nobodys" in one.what
    assert "project_id" in one.cure


def _type(config: dict[str, Any], name: str) -> None:
    config["provider"]["markets"] = {}
    node(config)["machineType"] = name


def _image(config: dict[str, Any], name: str) -> None:
    node(config)["disks"][0]["initializeParams"]["sourceImage"] = name


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "unknown zone": (
        lambda c: c["provider"].update(availability_zone="us-central1-a,us-central1-z"),
        "provider.availability_zone",
        "no zone us-central1-z",
    ),
    "unknown region": (
        lambda c: c["provider"].update(region="mars-north1"),
        "provider.region",
        "no mars-north1",
    ),
    "unknown type": (
        lambda c: _type(c, "g9-huge"),
        f"{GPU}.machineType",
        "g9-huge does not exist or is not offered",
    ),
    "type without GPU": (
        lambda c: _type(c, "n2-standard-4"),
        f"{GPU}.machineType",
        "n2-standard-4 has no GPU",
    ),
    "no such image": (lambda c: _image(c, f"{CUDA}gone"), IMAGE, "no image"),
    "no such bucket": (
        lambda c: c["setup_commands"].append("export X=gs://nobodys-bucket/x"),
        "setup_commands[5]",
        "no bucket nobodys-bucket",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line_with_its_place(google: GceServer, name: str) -> None:
    change, path, what = WRONG[name]
    config = config_of()
    change(config)
    (one,) = errors(check(config))
    assert one.path == path
    assert what in one.what
    assert one.cure


@pytest.mark.parametrize(
    ("change", "path", "told", "is_warning"),
    [
        ({"PREEMPTIBLE_NVIDIA_L4_GPUS": (2.0, 1.0)}, "gpu", "1 of 5 nodes fit", True),
        # A project without a quota of its own for spot takes from the other one.
        (
            {"PREEMPTIBLE_NVIDIA_L4_GPUS": (0.0, 0.0), "NVIDIA_L4_GPUS": (0.0, 0.0)},
            "gpu",
            "quota NVIDIA_L4_GPUS is 0 GPUs",
            False,
        ),
        ({"N2_CPUS": (1.0, 0.0)}, "head", "0 of 1 nodes fit", False),
    ],
)
def test_a_quota_is_told_as_nodes_that_fit(
    google: GceServer,
    change: dict[str, tuple[float, float]],
    path: str,
    told: str,
    is_warning: bool,
) -> None:
    google.quotas.update(change)
    first = check(config_of())[0]
    assert path in first.path
    assert told in first.what
    assert first.is_warning == is_warning


def test_the_quota_of_all_regions_counts_as_well(google: GceServer) -> None:
    google.all_gpus = (0.0, 0.0)
    (one,) = errors(check(config_of()))
    assert "quota GPUS_ALL_REGIONS is 0 GPUs" in one.what


def test_gpus_that_a_zone_cannot_add_are_told(google: GceServer) -> None:
    config = config_of("gcp-t4-spot")
    zones = config["provider"]["availability_zone"].split(",")
    google.missing.add(("nvidia-tesla-t4", zones[0]))
    (one,) = check(config)
    assert one.is_warning
    assert f"not in {zones[0]}" in one.what
    google.missing |= {("nvidia-tesla-t4", zone) for zone in zones}
    (one,) = errors(check(config))
    assert one.path == f"{GPU}.guestAccelerators[0].acceleratorType"


def test_an_image_without_a_sign_of_a_driver_is_a_warning(google: GceServer) -> None:
    config = config_of()
    _image(config, "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64")
    (one,) = check(config)
    assert one.is_warning
    assert "NVIDIA's driver" in one.what


@pytest.mark.parametrize(("place", "is_near"), [("US", True), ("US-CENTRAL1", True), ("EU", False)])
def test_a_bucket_elsewhere_is_a_warning(google: GceServer, place: str, is_near: bool) -> None:
    google.buckets["runs"] = place
    problems = check(config_of())
    assert [one.is_warning for one in problems] == ([] if is_near else [True])


def test_a_bucket_of_somebody_else_is_an_error(google: GceServer) -> None:
    google.forbids = "GET /storage"
    (one,) = errors(check(config_of()))
    assert "no right to bucket runs: not you" in one.what


def test_a_bucket_that_may_only_be_read_is_an_error(google: GceServer) -> None:
    google.lacks = {"storage.objects.create"}
    (one,) = errors(check(config_of()))
    assert "no right to bucket runs: storage.objects.create" in one.what


def test_a_probe_is_written_only_if_asked_for_and_does_not_stay(google: GceServer) -> None:
    assert check(config_of(), write_probe=True) == []
    assert [one.split()[0] for one in google.asked if "/b/runs/o" in one] == ["POST", "DELETE"]
    assert google.objects == set()
    google.forbids = "POST /upload"
    (one,) = errors(check(config_of(), write_probe=True))
    assert "no right to bucket runs" in one.what


def test_permissions_that_are_missing_are_named(google: GceServer) -> None:
    google.lacks = {"compute.instances.create", "iam.serviceAccounts.actAs"}
    (one,) = check(config_of())
    assert "may not compute.instances.create, iam.serviceAccounts.actAs" in one.what


@pytest.mark.parametrize(
    ("forbidden", "what"),
    [
        ("regions/us-central1", "the quota for spot nodes was not checked"),
        ("machineTypes", "the instance types were not checked"),
        ("images", "the image was not checked"),
        ("testIamPermissions", "what these credentials may do was not checked"),
        ("aggregated", "whether a cluster gcp-l4-spot runs was not checked"),
        ("zones$", "the zones were not checked"),
    ],
)
def test_what_could_not_be_checked_is_said(google: GceServer, forbidden: str, what: str) -> None:
    google.forbids = forbidden
    problems = check(config_of())
    assert problems
    assert not errors(problems)
    assert any(one.what.startswith(what) and "not you" in one.what for one in problems), problems


def test_a_cluster_of_that_name_with_another_spec_is_an_error(google: GceServer) -> None:
    config = config_of()
    body = {
        "name": "old-head",
        "machineType": "zones/us-central1-a/machineTypes/n1-standard-4",
        "labels": {**head_labels(), "ray-cluster-name": config["cluster_name"]},
        "scheduling": {},
    }
    google.gce.insert(
        project=PROJECT, zone="us-central1-a", body=body, sourceInstanceTemplate=None
    ).execute()
    (one,) = check(config)
    assert one.path == "cluster_name"
    assert "head old-head has machineType n1-standard-4, not n2-standard-2" in one.what
    google.gce.machines["old-head"]["machineType"] = "n2-standard-2"
    assert check(config) == []


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="googleapiclient")
