"""A training loop that does harm to its own worker, at a place that no signal could hit."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch.distributed as dist

from spotray.errors import WorldBroken
from spotray.train import member as member_module
from spotray.train import session as session_module
from spotray.train.gradients import GradientExchange
from spotray.train.keeper import Keeper
from spotray.train.member import Member
from tests.train.live_jobs import train_loop

_CONNECT_S = 4.0  # instead of a quarter of a minute


def faulty_loop(config: dict[str, Any]) -> None:
    """`train_loop`, with faults.

    ``split``: (step, rank) pairs: this worker takes the step for failed, which the
    others finish. ``dies_connecting``, ``dies_restoring``: (generation, worker).
    ``freezes_at_the_end``: a worker, while the others wait for it to end the job.
    """
    session = session_module.current()
    assert session is not None
    member = session.member
    assert member is not None
    member_module._CONNECT_S = _CONNECT_S
    _split(session, {tuple(one) for one in config.get("split", ())})
    _die_connecting(member, tuple(config.get("dies_connecting", ())))
    _die_restoring(member, tuple(config.get("dies_restoring", ())))
    if config.get("freezes_at_the_end") == member.name:
        _freeze_at_the_end(member)
    train_loop(config)


def _split(session: session_module.Session, left: set[tuple[int, int]]) -> None:
    finish = GradientExchange.finish

    def fails(exchange: GradientExchange) -> list[float]:
        total = finish(exchange)
        here = (session.run.step, session.run.rank)
        if here in left:
            left.remove(here)
            raise WorldBroken(f"step {here[0]} is taken for failed by rank {here[1]}")
        return total

    if left:
        GradientExchange.finish = fails  # type: ignore[method-assign]  # in this process


def _die_connecting(member: Member, when: tuple[int, str]) -> None:
    connect = dist.init_process_group

    def dies(*args: Any, **more: Any) -> None:
        assert member.roster is not None
        if when == (member.roster.generation, member.name):
            os.kill(os.getpid(), signal.SIGKILL)
        connect(*args, **more)

    if when:
        dist.init_process_group = dies


def _die_restoring(member: Member, when: tuple[int, str]) -> None:
    restore = Keeper.restore

    def dies(keeper: Keeper) -> None:
        assert member.roster is not None
        if when == (member.roster.generation, member.name):
            os.kill(os.getpid(), signal.SIGKILL)
        restore(keeper)

    if when:
        Keeper.restore = dies  # type: ignore[method-assign]  # in this process


def _freeze_at_the_end(member: Member) -> None:
    flush = member.flush

    def freezes() -> None:
        flush()
        os.kill(os.getpid(), signal.SIGSTOP)

    member.flush = freezes  # type: ignore[method-assign]  # the end flushes the last facts
