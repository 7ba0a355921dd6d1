"""EC2's placement groups, which moto does not know, for clients of boto3's default session."""

from __future__ import annotations

from typing import Any

import boto3
import pytest


class EmulatedGroups:
    """Answers three calls; ``tags`` of the groups that there are, by name.

    Nobody may delete those that are ``refused``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tags: dict[str, list[dict[str, str]]] = {}
        self.refused: set[str] = set()
        self._params: dict[str, Any] = {}
        session = boto3.Session()
        for call in ("Describe", "Create", "Delete"):
            name = f"{call}PlacementGroup{'s' if call == 'Describe' else ''}"
            session.events.register(f"provide-client-params.ec2.{name}", self._remember)
            session.events.register(f"before-call.ec2.{name}", getattr(self, f"_{call.lower()}"))
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)

    def _remember(self, params: dict[str, Any], **_: Any) -> None:
        self._params = params

    def _describe(self, **_: Any) -> Any:
        (filtered,) = self._params["Filters"]
        groups = [
            {"GroupName": name, "Strategy": "cluster", "Tags": self.tags[name]}
            for name in filtered["Values"]
            if name in self.tags
        ]
        return _answer(PlacementGroups=groups)

    def _create(self, **_: Any) -> Any:
        (specified,) = self._params["TagSpecifications"]
        self.tags[self._params["GroupName"]] = specified["Tags"]
        return _answer()

    def _delete(self, **_: Any) -> Any:
        if self._params["GroupName"] in self.refused:
            error = {"Code": "UnauthorizedOperation", "Message": "You are not authorized"}
            return _answer(status=403, Error=error)
        del self.tags[self._params["GroupName"]]
        return _answer()


class _Response:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


def _answer(*, status: int = 200, **parsed: Any) -> Any:
    return _Response(status), {**parsed, "ResponseMetadata": {"HTTPStatusCode": status}}
