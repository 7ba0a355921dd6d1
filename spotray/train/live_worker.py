"""One worker of a live job: a plain Ray actor around the user's training loop.

Ray Train's workers start together and end together, whatever Ray 2.60 is told; a plain
actor can come and go while the others step.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from spotray.clock import SystemClock, wait_until
from spotray.errors import ConfigError
from spotray.storage import Store
from spotray.train import session as session_module
from spotray.train.config import SpotConfig
from spotray.train.member import LeftJob, Member, Reenter, Unreachable
from spotray.train.session import LiveUnsupported, Progress, Session, StopRequest
from spotray.train.shelf import Address, Shelf
from spotray.train.vision_compat import mend_torchvision
from spotray.train.worker import shm_home
from spotray.train.world import World

log = logging.getLogger(__name__)

_PEER_GONE = ("closed by peer", "reset by peer", "Read error", "Broken pipe", "NCCL")
_BREACH_S = 5.0  # until all that are left have heard of a lost member
_NEEDS_RAY_TRAIN = "the loop calls Ray Train itself, which does not know live workers"
_NEEDS_A_GROUP = (
    "fully_shard, or a torch.distributed call of the loop's own, needs a process group before "
    "run.prepare(), and under live recovery there is none yet"
)
_WRITTEN_FOR_RAY_TRAIN = {  # words of an error -> what the loop did
    "outside of a Ray Train training function": _NEEDS_RAY_TRAIN,
    "Default process group has not been initialized": _NEEDS_A_GROUP,
    "environment variable RANK expected, but not set": _NEEDS_A_GROUP,  # it tried to make one
}


@dataclass(frozen=True, kw_only=True)
class LiveJob:
    """What every worker of a job is given."""

    loop: Callable[..., Any]
    config: dict[str, Any]
    run_id: str
    store: Store
    spot: SpotConfig
    coordinator: Any  # handle of the LiveCoordinator actor, or of one that has several jobs
    key: str = ""  # which of them: then the actor's `call` gets it first
    asks: bool = False  # after reports, the workers wait for the decision whether to go on
    # URL of a checkpoint of another job, from which this one begins. What the loop sets in its
    # optimizers (learning rate, weight decay) then counts more than what that job had.
    resume_from_checkpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a worker's training function ended; its bugs are raised instead.

    ``kind``: finished; left (its node will be taken, or it was thrown out); unsupported
    (live recovery cannot serve this loop).
    """

    kind: str
    why: str = ""


class LiveWorker:
    """Runs as an actor, one for each worker."""

    def run(self, job: LiveJob, name: str) -> Outcome:
        """The training loop, to its end; ``name`` is never used twice in a job."""
        mend_torchvision()
        context = ray.get_runtime_context()
        device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        calls = RayCalls(job.coordinator, key=job.key)
        node_id = context.get_node_id()
        return work(
            job.loop,
            job.config,
            Member(calls, name=name, node_id=node_id, device=device, shelf=_shelf_on(node_id)),
            run_id=job.run_id,
            store=job.store,
            spot=job.spot,
            shm_dir=shm_home(),
            device=device,
            node_id=node_id,
            asks=job.asks,
            resume_from_checkpoint=job.resume_from_checkpoint,
        )


_shelf: Shelf | None = None  # of this process, whatever job it works for


def _shelf_on(node_id: str) -> Address | None:
    """Where this process takes copies of the snapshots of others; None: it cannot."""
    global _shelf
    if _shelf is None:
        host = ray.util.get_node_ip_address()
        try:
            _shelf = Shelf(shm_home(), host=host, node_id=node_id)
        except OSError as exc:  # what it is for can do without
            log.warning("no copies of others' snapshots are taken here: %s", exc)
            return None
    return _shelf.address


def work(
    loop: Callable[..., Any],
    config: dict[str, Any],
    member: Member,
    *,
    run_id: str,
    store: Store | None,
    spot: SpotConfig,
    shm_dir: Path | None,
    device: torch.device,
    node_id: str,
    asks: bool = False,
    resume_from_checkpoint: str | None = None,
) -> Outcome:
    """A training loop as a member of a live job. Free of Ray."""
    try:
        entry = member.enter()
    except LeftJob as exc:
        return Outcome(kind="left", why=str(exc))
    session = Session(
        run_id=run_id,
        world=World(device=device),
        spot=spot,
        store=store,
        shm_dir=shm_dir,
        node_id=node_id,
        link=LiveLink(member),
        journal=member,
        member=member,
        warm_up_from=(entry.epoch, entry.step) if entry.warm_up else None,
        asks=asks,
        resume_from_checkpoint=resume_from_checkpoint,
    )
    try:
        while True:
            session_module.enter(session)
            try:
                loop(config) if inspect.signature(loop).parameters else loop()
                if session.run is None or not session.run.is_prepared:
                    raise ConfigError(
                        "the training loop prepared no spotray.Run, so nothing was trained "
                        "together: make one (run = spotray.Run(...); run.prepare(...)), or say "
                        'recovery="restart" for a loop in Ray Train\'s own words'
                    )
                session.run.finish()
                return Outcome(kind="finished")
            except Reenter as exc:
                log.info("the training loop is run again from its top: %s", exc)
                session.handed_over = session.run.handed_over()
                session.warm_up_from = None
                session.run = None
    except LeftJob as exc:
        return Outcome(kind="left", why=str(exc))
    except LiveUnsupported as exc:
        return Outcome(kind="unsupported", why=str(exc))
    except Exception as exc:
        if _lost_its_peers(exc, member):
            # A collective of the loop's own: only the loop's top is a place to go on from.
            log.warning("the training loop ended with the loss of a worker: %s", exc)
            return Outcome(kind="left", why=f"a collective of the training loop's own broke: {exc}")
        is_ready = session.run is not None and session.run.is_prepared
        if not is_ready and (why := _wants_ray_train(exc)):
            log.info("live recovery cannot serve this loop: %s", why, exc_info=exc)
            return Outcome(kind="unsupported", why=f"{why}: Ray Train's workers take over")
        raise
    finally:
        session_module.enter(None)
        member.close()


def _lost_its_peers(error: Exception, member: Member) -> bool:
    """Whether a loop failed in a collective of its own because a peer is gone.

    A closed socket is seen at once, what it means only with the next signs of life.
    """

    def is_broken() -> bool:
        return member.is_broken or (member.world is not None and bool(member.world.failed))

    if isinstance(error, RuntimeError) and any(words in str(error) for words in _PEER_GONE):
        wait_until(is_broken, timeout_s=_BREACH_S, clock=SystemClock())
    return is_broken()


def _wants_ray_train(error: Exception) -> str:
    """Why a loop needs Ray Train's own worker groups; empty if it failed for another reason."""
    if not isinstance(error, RuntimeError | ValueError):
        return ""
    return next((why for words, why in _WRITTEN_FOR_RAY_TRAIN.items() if words in str(error)), "")


class RayCalls:
    """`Calls` to the coordinator actor."""

    def __init__(self, coordinator: Any, *, key: str = "") -> None:
        self._coordinator, self._key = coordinator, key

    def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        try:
            if self._key:
                ref = self._coordinator.call.remote(self._key, method, *args)
            else:
                ref = getattr(self._coordinator, method).remote(*args)
            return ray.get(ref, timeout=timeout_s)
        except RayTaskError:
            raise  # the method's own error, of its own class too
        except RayError as exc:
            raise Unreachable(str(exc)) from exc


class LiveLink:
    """`JobLink` over live membership."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def notice_deadline_s(self) -> float | None:
        return None  # the others keep the state; the coordinator says when to meet

    def asks_to_stop(self) -> StopRequest | None:
        return self._member.asks_to_meet()

    def progress(self, progress: Progress) -> None:
        self._member.progress(progress)

    def held(self, *, step: int, why: str) -> None:
        raise AssertionError("live workers do not stand still")

    def wait_for_end(self, timeout_s: float) -> None:
        raise AssertionError("live workers do not stand still")

    def losses(self) -> tuple[int, float]:
        return self._member.losses()

    def report(self, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        """Metrics are in the journal; the last ones go to the coordinator at the end."""
