"""``python -m spotray.agent``: one process on each node, started beside its raylet.

It lives as long as the node's Ray: where Ray is started anew, the node has a new id
and the agent is started anew as well.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable

from spotray.agent.agent import NodeAgent
from spotray.agent.identify import await_node_id
from spotray.cloud.aws import notices as aws
from spotray.cloud.azure import notices as azure
from spotray.cloud.gcp import notices as gcp
from spotray.cloud.provider import Notice, NoticeSource
from spotray.cluster.drain import drain_node, split_address
from spotray.errors import SpotrayError
from spotray.events import Event
from spotray.ledger.late import LateJournal

log = logging.getLogger("spotray.agent")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END_S = 0.9  # all that an ordinary end may take
_LATE_END_S = 5.0  # what storage gets on top if it is slow; the cloud kills later than that


class _Service:
    """The agent's thread and its end; the main thread only waits for signals.

    A call into Ray's compiled code, or a read from the metadata service, may take
    seconds in which Python runs no signal handler: so the work has a thread of its own.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        split_address(args.ray_address)
        self._args = args
        self._endpoint = args.endpoint or default_endpoint(args.cloud)
        self._notices = notice_source(args.cloud, self._endpoint, poll_s=args.poll_s)
        self._stop = threading.Event()
        self._agent: NodeAgent | None = None
        self._journal: LateJournal | None = None
        self._error: SpotrayError | None = None
        self._thread = threading.Thread(target=self._work, name="agent", daemon=True)

    def run(self) -> None:
        """Serve until a signal comes.

        Raises:
            SpotrayError: it cannot serve; asking again would not help.
        """
        # Blocked before the thread starts, so that it inherits the mask: signals wait
        # for the main thread, which takes them without a handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._thread.start()
        signal.sigwait(_SIGNALS)
        end_s = time.monotonic() + _END_S
        self._stop.set()
        self._thread.join(_END_S / 3)
        if self._error is not None:
            raise self._error
        if self._agent is not None:
            self._agent.shut_down()  # in case the thread is held up
        if self._journal is not None:
            self._close(self._journal, end_s - time.monotonic())

    def _close(self, journal: LateJournal, timeout_s: float) -> None:
        if not journal.close(timeout_s=max(0.0, timeout_s)):
            log.warning("the journal is slow, waiting up to %.0f s for it", _LATE_END_S)
            if not journal.close(timeout_s=_LATE_END_S):
                log.error("the journal did not take the last facts: they are lost")

    def _work(self) -> None:
        args = self._args
        try:
            node_id = args.node_id or await_node_id(
                args.ray_address, args.node_ip, stop=self._stop, poll_s=self._notices.poll_s
            )
        except SpotrayError as exc:
            self._error = exc
            os.kill(os.getpid(), signal.SIGTERM)  # wakes the main thread
            return
        if node_id is None:  # stopped before Ray was up
            return
        log.info("watching node %s at %s", node_id, self._endpoint)
        if args.journal:
            self._journal = LateJournal(args.journal, writer=f"agent-{node_id[:12]}")
        self._agent = NodeAgent(
            self._notices,
            lambda notice: _drain(args.ray_address, node_id, notice),
            self._journal.append if self._journal else _forget,
            node_id=node_id,
            drain_margin_s=args.drain_margin_s,
        )
        self._agent.run(self._stop)


def default_endpoint(cloud: str) -> str:
    """Where a cloud's metadata service is, or where its own SDKs' variable says."""
    if cloud == "aws":
        return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or aws.ENDPOINT
    if cloud == "gcp":
        host = os.environ.get("GCE_METADATA_HOST")
        return f"http://{host}" if host else gcp.ENDPOINT
    return azure.ENDPOINT


def notice_source(cloud: str, endpoint: str, *, poll_s: float | None) -> NoticeSource:
    """Who is asked about this node; ``poll_s`` None: as often as that cloud advises."""
    sources: dict[str, Callable[..., NoticeSource]] = {
        "aws": aws.AwsNotices,
        "azure": azure.AzureNotices,
        "gcp": gcp.GcpNotices,
    }
    return sources[cloud](endpoint, **({} if poll_s is None else {"poll_s": poll_s}))


def _drain(ray_address: str, node_id: str, notice: Notice) -> None:
    assert notice.deadline_s is not None  # the agent names one where the cloud does not
    why = f"{notice.cause} notice from {notice.source}"
    drain_node(ray_address, node_id, deadline_s=notice.deadline_s, why=why)


def _forget(event: Event) -> None:
    log.debug("no journal for %s", event)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 ended by a signal, 1 a spotray error, 2 wrong usage."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        _Service(args).run()
    except SpotrayError as exc:
        print(f"spotray.agent: {exc}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spotray.agent",
        description="Hear the cloud's notice for this node, and drain the node in Ray.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--cloud", required=True, choices=["aws", "azure", "gcp"], help="whose metadata service")
    add(
        "--endpoint",
        metavar="URL",
        help="the metadata service (default: $AWS_EC2_METADATA_SERVICE_ENDPOINT, "
        "$GCE_METADATA_HOST, or the cloud's own address)",
    )
    add("--ray-address", required=True, metavar="HOST:PORT", help="Ray's head")
    node = parser.add_mutually_exclusive_group()
    node.add_argument("--node-id", type=_hex, metavar="HEX", help="Ray's id of this node")
    node.add_argument(
        "--node-ip",
        metavar="IP",
        help="its address in Ray (default: the one that reaches the head)",
    )
    add("--journal", metavar="URL", help="folder for the facts; a path or s3://BUCKET/PATH")
    add(
        "--poll-s",
        type=_positive,
        metavar="S",
        help="ask every S seconds (aws 5, azure and gcp 1)",
    )
    add(
        "--drain-margin-s",
        type=_not_negative,
        default=2.0,
        metavar="S",
        help="Ray's deadline is S seconds before the cloud's (2)",
    )
    return parser


def _hex(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an id of Ray: write it in hex")
    return text


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 seconds is too short")
    return value


if __name__ == "__main__":
    sys.exit(main())
