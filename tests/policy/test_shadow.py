"""A shadow lives through the same market as a job of its own would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotray.policy.greedy import Greedy
from spotray.policy.job import Choice, Job, JobPolicy, JobView
from spotray.policy.shadow import Shadow, Standing
from spotray.policy.uniform_progress import UniformProgress
from spotray.sim.single import Moment, simulate

JOB = Job(gap_s=600.0, work_s=3 * 3600.0, deadline_s=6 * 3600.0, overhead_s=900.0)
TICKS = JOB.ticks_in(JOB.deadline_s)

markets = st.lists(st.booleans(), min_size=TICKS, max_size=TICKS).map(bytes)


@given(up=markets, policy=st.sampled_from([UniformProgress(), Greedy()]))
def test_it_decides_and_pays_as_the_policy_itself_would(up: bytes, policy: JobPolicy) -> None:
    moments: list[Moment] = []
    alone = simulate(policy, JOB, up, moments=moments)
    shadow = Shadow(policy, JOB)
    took, done = [], []
    for tick, has_spot in enumerate(up):
        shadow.see(JobView(tick=tick, elapsed_s=tick * JOB.gap_s, has_spot=bool(has_spot)))
        if shadow.decision is None:
            break
        took.append(shadow.decision.choice)
        done.append(shadow.before.done_s)
    assert took == [moment.choice for moment in moments]
    assert done == [moment.done_s for moment in moments]
    assert abs(shadow.after.cost_usd - alone.cost_usd) < 1e-9


def test_a_start_does_no_work_before_its_overhead_is_over() -> None:
    begun = Standing().after(Choice.SPOT, JOB)
    assert (begun.done_s, begun.overhead_left_s) == (0.0, 300.0)
    assert begun.ready_s(JOB) == -300.0
    works = begun.after(Choice.SPOT, JOB)
    assert (works.done_s, works.overhead_left_s) == (300.0, 0.0)
    assert works.after(Choice.ON_DEMAND, JOB).overhead_left_s == 300.0
    idle = works.after(Choice.WAIT, JOB)
    assert (idle.done_s, idle.ready_s(JOB)) == (300.0, -600.0)
    assert idle.cost_usd == works.cost_usd == JOB.cost_usd(spot_ticks=2, on_demand_ticks=0)
