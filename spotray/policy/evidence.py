"""What the facts say of one market at one time: how often it failed, and until when it is out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.policy.view import Fact, Launched, LaunchView, Preempted, Progressed, Refusal, Refused


@dataclass(frozen=True, kw_only=True)
class CoolDowns:
    """How long a market is left alone after it failed. Seconds, all > 0."""

    cooldown_s: float = 120.0  # after a first refusal or preemption; doubles with each more
    cooldown_max_s: float = 1800.0
    throttle_s: float = 5.0  # after a first throttled call, unless the cloud says more; doubles
    throttle_max_s: float = 120.0
    quota_s: float = 3600.0  # a limit is raised by people, or freed by another cluster's end
    not_offered_s: float = 86400.0  # a zone gets new types once in months
    look_again_s: float = 3600.0  # how long a wait for the user's own cure is at a time
    progress_s: float = 600.0  # a node that lived as long was worth its start

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            number = isinstance(value, float | int) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value!r}: give a number above 0")
        if self.cooldown_max_s < self.cooldown_s:
            raise ConfigError(
                f"cooldown_max_s {self.cooldown_max_s:g} is below cooldown_s {self.cooldown_s:g}"
            )


@dataclass(frozen=True, kw_only=True)
class Block:
    """A market is out until ``until_s``, for ``why``. ``cure``: only the user can end it."""

    until_s: float
    why: str
    cure: bool = False


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One preemption, told once, with how long the node had lived."""

    at_s: float
    market: Market
    name: str
    born_s: float  # of the launch that is remembered; -inf if none is
    lived_s: float


_ANSWERS = (Launched, Refused)


@dataclass(frozen=True, kw_only=True)
class Told:
    """The facts, sorted out once for all markets. Each list is by time."""

    answers: Mapping[Market, list[Launched | Refused]]
    by_cloud: Mapping[str, list[Launched | Refused]]
    losses: list[Loss]
    lost: Mapping[Market, list[Loss]]
    went_on_s: float  # when the job last told of progress; -inf if it never did

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> Told:
        answers: dict[Market, list[Launched | Refused]] = {}
        by_cloud: dict[str, list[Launched | Refused]] = {}
        went_on_s = -math.inf
        for fact in facts:
            if isinstance(fact, _ANSWERS):
                answers.setdefault(fact.market, []).append(fact)
                by_cloud.setdefault(fact.market.cloud, []).append(fact)
            elif isinstance(fact, Progressed):
                went_on_s = max(went_on_s, fact.at_s)
        known = losses(facts)
        lost: dict[Market, list[Loss]] = {}
        for loss in known:
            lost.setdefault(loss.market, []).append(loss)
        return cls(answers=answers, by_cloud=by_cloud, losses=known, lost=lost, went_on_s=went_on_s)

    def rounds_lost(
        self, *, since_s: float, progress_s: float, market: Market | None = None
    ) -> list[float]:
        """Times of spot preemptions that each took what had replaced the one before.

        Nodes taken together are one round. A node that lived ``progress_s`` is no round, and
        a job that went on (`Progressed`) starts the count anew, but not that of one ``market``.
        """
        known = self.losses if market is None else self.lost.get(market, [])
        if market is None:
            since_s = max(since_s, self.went_on_s)
        rounds: list[float] = []
        for loss in known:
            if loss.at_s <= since_s or not loss.market.spot or loss.lived_s >= progress_s:
                continue
            if not rounds or loss.at_s - loss.lived_s >= rounds[-1]:
                rounds.append(loss.at_s)
        return rounds

    def troubles(self, market: Market, *, since_s: float) -> int:
        """Refusals and preemptions of a market after ``since_s``."""
        refused = sum(
            isinstance(fact, Refused) and fact.at_s > since_s
            for fact in self.answers.get(market, ())
        )
        return refused + sum(loss.at_s > since_s for loss in self.lost.get(market, ()))


def blocks_of(
    markets: Sequence[Market], view: LaunchView, told: Told, rules: CoolDowns
) -> dict[Market, Block | None]:
    """Why and until when each market is not to be asked; None if it may be.

    Refusals in a row double the cool-down, and a launch clears them. Preemptions of young
    nodes in a row do so as well; only a node that lived clears those, since a launch that
    is taken back at once proves nothing.
    """
    clouds = {market.cloud for market in markets}
    throttled = {cloud: _throttled(told.by_cloud.get(cloud, []), view, rules) for cloud in clouds}
    long = {cloud: _refused_for_long(told.by_cloud.get(cloud, [])) for cloud in clouds}
    found: dict[Market, Block | None] = {}
    for market in markets:
        blocks = [
            block
            for block in (
                _refused(told.answers.get(market, []), view, rules),
                _preempted(told.lost.get(market, []), view, rules),
                throttled[market.cloud],
                _for_long(market, long[market.cloud], view, rules),
            )
            if block is not None and block.until_s > view.now_s
        ]
        found[market] = max(blocks, key=lambda block: (block.cure, block.until_s), default=None)
    return found


def _refused(
    answers: Sequence[Launched | Refused], view: LaunchView, rules: CoolDowns
) -> Block | None:
    streak, last = 0, None
    for fact in answers:
        if isinstance(fact, Launched):
            streak = 0
        elif fact.kind in (Refusal.CAPACITY, Refusal.UNKNOWN):
            streak, last = streak + 1, fact
    if not streak or last is None:
        return None
    times = "" if streak == 1 else f", {streak} times in a row"
    return Block(
        until_s=_until(last.at_s, _grown(rules, streak), view),
        why=f"{last.code or last.kind}{times}",
    )


def _preempted(lost: Sequence[Loss], view: LaunchView, rules: CoolDowns) -> Block | None:
    streak, last_s = 0, -math.inf
    for loss in lost:
        streak = 1 if loss.lived_s >= rules.progress_s else streak + 1
        last_s = loss.at_s
    if not streak:
        return None
    times = "" if streak == 1 else f", {streak} times in a row"
    return Block(until_s=_until(last_s, _grown(rules, streak), view), why=f"preempted{times}")


def _throttled(
    answers: Sequence[Launched | Refused], view: LaunchView, rules: CoolDowns
) -> Block | None:
    """A cloud counts calls over all markets, so all of them rest."""
    streak, last = 0, None
    for fact in answers:
        if isinstance(fact, Launched):
            streak = 0
        else:
            thrown = fact.kind is Refusal.THROTTLED
            streak, last = (streak + 1, fact) if thrown else (0, last)
    if not streak or last is None:
        return None
    wait_s = min(rules.throttle_s * 2.0 ** min(streak - 1, 30), rules.throttle_max_s)
    wait_s = max(wait_s, min(last.retry_after_s or 0.0, rules.throttle_max_s))
    return Block(until_s=_until(last.at_s, wait_s, view), why=last.code or str(last.kind))


_LONG = (Refusal.QUOTA, Refusal.NOT_OFFERED, Refusal.NOT_PERMITTED, Refusal.CONFIG)


def _refused_for_long(answers: Sequence[Launched | Refused]) -> list[Refused]:
    return [fact for fact in answers if isinstance(fact, Refused) and fact.kind in _LONG]


def _for_long(
    market: Market, told: Sequence[Refused], view: LaunchView, rules: CoolDowns
) -> Block | None:
    """What does not pass by itself in minutes, of what the market's cloud told."""
    found: list[Block] = []
    for fact in told:
        was, word = fact.market, fact.code or str(fact.kind)
        same_type = was.instance_type == market.instance_type
        told_before = fact.at_s < view.asked_since_s
        if fact.kind is Refusal.QUOTA:
            # A limit is the region's, of spot or of on-demand; a smaller type may still fit.
            if same_type and was.region == market.region and was.spot == market.spot:
                until_s = _until(fact.at_s, rules.quota_s, view)
                found.append(Block(until_s=until_s, why=f"{word}: ask the cloud for more quota"))
        elif fact.kind is Refusal.NOT_OFFERED:
            if same_type and was.zone == market.zone:
                until_s = _until(fact.at_s, rules.not_offered_s, view)
                found.append(Block(until_s=until_s, why=word))
        elif fact.kind is Refusal.NOT_PERMITTED and was.spot == market.spot and not told_before:
            why = f"{word}: give the credentials that right, then `ray up` again"
            found.append(Block(until_s=view.now_s + rules.look_again_s, why=why, cure=True))
        elif (
            fact.kind is Refusal.CONFIG
            and same_type
            and fact.node_type == view.node_type
            and not told_before
        ):
            why = f"{word}: correct the node type in the YAML, then `ray up` again"
            found.append(Block(until_s=view.now_s + rules.look_again_s, why=why, cure=True))
    return max(found, key=lambda block: (block.cure, block.until_s), default=None)


def _grown(rules: CoolDowns, streak: int) -> float:
    return min(rules.cooldown_s * 2.0 ** min(streak - 1, 30), rules.cooldown_max_s)


def _until(at_s: float, wait_s: float, view: LaunchView) -> float:
    """A fact from a clock that ran ahead blocks no longer than one from now."""
    return min(at_s, view.now_s) + wait_s


def losses(facts: Sequence[Fact]) -> list[Loss]:
    """The preemptions among the facts, each launch of a node once, by time.

    A node whose launch is not remembered any more lived for long.
    """
    launches: dict[str, list[float]] = {}
    for fact in facts:
        for name in fact.names if isinstance(fact, Launched) else ():
            launches.setdefault(name, []).append(fact.at_s)
    found: list[Loss] = []
    seen: set[tuple[str, float]] = set()
    for fact in sorted((f for f in facts if isinstance(f, Preempted)), key=lambda f: f.at_s):
        # A node may have been stopped and started again; another clock may run behind.
        times = launches.get(fact.name, [])
        before = [at_s for at_s in times if at_s <= fact.at_s] or times[:1]
        born_s = before[-1] if before else -math.inf
        if (fact.name, born_s) in seen:
            continue
        seen.add((fact.name, born_s))
        lived_s = fact.at_s - born_s if fact.lived_s is None else fact.lived_s
        found.append(
            Loss(
                at_s=fact.at_s,
                market=fact.market,
                name=fact.name,
                born_s=born_s,
                lived_s=max(lived_s, 0.0),
            )
        )
    return found
