"""Persistent disks as data disks, through google-cloud-compute."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from spotray.clock import Clock, SystemClock, wait_until
from spotray.cloud.disks import CLUSTER_TAG, SLOT_TAG, Disk, DiskWish
from spotray.cloud.gcp.errors import OperationFailed, raise_ours
from spotray.errors import ConfigError, DiskNotFree, ThrottledError

# As the answer to a call, and as the error of an operation.
_TAKEN = (
    "resourceInUseByAnotherResource",
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    "alreadyExists",
    "RESOURCE_ALREADY_EXISTS",
)
_GONE = ("notFound", "RESOURCE_NOT_FOUND")
CALL_S = 10.0  # a node does not wait for a disk
_RUNNING_S = 120.0
_OPERATION_S = 30.0  # a disk is made, attached or deleted: mostly 5
_POLL_S = 1.0
_NAME_CHARS = 63


class PersistentDisks:
    """`Disks` in the zones of one region."""

    def __init__(
        self,
        project: str,
        region: str,
        *,
        credentials: Any = None,
        client: Callable[[Any], Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            project: its id.
            region: where.
            credentials: of google-auth; None: those of the environment.
            client: makes a client of a class of google-cloud-compute; None: with them.
            clock: waits for operations.
        """
        from google.cloud import compute_v1

        make = client or (lambda cls: cls(credentials=credentials))
        self._types: Any = compute_v1
        self._disks, self._instances = (
            make(compute_v1.DisksClient),
            make(compute_v1.InstancesClient),
        )
        self._operations = make(compute_v1.ZoneOperationsClient)
        self._project, self._region = project, region
        self._clock = clock or SystemClock()

    def listed(self, cluster: str) -> list[Disk]:
        request = {"project": self._project, "filter": f'labels.{CLUSTER_TAG} = "{cluster}"'}
        found = []
        with self._about(self._region, "disks"):
            for place, scoped in self._disks.aggregated_list(request=request, timeout=CALL_S):
                if place.rpartition("/")[2].startswith(f"{self._region}-"):
                    found += [one for one in scoped.disks if one.status != "DELETING"]
        return [_disk(one) for one in found]

    def make(self, wish: DiskWish) -> Disk:
        name = _name(wish)
        resource = self._types.Disk(
            name=name,
            size_gb=wish.size_gib,
            type_=f"zones/{wish.zone}/diskTypes/{wish.type}",
            labels={CLUSTER_TAG: wish.cluster, SLOT_TAG: wish.slot},
        )
        with self._about(wish.zone, name):
            begun = self._disks.insert_unary(
                request={**self._in(wish.zone), "disk_resource": resource}, timeout=CALL_S
            )
            self._done(begun, wish.zone)
            return _disk(self._get(wish.zone, name))

    def attach(self, disk: Disk, node: str) -> tuple[str, ...]:
        resource = self._types.AttachedDisk(
            source=f"projects/{self._project}/zones/{disk.zone}/disks/{disk.disk_id}",
            device_name=disk.disk_id,
            mode="READ_WRITE",  # of which Google allows one
            auto_delete=False,
        )
        with self._about(disk.zone, disk.disk_id):
            self._wait_for(node, disk.zone)
            begun = self._instances.attach_disk_unary(
                request={
                    **self._in(disk.zone),
                    "instance": node,
                    "attached_disk_resource": resource,
                },
                timeout=CALL_S,
            )
            self._done(begun, disk.zone)
        return self.found_at(disk)

    def found_at(self, disk: Disk) -> tuple[str, ...]:
        return (f"/dev/disk/by-id/google-{disk.disk_id}",)

    def mark_used(self, disk: Disk, *, now_s: float) -> None:
        """Nothing: Google remembers when a disk was attached and detached."""

    def end_with_node(self, disk: Disk) -> None:
        with self._about(disk.zone, disk.disk_id):
            begun = self._instances.set_disk_auto_delete_unary(
                request={
                    **self._in(disk.zone),
                    "instance": disk.node,
                    "auto_delete": True,
                    "device_name": disk.disk_id,
                },
                timeout=CALL_S,
            )
            self._done(begun, disk.zone)

    def delete(self, disk: Disk) -> None:
        try:
            with self._about(disk.zone, disk.disk_id):
                labels = self._get(disk.zone, disk.disk_id).labels
                if labels.get(CLUSTER_TAG) != disk.cluster:
                    raise DiskNotFree(
                        f"{disk.disk_id} carries no label {CLUSTER_TAG}={disk.cluster}",
                        market=_market(disk.zone, disk.disk_id),
                    )
                begun = self._disks.delete_unary(
                    request={**self._in(disk.zone), "disk": disk.disk_id}, timeout=CALL_S
                )
                self._done(begun, disk.zone)
        except DiskNotFree as exc:
            if not exc.is_gone:
                raise

    # -- what Google says ----------------------------------------------------

    def _in(self, zone: str) -> dict[str, Any]:
        return {"project": self._project, "zone": zone}

    def _get(self, zone: str, name: str) -> Any:
        return self._disks.get(request={**self._in(zone), "disk": name}, timeout=CALL_S)

    def _wait_for(self, node: str, zone: str) -> None:
        """Return once a node runs.

        Raises:
            ConfigError: it is gone or has ended.
            ThrottledError: it does not run after two minutes.
        """
        from google.api_core.exceptions import NotFound

        def runs() -> bool:
            try:
                found = self._instances.get(
                    request={**self._in(zone), "instance": node}, timeout=CALL_S
                )
            except NotFound as exc:
                raise ConfigError(f"{node} is gone") from exc
            if found.status not in ("PROVISIONING", "STAGING", "RUNNING"):
                raise ConfigError(f"{node} is {found.status}")
            return bool(found.status == "RUNNING")

        self._wait(runs, f"{node} does not run", zone, timeout_s=_RUNNING_S)

    def _done(self, begun: Any, zone: str) -> None:
        """Return once an operation is done; raises what it failed with."""
        latest = begun

        def is_done() -> bool:
            nonlocal latest
            if latest.status != self._types.Operation.Status.DONE:
                request = {**self._in(zone), "operation": begun.name}
                latest = self._operations.get(request=request, timeout=CALL_S)
            return bool(latest.status == self._types.Operation.Status.DONE)

        self._wait(is_done, f"{begun.name} goes on", zone, timeout_s=_OPERATION_S)
        for one in latest.error.errors:
            raise OperationFailed(one.code, one.message)

    def _wait(self, ready: Callable[[], bool], what: str, zone: str, *, timeout_s: float) -> None:
        if not wait_until(ready, timeout_s=timeout_s, clock=self._clock, poll_s=_POLL_S):
            raise ThrottledError(
                f"{what} after {timeout_s:.0f} s",
                market=_market(zone, "disks"),
                retry_after_s=timeout_s,
            )

    @contextmanager
    def _about(self, zone: str, what: str) -> Iterator[None]:
        """Google's errors in our words, with those that mean: another disk."""
        from google.api_core.exceptions import GoogleAPICallError, RetryError

        market = _market(zone, what)
        try:
            yield
        except OperationFailed as exc:
            if exc.code in _TAKEN + _GONE:
                raise DiskNotFree(
                    f"{market}: {exc}",
                    market=market,
                    code=exc.code,
                    is_gone=exc.code in _GONE,
                ) from exc
            raise_ours(exc, exc.code, exc.words, market, None)
        except GoogleAPICallError as exc:
            code, words = _reason(exc), str(exc.message)
            if code in _TAKEN + _GONE:
                raise DiskNotFree(
                    f"{market}: {words}", market=market, code=code, is_gone=code in _GONE
                ) from exc
            raise_ours(exc, code, words, market, int(exc.code or 0))
        except (RetryError, OSError) as exc:  # no way to Google, or no answer in time
            raise ThrottledError(
                f"{market}: {exc}", market=market, code=type(exc).__name__, retry_after_s=5.0
            ) from exc


def api_errors() -> tuple[type[Exception], ...]:
    """The bases of what google-cloud-compute raises, credentials that are missing included.

    Raises:
        ImportError: it is not installed.
    """
    import google.cloud.compute_v1  # noqa: F401  if it is missing, say so here
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    return GoogleAPIError, GoogleAuthError, OperationFailed


def _reason(error: Any) -> str:
    told = error.errors or [{}]
    reason = told[0].get("reason", "") if isinstance(told[0], Mapping) else ""
    return str(reason or error.code)


def _name(wish: DiskWish) -> str:
    """The same for one slot of a zone: two who make it at once are told apart by Google."""
    name = f"spotray-{wish.cluster}-{wish.slot}"
    if len(name) <= _NAME_CHARS:
        return name
    return f"{name[: _NAME_CHARS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _disk(found: Any) -> Disk:
    times = (found.creation_timestamp, found.last_attach_timestamp, found.last_detach_timestamp)
    return Disk(
        disk_id=found.name,
        zone=last_part(found.zone),
        cluster=found.labels.get(CLUSTER_TAG, ""),
        slot=found.labels.get(SLOT_TAG, ""),
        size_gib=int(found.size_gb),
        type=last_part(found.type_),
        used_s=unix_s(*times),
        node=last_part(found.users[0]) if found.users else "",
        is_free=found.status == "READY" and not found.users,
    )


def unix_s(*times: str) -> float:
    """The latest of Google's times, as far as they are set."""
    return max(datetime.fromisoformat(one).timestamp() for one in times if one)


def last_part(url: str) -> str:
    """The name at the end of a resource's URL."""
    return str(url).rpartition("/")[2]


def _market(zone: str, what: str) -> str:
    return f"gcp/{zone}/{what}"
