"""One job on one node, tick by tick: the model that published policies are compared in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotray.errors import PolicyError, TraceError
from spotray.policy.job import Choice, Job, JobDecision, JobPolicy, JobView
from spotray.sim.asked import begun, failed, name_of

_DONE_S = 1e-6  # less work than that is rounding
_CHOICES = (Choice.WAIT, Choice.SPOT, Choice.ON_DEMAND)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job went.

    ``cost_usd`` of a job that its trace did not see to the end counts the rest on
    on-demand: being late is never cheap.
    """

    cost_usd: float
    ended_s: float | None  # from the job's start; None if the trace ended before
    is_late: bool
    spot_ticks: int
    on_demand_ticks: int
    wait_ticks: int
    starts: int  # nodes started, each with its overhead
    preemptions: int


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One tick of a job, for whoever wants to see why."""

    tick: int
    has_spot: bool
    choice: Choice
    why: str
    done_s: float  # before this tick


def simulate(
    policy: JobPolicy,
    job: Job,
    up: bytes,
    *,
    limit_ticks: float = math.inf,
    moments: list[Moment] | None = None,
) -> Outcome:
    """Run a job under a policy.

    Args:
        policy: who decides.
        job: what is to be done.
        up: one byte for each tick of ``job.gap_s``, from the job's start: 1 if spot can be
            had in it, else 0. See `spotray.sim.windows`.
        limit_ticks: after so many the cloud ends a spot node whatever it has, as Google does
            with preemptible machines after 24 hours; another one may start at once.
        moments: gets one entry a tick, if given.

    Raises:
        TraceError: ``up`` ends before the job's deadline, or is empty.
        PolicyError: the policy raised, or answered what cannot be done; the message names
            the policy and the tick.
        ConfigError: the policy does not serve such a job.
    """
    if job.has_deadline and len(up) < job.ticks_in(job.deadline_s) or not up:
        raise TraceError(
            f"the trace ends after {len(up) * job.gap_s / 3600:.1f} h, the job's deadline is "
            f"{job.deadline_s / 3600:.1f} h after its start: give a longer trace"
        )
    decide = begun(policy, job).decide
    gap_s, overhead_s, work_s = job.gap_s, job.overhead_s, job.work_s
    wait, spot, on_demand = _CHOICES
    view = JobView()
    ticks = [0, 0, 0]
    starts = preemptions = since_tick = 0
    done_s = overhead_left_s = 0.0
    running = wait
    ended_s: float | None = None
    for tick, byte in enumerate(up):
        has_spot = byte != 0
        preempted = running is spot and (not has_spot or tick - since_tick >= limit_ticks)
        if preempted:
            running = wait
            preemptions += 1
        view.tick = tick
        view.elapsed_s = tick * gap_s
        view.has_spot = has_spot
        view.running = running
        view.preempted = preempted
        view.done_s = done_s
        view.overhead_left_s = overhead_left_s if running is not wait else 0.0
        try:
            decision = decide(view)
            choice = decision.choice
        except Exception as exc:
            raise failed(policy, tick, exc) from exc
        if choice is spot and has_spot:
            pass
        elif choice is not wait and choice is not on_demand:
            raise _nonsense(policy, tick, decision, has_spot=has_spot)
        if moments is not None:
            if not decision.why.strip():
                raise failed(policy, tick, ValueError("the decision does not say why"))
            moments.append(
                Moment(tick=tick, has_spot=has_spot, choice=choice, why=decision.why, done_s=done_s)
            )
        ticks[choice] += 1
        if choice is not running:
            running = choice
            since_tick = tick
            if choice is not wait:
                starts += 1
                overhead_left_s = overhead_s  # what was left of an earlier one is gone
        if choice is not wait:
            if overhead_left_s >= gap_s:
                overhead_left_s -= gap_s
            else:
                done_s += gap_s - overhead_left_s
                overhead_left_s = 0.0
                if work_s - done_s <= _DONE_S:
                    ended_s = (tick + 1) * gap_s
                    break
    unfinished_ticks = 0 if ended_s is not None else job.ticks_needed(work_s - done_s)
    return Outcome(
        cost_usd=job.cost_usd(spot_ticks=ticks[1], on_demand_ticks=ticks[2] + unfinished_ticks),
        ended_s=ended_s,
        is_late=job.has_deadline and (ended_s is None or ended_s > job.deadline_s + _DONE_S),
        spot_ticks=ticks[1],
        on_demand_ticks=ticks[2],
        wait_ticks=ticks[0],
        starts=starts,
        preemptions=preemptions,
    )


def _nonsense(
    policy: JobPolicy, tick: int, decision: JobDecision, *, has_spot: bool
) -> PolicyError:
    if decision.choice is Choice.SPOT and not has_spot:
        what = "chose spot, of which there is none"
    else:
        what = f"answered {decision.choice!r}: answer a Choice"
    return PolicyError(f"policy {name_of(policy)} at tick {tick} {what}")
