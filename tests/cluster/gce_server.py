"""Google's REST API on loopback, as far as `ray up` and our own questions go.

Instances and operations are those of `EmulatedGCE`; project, images, quotas, service
accounts and buckets are here. What nobody has taught it is a 501 and is kept in
``unanswered``.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.cluster.emulated_gce import REGION, ZONES, EmulatedGCE, http_error

Answer = Callable[..., Any]
PROJECT = "my-lab"


class GceServer:
    """A project on Google Cloud, to be changed by a test."""

    def __init__(self) -> None:
        self.gce = EmulatedGCE()
        self.gce.takes_s = 0.0  # its clock stands still
        self.quotas = {  # metric -> limit, usage
            "CPUS": (100.0, 0.0),
            "N2_CPUS": (100.0, 0.0),
            "NVIDIA_L4_GPUS": (8.0, 0.0),
            "PREEMPTIBLE_NVIDIA_L4_GPUS": (8.0, 0.0),
            "NVIDIA_T4_GPUS": (8.0, 0.0),
            "PREEMPTIBLE_NVIDIA_T4_GPUS": (8.0, 0.0),
        }
        self.all_gpus = (8.0, 0.0)
        self.machine_types: dict[str, dict[str, Any]] = {
            "g2-standard-4": {
                "guestCpus": 4,
                "accelerators": [{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}],
            },
            "n1-standard-4": {"guestCpus": 4},
            "n1-standard-8": {"guestCpus": 8},
            "n2-standard-2": {"guestCpus": 2},
            "n2-standard-4": {"guestCpus": 4},
        }
        self.missing: set[tuple[str, str]] = set()  # machine or accelerator type, zone
        self.images = {
            "common-cu129-ubuntu-2404-nvidia-580": "A deep learning image with the driver",
            "ubuntu-2404-lts-amd64": "Canonical's",
        }
        self.buckets = {"runs": "US-CENTRAL1"}
        self.objects: set[str] = set()
        self.lacks: set[str] = set()  # permissions
        self.forbids: str = ""  # paths that match end in 403
        self.metadata: dict[str, Any] = {"fingerprint": "m", "items": []}
        self.accounts: dict[str, dict[str, Any]] = {}
        self.bindings: list[dict[str, Any]] = []
        self.asked: list[str] = []  # "GET /compute/v1/projects/my-lab"
        self.unanswered: list[str] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                with outer._lock:
                    status, told = outer.answer(self.command, self.path, body)
                text = json.dumps(told).encode() if status != 204 else b""
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _serve

            def log_message(self, *args: Any) -> None:
                """Tests want to read their own output."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self._routes = self._table()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def serve_google(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every client that Google's library builds come here: it has no variable for it."""
        from googleapiclient import discovery, discovery_cache

        def build(api: str, version: str, **kwargs: Any) -> Any:
            del kwargs["cache_discovery"]
            text = discovery_cache.get_static_doc(api, version)
            document = json.loads(text)
            document["rootUrl"] = self.url  # also of uploads, which heed no other option
            return discovery.build_from_document(document, **kwargs)

        monkeypatch.setattr(discovery, "build", build)
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)

    # -- answers -------------------------------------------------------------

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        from googleapiclient.errors import HttpError

        parts = urlsplit(path)
        told = parse_qs(parts.query)
        keys = {key: one if key == "permissions" else one[0] for key, one in told.items()}
        asked = f"{method} {parts.path}"
        self.asked.append(asked)
        if self.forbids and re.search(self.forbids, asked):
            return 403, _error(403, "forbidden", "not you")
        for pattern, route in self._routes:
            if found := re.fullmatch(pattern, asked):
                is_json = body.startswith(b"{")
                try:
                    names = {name: unquote(one) for name, one in found.groupdict().items()}
                    said = route(body=json.loads(body) if is_json else {}, keys=keys, **names)
                except HttpError as exc:
                    return int(exc.resp.status), json.loads(exc.content)
                return (204, None) if said is None else (200, said)
        self.unanswered.append(asked)
        return 501, _error(501, "notImplemented", asked)

    def _table(self) -> list[tuple[str, Answer]]:
        one = r"[^/:]+"
        compute = rf"/compute/v1/projects/(?P<project>{one})"
        zone = rf"{compute}/zones/(?P<zone>{one})"
        crm = rf"/v1/projects/(?P<project>{one})"
        return [
            (rf"GET {compute}", self._project),
            (rf"POST {compute}/setCommonInstanceMetadata", self._set_metadata),
            (rf"GET {compute}/global/operations/(?P<name>{one})", self._global_operation),
            (rf"GET {compute}/global/images/family/(?P<name>{one})", self._image),
            (rf"GET {compute}/global/images/(?P<name>{one})", self._image),
            (rf"GET {compute}/zones", self._zones),
            (rf"GET {compute}/regions/(?P<region>{one})", self._region),
            (rf"GET {compute}/regions/(?P<region>{one})/subnetworks", self._subnets),
            (rf"GET {zone}/machineTypes/(?P<name>{one})", self._machine_type),
            (rf"GET {zone}/acceleratorTypes/(?P<name>{one})", self._accelerator),
            (rf"GET {compute}/aggregated/instances", self._everywhere),
            (rf"GET {zone}/instances", self._list),
            (rf"POST {zone}/instances", self._insert),
            (rf"GET {zone}/instances/(?P<instance>{one})", self._instance),
            (rf"DELETE {zone}/instances/(?P<instance>{one})", self._delete),
            (rf"POST {zone}/instances/(?P<instance>{one})/setLabels", self._set_labels),
            (rf"GET {zone}/operations/(?P<operation>{one})", self._operation),
            (rf"GET {zone}/operations", self._operations),
            (rf"GET {crm}", self._crm_project),
            (rf"POST {crm}:getIamPolicy", self._policy),
            (rf"POST {crm}:setIamPolicy", self._set_policy),
            (rf"POST {crm}:testIamPermissions", self._permissions),
            (rf"GET {crm}/serviceAccounts/(?P<email>{one})", self._account),
            (rf"POST {crm}/serviceAccounts", self._add_account),
            (rf"GET /storage/v1/b/(?P<name>{one})", self._bucket),
            (rf"GET /storage/v1/b/(?P<name>{one})/iam/testPermissions", self._permissions_here),
            (rf"POST /upload/storage/v1/b/(?P<name>{one})/o", self._put),
            (rf"DELETE /storage/v1/b/(?P<name>{one})/o/(?P<key>{one})", self._remove),
        ]

    def _of(self, project: str) -> None:
        if project != PROJECT:
            raise http_error(404, "notFound", f"no project {project}")

    def _project(self, *, project: str, **_: Any) -> Any:
        self._of(project)
        limit, usage = self.all_gpus
        quotas = [{"metric": "GPUS_ALL_REGIONS", "limit": limit, "usage": usage}]
        return {"name": project, "commonInstanceMetadata": self.metadata, "quotas": quotas}

    def _set_metadata(self, *, body: Any, **_: Any) -> Any:
        self.metadata = body
        return {"name": "operation-global", "status": "RUNNING"}

    def _global_operation(self, *, name: str, **_: Any) -> Any:
        return {"name": name, "status": "DONE"}

    def _image(self, *, name: str, **_: Any) -> Any:
        if name not in self.images:
            raise http_error(404, "notFound", f"no image {name}")
        return {"name": name, "description": self.images[name], "status": "READY"}

    def _zones(self, **_: Any) -> Any:
        region = f"https://compute/regions/{REGION}"
        items = [{"name": zone, "status": "UP", "region": region} for zone in ZONES]
        far = {"name": "europe-west4-a", "status": "UP", "region": "regions/europe-west4"}
        return {"items": [*items, far]}

    def _region(self, *, region: str, **_: Any) -> Any:
        quotas = [
            {"metric": metric, "limit": limit, "usage": usage}
            for metric, (limit, usage) in self.quotas.items()
        ]
        return {"name": region, "quotas": quotas}

    def _subnets(self, *, region: str, **_: Any) -> Any:
        return {"items": [{"selfLink": f"{self.url}{region}/subnetworks/default"}]}

    def _machine_type(self, *, zone: str, name: str, **_: Any) -> Any:
        if name not in self.machine_types or (name, zone) in self.missing:
            raise http_error(404, "notFound", f"no {name} in {zone}")
        return {"name": name, "architecture": "X86_64", **self.machine_types[name]}

    def _accelerator(self, *, zone: str, name: str, **_: Any) -> Any:
        if name not in ("nvidia-tesla-t4", "nvidia-l4") or (name, zone) in self.missing:
            raise http_error(404, "notFound", f"no {name} in {zone}")
        return {"name": name}

    def _everywhere(self, *, keys: dict[str, Any], **_: Any) -> Any:
        (cluster,) = re.findall(r"labels\.ray-cluster-name = ([\w-]+)", keys["filter"])
        found: dict[str, Any] = {}
        for machine in self.gce.machines.values():
            zone = machine["zone"].rpartition("/")[2]
            listed = found.setdefault(f"zones/{zone}", {"instances": []})["instances"]
            if machine["labels"].get("ray-cluster-name") == cluster:
                listed.append(machine)
        return {"items": found}

    def _list(self, *, project: str, zone: str, keys: dict[str, str], **_: Any) -> Any:
        return self.gce.list(project=project, zone=zone, filter=keys["filter"]).execute()

    def _insert(self, *, project: str, zone: str, body: Any, **_: Any) -> Any:
        call = self.gce.insert(project=project, zone=zone, body=body, sourceInstanceTemplate=None)
        return call.execute()

    def _instance(self, *, project: str, zone: str, instance: str, **_: Any) -> Any:
        return self.gce.get(project=project, zone=zone, instance=instance).execute()

    def _delete(self, *, project: str, zone: str, instance: str, **_: Any) -> Any:
        return self.gce.delete(project=project, zone=zone, instance=instance).execute()

    def _set_labels(self, *, project: str, zone: str, instance: str, body: Any, **_: Any) -> Any:
        call = self.gce.setLabels(project=project, zone=zone, instance=instance, body=body)
        return call.execute()

    def _operation(self, *, project: str, zone: str, operation: str, **_: Any) -> Any:
        of = self.gce.zoneOperations()
        return of.get(project=project, zone=zone, operation=operation).execute()

    def _operations(self, *, project: str, zone: str, keys: dict[str, str], **_: Any) -> Any:
        of = self.gce.zoneOperations()
        return of.list(project=project, zone=zone, filter=keys["filter"]).execute()

    def _crm_project(self, *, project: str, **_: Any) -> Any:
        self._of(project)
        return {"projectId": project, "lifecycleState": "ACTIVE"}

    def _policy(self, **_: Any) -> Any:
        return {"version": 3, "bindings": self.bindings}

    def _set_policy(self, *, body: Any, **_: Any) -> Any:
        self.bindings = body["policy"]["bindings"]
        return body["policy"]

    def _permissions(self, *, body: Any, **_: Any) -> Any:
        return {"permissions": [one for one in body["permissions"] if one not in self.lacks]}

    def _account(self, *, email: str, **_: Any) -> Any:
        if email not in self.accounts:
            raise http_error(404, "notFound", f"no {email}")
        return self.accounts[email]

    def _add_account(self, *, project: str, body: Any, **_: Any) -> Any:
        email = f"{body['accountId']}@{project}.iam.gserviceaccount.com"
        self.accounts[email] = {"email": email, "projectId": project, **body["serviceAccount"]}
        return self.accounts[email]

    def _bucket(self, *, name: str, **_: Any) -> Any:
        if name not in self.buckets:
            raise http_error(404, "notFound", f"no bucket {name}")
        return {"name": name, "location": self.buckets[name]}

    def _permissions_here(self, *, keys: dict[str, list[str]], **_: Any) -> Any:
        return {"permissions": [one for one in keys["permissions"] if one not in self.lacks]}

    def _put(self, *, name: str, keys: dict[str, str], **_: Any) -> Any:
        self.objects.add(f"{name}/{keys['name']}")
        return {"name": keys["name"]}

    def _remove(self, *, name: str, key: str, **_: Any) -> Any:
        self.objects.remove(f"{name}/{key}")


def _error(status: int, reason: str, words: str) -> Any:
    return {"error": {"code": status, "message": words, "errors": [{"reason": reason}]}}
