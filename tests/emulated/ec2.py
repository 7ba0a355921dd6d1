"""AWS's API (moto) as the machines of the rig reach it: markets that refuse, a log of calls."""

from __future__ import annotations

import io
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

REGION = "us-west-2"
PORT = 5000
_REASONS = {"spot": "Server.SpotInstanceTermination", "loss": "Server.InternalError"}
_NAMES = re.compile(r"InstanceId(\.\d+)?|VolumeId")
_CHANGING = ("RunInstances", "TerminateInstances", "StopInstances", "AttachVolume")
_SILENT = ("DescribeInstances", "DescribeTags")  # Ray asks these every few seconds


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of the API. Empty where an action has no such thing."""

    at_s: float
    by: str  # the caller's address
    action: str
    error: str = ""
    names: tuple[str, ...] = ()  # instances made, or instances and volume that it is about
    instance_type: str = ""
    zone: str = ""
    spot: bool = False


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """RunInstances fails with ``code`` where all that is given here fits."""

    code: str
    spot: bool | None = None
    zone: str | None = None
    instance_type: str | None = None

    def fits(self, call: Call) -> bool:
        return (
            self.spot in (None, call.spot)
            and self.zone in (None, call.zone)
            and self.instance_type in (None, call.instance_type)
        )


@dataclass
class EC2:
    """The API, served on all addresses of the rig.

    ``changed`` is called, from any thread, when instances may have come or gone, or got a
    volume; ``attaching``, with a volume's id and an instance's, before one is attached:
    the error's code if it may not be. What a machine sends to ``/tell`` goes to ``told``,
    with its time and its sender.
    """

    changed: Callable[[], None]
    attaching: Callable[[str, str], str]
    calls: list[Call] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    step_s: float = 0.5  # the answer to who tells: how long a step of the job shall take
    _types: dict[bytes, bytes] = field(default_factory=dict)

    def start(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        server = make_server(
            "0.0.0.0", PORT, self._answer, threaded=True, request_handler=MotoRequestHandler
        )
        threading.Thread(target=server.serve_forever, name="ec2", daemon=True).start()

    @property
    def backend(self) -> Any:
        return ec2_backends[DEFAULT_ACCOUNT_ID][REGION]

    def instances(self) -> list[Any]:
        """moto's own, also those that ended."""
        reservations = list(self.backend.reservations.values())
        return [one for group in reservations for one in list(group.instances)]

    def volumes(self) -> list[Any]:
        """moto's own, but for boot disks."""
        return [one for one in list(self.backend.volumes.values()) if one.get_tags()]

    def ended(self, name: str, *, by: str) -> None:
        """The cloud itself ended an instance; ``by``: "spot" or "loss"."""
        instance = self.backend.get_instance(name)
        instance.terminate()
        instance.state_reason.code = _REASONS[by]

    # -- serving ---------------------------------------------------------------

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if not environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
            return self._moto(environ, start)  # S3, whose bodies may be in chunks
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ["PATH_INFO"] == "/tell":
            told = {"at_s": time.time(), "by": environ["REMOTE_ADDR"], **json.loads(body)}
            self.told.append(told)
            return _reply(start, "200 OK", str(self.step_s).encode(), "text/plain")
        environ["wsgi.input"] = io.BytesIO(body)
        form = dict(parse_qsl(body.decode()))
        if "Action" not in form:
            return self._moto(environ, start)
        call = self._call(environ["REMOTE_ADDR"], form)
        for refusal in list(self.refusals):
            if call.action == "RunInstances" and refusal.fits(call):
                self._log(call, error=refusal.code)
                return _reply(start, "500 Error", _error(refusal.code), "text/xml")
        if call.action == "AttachVolume":  # moto gives any to anybody
            code = self.attaching(form["VolumeId"], form["InstanceId"])
            if code:
                self._log(call, error=code)
                return _reply(start, "400 Error", _error(code), "text/xml")
        if call.action == "RunInstances":
            # moto makes as few as it may, EC2 as many as it can.
            body = urlencode(form | {"MinCount": form["MaxCount"]}).encode()
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        if (known := self._types.get(body)) is not None:
            self._log(call)
            return _reply(start, "200 OK", known, "text/xml")
        return self._ask_moto(environ, start, call, body, form)

    def _ask_moto(
        self, environ: dict[str, Any], start: Any, call: Call, body: bytes, form: dict[str, str]
    ) -> Iterable[bytes]:
        status = ""

        def note(line: str, *rest: Any) -> Any:
            nonlocal status
            status = line
            return start(line, *rest)

        answer = b"".join(self._moto(environ, note))
        if not status.startswith("2"):
            code = re.search(rb"<Code>(.*?)</Code>", answer)
            self._log(call, error=code[1].decode() if code else status)
            return [answer]
        if call.action == "DescribeInstanceTypes":
            self._types[body] = answer  # moto takes seconds for it
        if call.action == "RunInstances":
            found = re.findall(rb"<instanceId>(.*?)</instanceId>", answer)
            made = list(dict.fromkeys(one.decode() for one in found))
            self._log(call, names=tuple(made))
            if profile := form.get("IamInstanceProfile.Name"):
                for name in made[1:]:  # moto gives it to the first only
                    self.backend.associate_iam_instance_profile(name, profile)
        else:
            self._log(call)
        if call.action in _CHANGING:
            self.changed()
        return [answer]

    def _call(self, by: str, form: dict[str, str]) -> Call:
        zone = ""
        if subnet_id := form.get("SubnetId") or form.get("NetworkInterface.1.SubnetId"):
            zone = self.backend.get_subnet(subnet_id).availability_zone
        return Call(
            at_s=time.time(),
            by=by,
            action=form["Action"],
            names=tuple(form[key] for key in sorted(form) if _NAMES.fullmatch(key)),
            instance_type=form.get("InstanceType", ""),
            zone=zone,
            spot=form.get("InstanceMarketOptions.MarketType") == "spot",
        )

    def _log(self, call: Call, **more: Any) -> None:
        if call.action not in _SILENT:
            self.calls.append(Call(**(asdict(call) | more)))


def _error(code: str) -> bytes:
    return (
        f'<?xml version="1.0"?><Response><Errors><Error><Code>{code}</Code>'
        f"<Message>There is none here now.</Message></Error></Errors>"
        f"<RequestID>{uuid.uuid4()}</RequestID></Response>"
    ).encode()


def _reply(start: Any, status: str, body: bytes, kind: str) -> list[bytes]:
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]
