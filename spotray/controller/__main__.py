"""``python -m spotray.controller``: one process on the head, started beside Ray's head.

It lives as long as the head's Ray, whose raylet ends it: what started it starts it anew,
and it goes on with what was begun.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spotray.cluster.drain import drain_node, split_address
from spotray.cluster.memory import LaunchMemory
from spotray.cluster.telling import Teller
from spotray.controller.book import BookKeeper
from spotray.controller.idle import IdleWatch
from spotray.controller.pools import ClusterPools
from spotray.controller.remember import StateFile
from spotray.errors import ConfigError, SpotrayError

log = logging.getLogger("spotray.controller")

BOOTSTRAP = "~/ray_bootstrap_config.yaml"  # where `ray up` leaves the cluster's config
REQUESTER = "spotray-controller"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END_S = 5.0  # all that an ordinary end may take
_RETRY_S = 2.0


class _Service:
    """The controller's thread and its end; the main thread only waits for signals."""

    def __init__(self, args: argparse.Namespace) -> None:
        split_address(args.ray_address)
        self._args = args
        self._config = read_config(args.config)
        self._cluster = ClusterPools.of(self._config)
        self._stop = threading.Event()
        self._tell = Teller("controller", args.journal)
        self._thread = threading.Thread(target=self._serve, name="controller", daemon=True)
        self._failed = False

    @property
    def cloud(self) -> str:
        return self._cluster.cloud

    def run(self) -> bool:
        """Serve until a signal comes; False if the controller ended before."""
        # Blocked before the thread starts, so that it inherits the mask: signals wait
        # for the main thread, which takes them without a handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._thread.start()
        if (book := self._cluster.book) and (journal := journal_of(self._args)):
            keeper = BookKeeper(journal, book)
            threading.Thread(
                target=keeper.run, args=(self._stop,), name="book", daemon=True
            ).start()
        signal.sigwait(_SIGNALS)
        end_s = time.monotonic() + _END_S
        self._stop.set()
        self._thread.join(_END_S / 2)
        if not self._tell.close(timeout_s=max(0.0, end_s - time.monotonic())):
            log.error("the journal did not take the last facts: they are lost")
        return not self._failed

    def _serve(self) -> None:
        try:
            self._work()
        except Exception:  # such as an SDK that finds no credentials
            log.exception("the controller ended")
            self._failed = not self._stop.is_set()
            # The main thread would wait on, and nobody would start the controller anew.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _work(self) -> None:
        # Late: Ray takes a second to import, and a wrong argument is told before.
        from spotray.cluster.ray_autoscaler.head import RayHead
        from spotray.cluster.ray_autoscaler.requests import NodeRequest
        from spotray.controller.applications import connect, running_jobs, stop_job
        from spotray.controller.controller import Controller, Edges

        args, cluster = self._args, self._cluster
        while not self._stop.is_set():
            try:
                connect(args.ray_address)
                break
            except SpotrayError as exc:
                log.info("waiting for Ray: %s", exc)
                self._stop.wait(_RETRY_S)
        else:
            return
        log.info("watching %s: pools %s", args.ray_address, ", ".join(cluster.pools))
        down_s = args.down_when_idle
        memory = LaunchMemory(cluster.memory)
        Controller(
            cluster,
            Edges(
                head=RayHead(args.ray_address),
                request=NodeRequest(REQUESTER),
                cloud=_Ending(self._config, self._tell),
                drain=lambda node_id, deadline_s, why: drain_node(
                    args.ray_address, node_id, deadline_s=deadline_s, why=why
                ),
                jobs=running_jobs,
                stop=stop_job,
                tell=self._tell,
            ),
            memory,
            state_file=StateFile(args.state or memory.path.with_name("controller.json")),
            idle=None if down_s is None else IdleWatch(down_s * 60.0),
            down_with_head=args.with_head,
        ).run(self._stop)


class _Ending:
    """`spotray.controller.controller.Cloud` through the provider of the cluster's YAML."""

    def __init__(self, config: Mapping[str, Any], tell: Teller) -> None:
        from spotray.cluster.ray_autoscaler.instances import Instances

        self._instances, self._tell = Instances(config), tell

    def end(self, name: str) -> None:
        self._instances.end(name)

    def end_workers(self) -> tuple[str, ...]:
        return self._instances.end_workers()

    def end_head(self) -> None:
        self._tell.close()  # with the head goes whatever is not written
        self._instances.end_head()


def journal_of(args: argparse.Namespace) -> str:
    """Where the cluster's facts are; empty: nowhere."""
    return args.journal or os.environ.get("SPOTRAY_JOURNAL", "")


def read_config(path: str) -> dict[str, Any]:
    """The cluster's config.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        config = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as exc:
        why = " ".join(str(exc).split())  # YAML's own words take several lines
        raise ConfigError(f"{path}: {why}: give the config that `ray up` put there") from exc
    if not isinstance(config, dict) or "available_node_types" not in config:
        raise ConfigError(f"{path} is no config of a cluster: give the one that `ray up` put there")
    return config


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 ended by a signal, 1 an error, 2 wrong usage."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.with_head and args.down_when_idle is None:
        parser.error("--with-head needs --down-when-idle")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        service = _Service(args)
        if args.with_head and service.cloud == "azure":
            parser.error(
                "on Azure --with-head would leave the head's disk and address behind: Ray's "
                "provider deletes them after the machine that it runs on; use `ray down`"
            )
        return 0 if service.run() else 1
    except SpotrayError as exc:
        print(f"spotray.controller: {exc}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spotray.controller",
        description="Bring the cluster back to spot, and remember what was taken from it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--ray-address", required=True, metavar="HOST:PORT", help="Ray's head")
    add(
        "--config",
        default=BOOTSTRAP,
        metavar="FILE",
        help=f"the cluster's YAML (default: {BOOTSTRAP}, where `ray up` leaves it)",
    )
    add(
        "--journal",
        metavar="URL",
        help="folder for the facts; a path or s3://BUCKET/PATH (default: $SPOTRAY_JOURNAL)",
    )
    add("--state", metavar="FILE", help="default: controller.json beside the launches' memory")
    add(
        "--down-when-idle",
        type=_minutes,
        metavar="MIN",
        help="end all workers when no driver was connected and no node was busy for that long",
    )
    add("--with-head", action="store_true", help="with --down-when-idle: end the head, too")
    return parser


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give minutes above 0")
    return minutes


if __name__ == "__main__":
    sys.exit(main())
