"""What a project on Google Cloud has and may, asked over its REST API: nothing is changed.

Through the same client library as Ray's own provider, so that whoever can say `ray up` can
be told what it would say.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from spotray.cloud.account import Bucket, Image, Limit, RunningNode, TypeOffer
from spotray.cloud.gcp.errors import NO_CREDENTIALS, foreign_errors, reason_of
from spotray.errors import ConfigError, NotAnswered, NotPermittedError, one_line

# Source: "Allocation quotas", Compute Engine docs, 2026: families with a quota of their own.
_CPU_FAMILIES = ("n2", "n2d", "c2", "c2d", "c3", "c3d", "t2d", "m1", "m2")
_GPU_METRICS = {
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
}
_CLUSTER, _KIND, _NODE_TYPE = "ray-cluster-name", "ray-node-type", "ray-user-node-type"  # Ray's
_OBJECTS = ("storage.objects.create", "storage.objects.get", "storage.objects.delete")
_ALIVE = ("PROVISIONING", "STAGING", "RUNNING")
_IMAGE = re.compile(r"projects/([^/]+)/global/images/(family/)?([^/]+)$")


class GcpAccount:
    """`spotray.cloud.account.Account` of one project and region."""

    def __init__(
        self, project: str, region: str, *, cluster_name: str = "", credentials: Any = None
    ) -> None:
        """Nothing is asked yet.

        Args:
            project: its id.
            region: where the cluster shall be.
            cluster_name: whose nodes count against no quota: they would be used again.
            credentials: of google-auth; None: those of the environment.

        Raises:
            ConfigError: there are no credentials.
        """
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        self._project, self._region, self._cluster = project, region, cluster_name
        try:
            self._credentials = credentials or google.auth.default()[0]
        except DefaultCredentialsError as exc:
            raise ConfigError(NO_CREDENTIALS) from exc
        self._gpus: dict[str, tuple[str, int]] = {}  # machine type -> its GPUs

    def who(self) -> str:
        """The account's address, or the project's id where the credentials do not tell it."""
        try:
            self._of_project  # noqa: B018  asked once, kept
        except NotAnswered as exc:
            raise ConfigError(
                f"{exc}: is provider.project_id right, and do these credentials see it?"
            ) from exc
        return str(getattr(self._credentials, "service_account_email", "") or self._project)

    # -- what is offered -----------------------------------------------------

    def zones(self) -> Mapping[str, bool]:
        with _asking("compute.zones.list"):
            found = list(self._all(self._compute.zones(), project=self._project))
        return {
            one["name"]: one.get("status") == "UP"
            for one in found
            if _last(one["region"]) == self._region
        }

    def offers(
        self, types: Iterable[str], zones: Sequence[str]
    ) -> Mapping[tuple[str, str], TypeOffer]:
        offers = {}
        for one in sorted(set(types)):
            for zone in zones:
                if (found := self._machine_type(one, zone)) is not None:
                    offers[one, zone] = found
        return offers

    def _machine_type(self, name: str, zone: str) -> TypeOffer | None:
        with _asking("compute.machineTypes.get"):
            found = self._get(
                self._compute.machineTypes(), project=self._project, zone=zone, machineType=name
            )
        if found is None:
            return None
        for gpu in found.get("accelerators") or ():
            self._gpus[name] = gpu["guestAcceleratorType"], int(gpu["guestAcceleratorCount"])
        architecture = str(found.get("architecture", ""))
        return TypeOffer(
            cpus=int(found["guestCpus"]),
            gpus=self._gpus.get(name, ("", 0))[1],
            architectures=(architecture,) if architecture else (),
        )

    def has_accelerator(self, name: str, zone: str) -> bool:
        """Whether a zone has GPUs of that kind to add."""
        with _asking("compute.acceleratorTypes.get"):
            found = self._get(
                self._compute.acceleratorTypes(),
                project=self._project,
                zone=zone,
                acceleratorType=name,
            )
        return found is not None

    def image(self, reference: str) -> Image | None:
        """An image by its URL, or the newest one of a family by the family's."""
        named = _IMAGE.search(reference)
        if named is None:
            raise NotAnswered(f"{reference} is not of the form projects/P/global/images/NAME")
        project, family, name = named.groups()
        images = self._compute.images()
        with _asking("compute.images.get"):
            if family:
                found = self._get(images, "getFromFamily", project=project, family=name)
            else:
                found = self._get(images, project=project, image=name)
        if found is None:
            return None
        words = (found.get(key, "") for key in ("name", "family", "description"))
        status = found.get("status", "READY")
        state = (found.get("deprecated") or {}).get("state", "")
        return Image(
            words=" ".join(filter(None, words)),
            architecture=str(found.get("architecture", "")),
            flaw=f"is {status}" if status != "READY" else "is gone" if state == "DELETED" else "",
        )

    # -- quotas --------------------------------------------------------------

    def limits(self, instance_type: str, offer: TypeOffer, *, spot: bool) -> Sequence[Limit]:
        if instance_type in self._gpus:
            kind, count = self._gpus[instance_type]
            return self.gpu_limits(kind, count, spot=spot)
        if spot:
            return []  # Google's page on quotas does not say which CPUs these are
        family = instance_type.partition("-")[0]
        metric = f"{family.upper()}_CPUS" if family in _CPU_FAMILIES else "CPUS"
        return self._limit(self._in_region, metric, offer.cpus, "vCPUs", self._used_cpus(family))

    def gpu_limits(self, kind: str, count: int, *, spot: bool) -> Sequence[Limit]:
        """The quotas of a node with so many GPUs of a kind."""
        metric = _GPU_METRICS.get(kind)
        if metric is None:
            raise NotAnswered(f"nobody here knows the quota of {kind}")
        if spot and self._in_region.get(f"PREEMPTIBLE_{metric}", (0.0, 0.0))[0] > 0:
            # A project that has none of its own for spot takes from the ordinary one.
            metric = f"PREEMPTIBLE_{metric}"
        return [
            *self._limit(self._in_region, metric, count, "GPUs"),
            *self._limit(self._everywhere, "GPUS_ALL_REGIONS", count, "GPUs"),
        ]

    def _limit(
        self,
        quotas: Mapping[str, tuple[float, float]],
        metric: str,
        per_node: float,
        unit: str,
        own: float = 0.0,
    ) -> list[Limit]:
        if metric not in quotas:
            raise NotAnswered(f"{self._region} tells no quota {metric}")
        limit, used = quotas[metric]
        used = max(0.0, used - own)
        return [Limit(name=metric, limit=limit, used=used, per_node=per_node, unit=unit)]

    def _used_cpus(self, family: str) -> float:
        """vCPUs of that family that the cluster itself uses now, as far as names tell."""
        kinds = [one.facts["machineType"] for one in self.nodes_of(self._cluster)]
        sizes = [kind.rpartition("-")[2] for kind in kinds if kind.startswith(f"{family}-")]
        return float(sum(int(size) for size in sizes if size.isdigit()))

    @cached_property
    def _in_region(self) -> dict[str, tuple[float, float]]:
        with _asking("compute.regions.get"):
            found = self._get(self._compute.regions(), project=self._project, region=self._region)
        return _quotas(found or {})

    @property
    def _everywhere(self) -> dict[str, tuple[float, float]]:
        return _quotas(self._of_project)

    @cached_property
    def _of_project(self) -> Mapping[str, Any]:
        with _asking(f"compute.projects.get of {self._project}"):
            found: dict[str, Any] = (
                self._compute.projects().get(project=self._project).execute(num_retries=2)
            )
        return found

    def nodes_of(self, cluster_name: str) -> Sequence[RunningNode]:
        if not cluster_name:
            return []
        with _asking("compute.instances.aggregatedList"):
            answer = (
                self._compute.instances()
                .aggregatedList(project=self._project, filter=f"labels.{_CLUSTER} = {cluster_name}")
                .execute(num_retries=2)
            )
        listed = [
            one for zone in answer.get("items", {}).values() for one in zone.get("instances", [])
        ]
        return [
            RunningNode(
                name=one["name"],
                node_type=one.get("labels", {}).get(_NODE_TYPE, ""),
                is_head=one.get("labels", {}).get(_KIND) == "head",
                facts={"machineType": _last(one["machineType"])},
            )
            for one in listed
            if one.get("status") in _ALIVE
        ]

    # -- buckets and rights --------------------------------------------------

    def bucket(self, name: str) -> Bucket | None:
        with _asking("storage.buckets.get"):
            try:
                found = self._get(self._storage.buckets(), bucket=name)
                if found is None:
                    return None
                answer = (
                    self._storage.buckets()
                    .testIamPermissions(bucket=name, permissions=list(_OBJECTS))
                    .execute(num_retries=2)
                )
            except foreign_errors() as exc:
                raise _no_right(exc) from exc
        if lacking := [one for one in _OBJECTS if one not in answer.get("permissions", [])]:
            raise NotPermittedError(", ".join(lacking), market="")
        return Bucket(place=str(found.get("location", "")).lower())

    def probe(self, bucket: str, key: str) -> None:
        from googleapiclient.http import MediaIoBaseUpload

        body = MediaIoBaseUpload(io.BytesIO(b"\n"), mimetype="text/plain")
        objects = self._storage.objects()
        with _asking("storage.objects.create"):
            try:
                objects.insert(bucket=bucket, name=key, media_body=body).execute()
                objects.delete(bucket=bucket, object=key).execute()
            except foreign_errors() as exc:
                raise _no_right(exc) from exc

    def denied(self, permissions: Sequence[str]) -> list[str]:
        """Which of some permissions on the project these credentials lack."""
        body = {"permissions": list(permissions)}
        with _asking("resourcemanager.projects.testIamPermissions"):
            answer = (
                self._build("cloudresourcemanager")
                .projects()
                .testIamPermissions(resource=self._project, body=body)
                .execute(num_retries=2)
            )
        return [one for one in permissions if one not in answer.get("permissions", [])]

    # -- the API -------------------------------------------------------------

    @cached_property
    def _compute(self) -> Any:
        return self._build("compute")

    @cached_property
    def _storage(self) -> Any:
        return self._build("storage")

    def _build(self, api: str) -> Any:
        from googleapiclient import discovery

        return discovery.build(api, "v1", credentials=self._credentials, cache_discovery=False)

    @staticmethod
    def _get(collection: Any, method: str = "get", **names: str) -> Any:
        """One thing; None if there is none of that name."""
        from googleapiclient.errors import HttpError

        try:
            return getattr(collection, method)(**names).execute(num_retries=2)
        except HttpError as exc:
            if exc.resp.status == 404:
                return None
            raise

    @staticmethod
    def _all(collection: Any, **names: str) -> Iterator[Mapping[str, Any]]:
        request = collection.list(**names)
        while request is not None:
            answer = request.execute(num_retries=2)
            yield from answer.get("items", [])
            request = collection.list_next(request, answer)


def credentials_of(given: Mapping[str, Any]) -> Any:
    """The credentials of a YAML's ``gcp_credentials``; None if it has none.

    Raises:
        ConfigError: they are not of the form that Ray takes.
    """
    import json

    from google.oauth2 import service_account
    from google.oauth2.credentials import Credentials

    if not given:
        return None
    try:
        if given["type"] == "credentials_token":
            return Credentials(given["credentials"])  # type: ignore[no-untyped-call]
        return service_account.Credentials.from_service_account_info(  # type: ignore[no-untyped-call]
            json.loads(given["credentials"])
        )
    except (LookupError, ValueError) as exc:
        raise ConfigError(
            f"provider.gcp_credentials: {exc}: write {{type: service_account, credentials: JSON}}"
        ) from exc


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Raises: NotAnswered, with ``what`` that was asked and Google's words."""
    from google.auth.exceptions import GoogleAuthError
    from googleapiclient.errors import HttpError

    try:
        yield
    except HttpError as exc:
        raise NotAnswered(f"{what}: {': '.join(reason_of(exc))}") from exc
    except foreign_errors() + (GoogleAuthError, OSError) as exc:
        raise NotAnswered(f"{what}: {one_line(exc, 200)}") from exc


def _no_right(exc: Exception) -> Exception:
    """Google's refusal as ours; anything else as it is."""
    if getattr(getattr(exc, "resp", None), "status", None) in (401, 403):
        code, words = reason_of(exc)
        return NotPermittedError(words, market="", code=code)
    return exc


def _quotas(told: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {one["metric"]: (one["limit"], one.get("usage", 0)) for one in told.get("quotas", [])}


def _last(url: str) -> str:
    return str(url).rpartition("/")[2]
