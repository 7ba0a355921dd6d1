"""As much of Azure's SDK, in memory, as Ray's node provider needs to list and end machines.

The SDK itself is large and comes with `spotray[azure]` only: where a test runs, these
modules stand in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

RESOURCES = ("nic", "ip", "disk")


class ResourceNotFoundError(Exception):
    """As the SDK raises it."""


class _Done:
    """A long-running operation that is over."""

    def wait(self, timeout: float | None = None) -> None:
        return None

    def done(self) -> bool:
        return True


class Azure:
    """The machines of one resource group, and what belongs to each."""

    def __init__(self) -> None:
        self.machines: dict[str, dict[str, str]] = {}  # name -> its tags
        self.left: set[str] = set()  # names of network cards, addresses and disks

    def add(self, name: str, *, cluster: str, kind: str, node_type: str) -> None:
        tags = {"ray-cluster-name": cluster, "ray-node-type": kind}
        self.machines[name] = {**tags, "ray-user-node-type": node_type}
        self.left |= {f"{name}-{what}" for what in RESOURCES}

    # -- as ComputeManagementClient, NetworkManagementClient, ResourceManagementClient

    def machine(self, name: str) -> Any:
        if name not in self.machines:
            raise ResourceNotFoundError(name)
        card = SimpleNamespace(id=f"/networkInterfaces/{name}-nic")
        return SimpleNamespace(
            name=name,
            tags=self.machines[name],
            network_profile=SimpleNamespace(network_interfaces=[card]),
            storage_profile=SimpleNamespace(
                data_disks=[], os_disk=SimpleNamespace(name=f"{name}-disk")
            ),
        )

    def delete_machine(self, name: str) -> _Done:
        del self.machines[name]
        return _Done()

    def delete(self, name: str) -> _Done:
        self.left.discard(name)
        return _Done()

    def card(self, name: str) -> Any:
        address = SimpleNamespace(id=f"/publicIPAddresses/{name.removesuffix('nic')}ip")
        return SimpleNamespace(
            ip_configurations=[
                SimpleNamespace(public_ip_address=address, private_ip_address="10.0.0.4")
            ]
        )

    def client(self, *_: Any, **__: Any) -> Any:
        view = {"statuses": [{"code": "PowerState/running"}]}
        return SimpleNamespace(
            virtual_machines=SimpleNamespace(
                list=lambda resource_group_name: [self.machine(name) for name in self.machines],
                get=lambda resource_group_name, vm_name: self.machine(vm_name),
                instance_view=lambda resource_group_name, vm_name: SimpleNamespace(
                    as_dict=lambda: view
                ),
                begin_delete=lambda resource_group_name, vm_name: self.delete_machine(vm_name),
            ),
            disks=SimpleNamespace(
                begin_delete=lambda resource_group_name, disk_name: self.delete(disk_name)
            ),
            network_interfaces=SimpleNamespace(
                get=lambda resource_group_name, network_interface_name: self.card(
                    network_interface_name
                ),
                begin_delete=lambda resource_group_name, network_interface_name: self.delete(
                    network_interface_name
                ),
            ),
            public_ip_addresses=SimpleNamespace(
                get=lambda resource_group_name, public_ip_address_name: SimpleNamespace(
                    ip_address="20.0.0.4"
                ),
                begin_delete=lambda resource_group_name, public_ip_address_name: self.delete(
                    public_ip_address_name
                ),
            ),
        )


def stands_for_sdk(azure: Azure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Ray's provider for Azure talk to this one until the end of the test."""

    def nobody(*_: Any, **__: Any) -> Any:
        raise AssertionError("on the head the YAML names the subscription")

    modules: Mapping[str, Mapping[str, Any]] = {
        "azure": {},
        "azure.common": {},
        "azure.common.credentials": {"get_cli_profile": nobody},
        "azure.core": {},
        "azure.core.exceptions": {
            "ResourceNotFoundError": ResourceNotFoundError,
            "HttpResponseError": RuntimeError,
        },
        "azure.identity": {
            "DefaultAzureCredential": SimpleNamespace,
            "AzureCliCredential": SimpleNamespace,
        },
        "azure.mgmt": {},
        "azure.mgmt.compute": {"ComputeManagementClient": azure.client},
        "azure.mgmt.network": {"NetworkManagementClient": azure.client},
        "azure.mgmt.resource": {"ResourceManagementClient": azure.client},
        "azure.mgmt.resource.resources": {},
        "azure.mgmt.resource.resources.models": {"DeploymentMode": SimpleNamespace},
    }
    for name, words in modules.items():
        module = ModuleType(name)
        vars(module).update(words, __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
    ours = "ray.autoscaler._private._azure"
    for name in [one for one in sys.modules if one == ours or one.startswith(f"{ours}.")]:
        monkeypatch.delitem(sys.modules, name)
    import ray.autoscaler._private._azure.node_provider as provider

    for name in [one for one in sys.modules if one == ours or one.startswith(f"{ours}.")]:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])  # and out again afterwards
    # It asks the metadata servers of three clouds where it is.
    monkeypatch.setattr(provider, "get_cloud_from_metadata_requests", lambda: "azure")
