"""Which worker is replaced, and how far that is. Pure: a view and a state give a plan.

What every plan keeps, whatever the cluster does (``tests/controller/test_decide.py``):
nobody is told to leave before a new worker is there for it; a pool never has fewer
on-demand workers than its floor for that; one replacement at a time; every wait has an
end; and attempts in vain come ever more rarely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from spotray.cluster.control import ControlConfig
from spotray.controller.actions import (
    Action,
    AllowOnDemand,
    Ask,
    End,
    HoldWorkers,
    Hurry,
    Leave,
    Plan,
    Replaced,
    Withdraw,
)
from spotray.controller.view import Hold, Pool, Rest, State, Swap, View, Worker
from spotray.policy.decision import Launch, LaunchPolicy
from spotray.policy.view import Launched, LaunchView, SpotOnly

LIFETIME_LEAD_S = 1800.0  # a node that ends by itself is replaced that long before
STAGGER_S = 600.0  # and of several that end together, each that long before the next
GRACE_S = 5.0  # Ray's clock and ours may differ


def decide(view: View, state: State, *, config: ControlConfig, policy: LaunchPolicy) -> Plan:
    """What to do now.

    Args:
        view: the cluster.
        state: what the last decision left; `State` at first.
        config: the numbers.
        policy: the one by which the cluster's launches are decided.
    """
    hurried = _hurry(view, state, config)
    hold, held = _hold(view, state.hold, config)
    state = replace(state, hold=hold)
    if hurried:
        state = replace(state, hurry_until_s=hurried[0].until_s)
    if state.swap is None:
        plan = _begin(view, state, config, policy)
    elif state.swap.leaves_by_s is None:
        plan = _asking(view, state, state.swap, config, policy)
    else:
        plan = _leaving(view, state, state.swap, config)
    return replace(plan, actions=(*hurried, *held, *plan.actions))


# -- deadlines ---------------------------------------------------------------


def _hurry(view: View, state: State, config: ControlConfig) -> tuple[Hurry, ...]:
    """Near a deadline nobody waits for spot; it is told once, and once when it is over."""
    if _is_near(view, config):
        if state.hurry_until_s == view.deadline_s:
            return ()
        left_s = view.deadline_s - view.now_s
        why = f"on-demand first: {view.deadline_of or 'a job'} shall be done in {left_s:.0f} s"
        return (Hurry(until_s=view.deadline_s, why=why),)
    if state.hurry_until_s <= view.now_s:
        return ()
    return (Hurry(until_s=view.now_s, why="spot first again: no deadline is near any more"),)


def _is_near(view: View, config: ControlConfig) -> bool:
    return view.deadline_s - view.now_s < config.deadline_s


# -- to begin ----------------------------------------------------------------


def _begin(view: View, state: State, config: ControlConfig, policy: LaunchPolicy) -> Plan:
    waits = ""
    for pool in () if view.is_spent else view.pools.values():
        rest = state.rests.get(pool.name)
        if rest is not None and view.now_s < rest.until_s:
            continue
        found = _ending_soon(view, pool) or _returning(view, pool, config, policy)
        if found is None:
            continue
        old, to_spot, why = found
        there = [worker for worker in view.workers if worker.node_type == pool.name]
        if len(there) >= pool.max_workers or view.room < 1:
            waits = f"{pool.name} is full: raise its max_workers by one, so that {why}"
            continue
        until_s = view.now_s + (config.ask_s if to_spot else config.join_s)
        swap = Swap(
            node_id=old.node_id,
            name=old.name,
            pool=pool.name,
            to_spot=to_spot,
            began_s=view.now_s,
            until_s=until_s,
            before=frozenset(worker.node_id for worker in view.workers),
            wanted=len(view.staying()) + 1,
        )
        ask = Ask(pool=pool.name, until_s=until_s, spot_only=to_spot, why=why)
        return Plan(actions=(ask,), state=replace(state, swap=swap))
    return Plan(state=state, waits_for=waits)


def _returning(
    view: View, pool: Pool, config: ControlConfig, policy: LaunchPolicy
) -> tuple[Worker, bool, str] | None:
    """The on-demand worker that a spot node should replace now, if any should."""
    staying = view.staying(pool.name)
    on_demand = [worker for worker in staying if not worker.market.spot]
    # One without work is left to the autoscaler, which ends idle nodes.
    settled = [one for one in on_demand if one.busy and view.now_s - one.born_s >= config.settle_s]
    if (
        not config.return_to_spot
        or not settled
        or len(on_demand) <= pool.on_demand_floor
        or _is_near(view, config)
    ):
        return None
    where = _spot_next(view, pool, policy)
    if where is None:
        return None
    old = min(settled, key=lambda one: (one.born_s, one.node_id))
    return old, True, f"{old.name} can go back to spot in {where}"


def _ending_soon(view: View, pool: Pool) -> tuple[Worker, bool, str] | None:
    """The worker whose lifetime ends next, if it is time to replace it.

    Each gets its turn so early that those after it still have theirs.
    """
    if math.isinf(pool.lifetime_s):
        return None
    due_s = math.inf
    oldest_last = sorted(view.staying(pool.name), key=lambda one: (-one.born_s, one.node_id))
    for worker in oldest_last:
        own_s = worker.born_s + pool.lifetime_s - LIFETIME_LEAD_S
        due_s = min(own_s, due_s - STAGGER_S)
    if not oldest_last or view.now_s < due_s:
        return None
    old = oldest_last[-1]
    hours = pool.lifetime_s / 3600
    return old, False, f"{old.name} is replaced before the cloud ends it after {hours:g} h"


def _spot_next(view: View, pool: Pool, policy: LaunchPolicy) -> str | None:
    """Where the policy would put a node now, if that is spot."""
    if not any(market.spot for market in pool.candidates):
        return None
    decision = policy.decide(
        LaunchView(
            now_s=view.now_s,
            wanted=1,
            candidates=pool.candidates,
            node_type=pool.name,
            facts=tuple(fact for fact in view.facts if not isinstance(fact, SpotOnly)),
            asked_since_s=view.asked_since_s,
        )
    )
    if not isinstance(decision, Launch) or not decision.attempts[0].market.spot:
        return None
    return decision.attempts[0].market.zone


# -- while a new worker is asked for -----------------------------------------


def _asking(
    view: View, state: State, swap: Swap, config: ControlConfig, policy: LaunchPolicy
) -> Plan:
    old = view.find(swap.node_id)
    if old is None or not old.stays:
        return _gave_up(view, state, swap, config, why=f"{swap.name} leaves by itself", vain=False)
    if view.is_spent:
        return _gave_up(view, state, swap, config, why="a job's budget is used up", vain=False)
    came = [one for one in view.staying(swap.pool) if one.node_id not in swap.before]
    fit = [one for one in came if one.market.spot or not swap.to_spot]
    if fit:
        return _hand_over(view, state, swap, fit[0], config)
    if came:
        why = "an on-demand node came"
        return _gave_up(view, state, swap, config, why=why)
    if view.now_s >= swap.until_s:
        waited_s = view.now_s - swap.began_s
        return _gave_up(view, state, swap, config, why=f"no node came in {waited_s:.0f} s")
    if not swap.to_spot or swap.launched:
        return Plan(state=state)
    if _is_near(view, config):  # on-demand must not be held back for it
        return _gave_up(view, state, swap, config, why="a job's deadline is near", vain=False)
    pool = view.pools.get(swap.pool)
    if pool is None:
        return _gave_up(view, state, swap, config, why="the cluster has no such pool any more")
    if _was_launched(view, swap, pool):
        on_its_way = replace(swap, launched=True, until_s=view.now_s + config.join_s)
        allow = AllowOnDemand(pool=swap.pool, why="a spot node is on its way")
        return Plan(actions=(allow,), state=replace(state, swap=on_its_way))
    if _spot_next(view, pool, policy) is None:
        return _gave_up(view, state, swap, config, why="spot was refused")
    return Plan(state=state)


def _was_launched(view: View, swap: Swap, pool: Pool) -> bool:
    return any(
        isinstance(fact, Launched) and fact.at_s >= swap.began_s and fact.market.spot
        for fact in view.facts
        if getattr(fact, "market", None) in pool.candidates
    )


def _hand_over(view: View, state: State, swap: Swap, new: Worker, config: ControlConfig) -> Plan:
    """The new worker is there: now the old one may go."""
    deadline_s = view.now_s + config.drain_s
    why = f"{new.name} in {new.market} takes its place"
    # The wish for one more ends first, or the node that leaves is replaced once again.
    actions = (
        Withdraw(pool=swap.pool, why=f"{new.name} is there", in_vain=False),
        Leave(node_id=swap.node_id, name=swap.name, deadline_s=deadline_s, why=why),
    )
    leaving = replace(swap, leaves_by_s=deadline_s, until_s=deadline_s)
    return Plan(actions=actions, state=replace(state, swap=leaving))


def _gave_up(
    view: View, state: State, swap: Swap, config: ControlConfig, *, why: str, vain: bool = True
) -> Plan:
    withdraw = Withdraw(pool=swap.pool, why=why, in_vain=vain)
    return Plan(actions=(withdraw,), state=_rested(view, state, swap, config, failed=vain))


# -- while the old one leaves ------------------------------------------------


def _leaving(view: View, state: State, swap: Swap, config: ControlConfig) -> Plan:
    by_s = swap.leaves_by_s
    assert by_s is not None
    old = view.find(swap.node_id)
    if old is None:
        seconds = view.now_s - swap.began_s
        gone = Replaced(node_id=swap.node_id, name=swap.name, pool=swap.pool, seconds=seconds)
        state = _rested(view, state, swap, config, failed=False)
        return Plan(actions=(gone,), state=state)
    swap = replace(swap, agreed=swap.agreed or not old.stays)
    kept = replace(state, swap=swap)
    if view.now_s < by_s + GRACE_S:
        if swap.agreed:
            return Plan(state=kept)
        again = Leave(
            node_id=swap.node_id,
            name=swap.name,
            deadline_s=by_s,
            why="Ray has not drained it yet",
        )
        return Plan(actions=(again,) if view.now_s < by_s else (), state=kept)
    if not swap.agreed:  # it was never told, and may be at work: it stays
        return Plan(state=_rested(view, state, swap, config, failed=True))
    if not swap.ended:
        end = End(node_id=swap.node_id, name=swap.name, why="it did not leave by its deadline")
        ended = replace(swap, ended=True, until_s=view.now_s + config.end_s)
        return Plan(actions=(end,), state=replace(kept, swap=ended))
    if view.now_s >= swap.until_s:
        return Plan(state=_rested(view, state, swap, config, failed=True))
    return Plan(state=kept)


def _rested(view: View, state: State, swap: Swap, config: ControlConfig, *, failed: bool) -> State:
    """No swap any more, and the pool is left alone: longer with each failure in a row."""
    failures = 0
    rest_s = config.pause_s
    if failed:
        before = state.rests.get(swap.pool)
        failures = 1 + (before.failures if before is not None else 0)
        rest_s = min(config.rest_s * 2.0 ** min(failures - 1, 30), config.rest_max_s)
    rest = Rest(until_s=view.now_s + rest_s, failures=failures)
    return replace(state, swap=None, rests={**state.rests, swap.pool: rest})


# -- workers that were taken -------------------------------------------------


def _hold(
    view: View, hold: Hold | None, config: ControlConfig
) -> tuple[Hold | None, Sequence[Action]]:
    """The number of workers that is asked for, since some of them were taken."""
    staying = view.staying()
    if hold is not None and (view.now_s >= hold.until_s or len(staying) >= hold.workers):
        hold = None
    if view.is_spent:
        return None, ()
    if not view.lost:
        return hold, ()
    # Ray may see the end of a node only when another has taken its place already.
    before = sum(worker.born_s <= min(view.lost) for worker in staying)
    workers = max(before + len(view.lost), hold.workers if hold is not None else 0)
    if len(staying) >= workers:
        return None, ()
    held = Hold(workers=workers, until_s=view.now_s + config.hold_s)
    why = f"{len(view.lost)} busy workers are taken"
    return held, (HoldWorkers(workers=workers, until_s=held.until_s, why=why),)
