"""Gives each worker its data disk, and deletes those that nobody uses: for the node providers.

A node never waits for a disk and never fails for one: what goes wrong is told to the
journal, and the node comes up without.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from spotray.clock import Clock
from spotray.cloud.disks import Disk, Disks, DiskWish
from spotray.cluster.disks.choice import (
    expired,
    fitting,
    pool_of,
    told,
    usd_per_month,
    warm_first,
    wish_for,
)
from spotray.cluster.disks.config import DataDisk
from spotray.cluster.disks.mount import mount_command, said
from spotray.errors import DiskNotFree, NotPermittedError, SpotrayError
from spotray.events import DiskDeleted, DiskMounted, Event, Warned
from spotray.market.offer import Market

log = logging.getLogger(__name__)

SWEEP_S = 600.0  # between two looks for disks that nobody uses
_MARK_S = 1800.0  # a disk in use is marked so that often; keep_hours is no finer
_LISTING_S = 30.0  # a listing is good for the order of zones that long
_TRIES = 5  # disks that one node tries before it goes without ...
_GIVE_UP_S = 120.0  # ... or as long as it tries; most of that it boots


@dataclass(frozen=True, kw_only=True)
class Given:
    """A disk that a node has."""

    disk: Disk
    found_at: tuple[str, ...]
    why: str  # this one
    began_s: float


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """A disk that waits, or one to be made."""

    disk: Disk | None = None
    wish: DiskWish | None = None

    @property
    def claim(self) -> str:
        """What no other thread may choose meanwhile."""
        if self.disk is not None:
            return self.disk.disk_id
        return f"{self.wish.zone} {self.wish.slot}" if self.wish else ""


class DiskSupply:
    """The data disks of one cluster. Safe from any thread."""

    def __init__(
        self,
        wanted: Mapping[str, DataDisk],
        disks: Callable[[], Disks],
        *,
        cluster: str,
        tell: Callable[[Event], None],
        clock: Clock,
        no_right: str,
        foreign: tuple[type[Exception], ...] = (),
    ) -> None:
        """Nothing is asked yet.

        Args:
            wanted: by node type; those that are not in it get none.
            disks: makes the cloud's adapter, at its first use.
            cluster: its name.
            tell: takes the events; must return at once.
            clock: tells the time.
            no_right: the cure where the head may not do it, in this cloud's words.
            foreign: errors of the cloud's SDK that are none of ours.
        """
        self._wanted = wanted
        self._make_disks = disks
        self._made_disks: Disks | None = None
        self._cluster, self._tell, self._clock = cluster, tell, clock
        self._no_right = no_right
        self._troubles: tuple[type[Exception], ...] = (SpotrayError, *foreign)
        self._being_given: set[str] = set()  # ids and "zone slot"s, so that threads do not race
        self._unusable: set[str] = set()  # ids of disks that could not be mounted
        self._going: set[str] = set()  # ids of disks that were told to end with their nodes
        self._listing: tuple[float, list[Disk]] = (float("-inf"), [])
        self._swept_s = clock.now_s()  # not before the first nodes of a start were listed
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        """Whether no node gets a disk at all."""
        return not self._wanted

    def wants(self, node_type: str) -> bool:
        """Whether nodes of this type get a disk."""
        return node_type in self._wanted

    def in_order(self, candidates: tuple[Market, ...], node_type: str) -> tuple[Market, ...]:
        """A launch's candidates: zones with a warm disk first among equals. Never raises."""
        wanted = self._wanted.get(node_type)
        if wanted is None:
            return candidates
        now_s = self._clock.now_s()
        try:
            listed_s, disks = self._listing
            if now_s - listed_s > _LISTING_S:
                disks = self._disks.listed(self._cluster)
                self._listing = (now_s, disks)
        except self._troubles as exc:
            log.info("zones in the order of the config: disks cannot be listed: %s", exc)
            self._listing = (now_s, [])
            return candidates
        warm = [
            zone
            for zone in {disk.zone for disk in disks}
            if fitting(disks, wanted, node_type=node_type, zone=zone, without=self._unusable)
        ]
        return warm_first(candidates, warm)

    # -- one node ------------------------------------------------------------

    def give(self, node: str, *, node_type: str, zone: str) -> Given | None:
        """Attach a disk to a node, one that waits in its zone or a new one; None: it goes without.

        Asked again for the same node, it finds what that has.
        """
        wanted = self._wanted.get(node_type)
        if wanted is None:
            return None
        began_s = self._clock.now_s()
        try:
            return self._give(node, node_type, zone, wanted, began_s)
        except self._troubles as exc:
            cure = f": {self._no_right}" if isinstance(exc, NotPermittedError) else ""
            self._warn(f"{node} in {zone} goes without a data disk: {exc}{cure}")
            return None

    def _give(
        self, node: str, node_type: str, zone: str, wanted: DataDisk, began_s: float
    ) -> Given:
        disks = self._disks.listed(self._cluster)
        for disk in disks:
            if disk.node == node:
                found_at = self._disks.found_at(disk)
                return Given(disk=disk, found_at=found_at, why="it has it", began_s=began_s)
        passed_over: set[str] = set()
        last: DiskNotFree | None = None
        for _ in range(_TRIES):
            with self._choice(node_type, zone, wanted, disks, passed_over) as choice:
                try:
                    disk = choice.disk or self._made(choice)
                    found_at = self._disks.attach(disk, node)
                except DiskNotFree as exc:
                    log.info("%s: another disk for %s: %s", zone, node, exc)
                    passed_over.add(choice.claim)
                    last = exc
                else:
                    self._mark(disk)
                    why = self._why(choice, disks, node_type)
                    return Given(disk=disk, found_at=found_at, why=why, began_s=began_s)
            if self._clock.now_s() - began_s > _GIVE_UP_S:
                break
            disks = self._disks.listed(self._cluster)
        raise last or AssertionError(f"{_TRIES} tries, and no disk was refused")

    def _made(self, choice: _Choice) -> Disk:
        assert choice.wish is not None
        return self._disks.make(choice.wish)

    @contextmanager
    def _choice(
        self,
        node_type: str,
        zone: str,
        wanted: DataDisk,
        disks: list[Disk],
        passed_over: Iterable[str],
    ) -> Iterator[_Choice]:
        """What to attach; no other thread chooses the same meanwhile.

        Against other processes the cloud alone decides.
        """
        with self._lock:
            without = self._being_given | self._unusable | set(passed_over)
            free = fitting(disks, wanted, node_type=node_type, zone=zone, without=without)
            wish = wish_for(
                disks,
                wanted,
                cluster=self._cluster,
                node_type=node_type,
                zone=zone,
                without=[one.partition(" ")[2] for one in without if one.startswith(f"{zone} ")],
            )
            choice = _Choice(disk=free[0]) if free else _Choice(wish=wish)
            self._being_given.add(choice.claim)
        try:
            yield choice
        finally:
            with self._lock:
                self._being_given.discard(choice.claim)

    def _why(self, choice: _Choice, disks: list[Disk], node_type: str) -> str:
        """Also which disks wait where the node is not: they cost, and help nobody."""
        now_s = self._clock.now_s()
        if choice.disk is not None:
            return f"it waited: {told(choice.disk, now_s=now_s)}"
        zone, pool = choice.wish.zone if choice.wish else "", pool_of(node_type)
        elsewhere = [
            told(disk, now_s=now_s)
            for disk in disks
            if disk.is_free and disk.zone != zone and disk.slot.rpartition("-")[0] == pool
        ]
        others = f"; not used: {'; '.join(elsewhere)}" if elsewhere else ""
        return f"none waited in {zone}{others}"

    def mount(
        self, node: str, given: Given | None, run: Callable[[str], str], *, node_type: str
    ) -> None:
        """Mount on the node what it was given, or make the empty folder. Never raises for it.

        Args:
            node: its id.
            given: by `give`.
            run: runs a command on the node and returns its output, or why there is none.
            node_type: of the node.
        """
        wanted = self._wanted[node_type]
        answer = said(run(mount_command(wanted.mount, given.found_at if given else ())))
        if given is None:
            if answer.why_not:
                self._warn(f"{wanted.mount} on {node} cannot be made: {answer.why_not}")
            return
        disk, now_s = given.disk, self._clock.now_s()
        if not answer.is_mounted:
            with self._lock:
                self._unusable.add(disk.disk_id)
            self._warn(f"{disk.disk_id} is not mounted on {node}: {answer.why_not}")
            return
        log.info("%s has %s: %s", node, disk.disk_id, given.why)
        self._tell(
            DiskMounted(
                at_s=now_s,
                name=node,
                disk=disk.disk_id,
                zone=disk.zone,
                size_gib=disk.size_gib,
                warm=not answer.was_formatted,
                seconds=now_s - given.began_s,
                usd_per_month=usd_per_month(disk),
                why=given.why,
            )
        )

    # -- all of them ---------------------------------------------------------

    def sweep(self) -> None:
        """Delete what nobody has used for long, mark what is used; does so every ten minutes."""
        now_s = self._clock.now_s()
        with self._lock:
            if not self._wanted or now_s - self._swept_s < SWEEP_S:
                return
            self._swept_s = now_s
        try:
            disks = self._disks.listed(self._cluster)
        except self._troubles as exc:
            log.info("disks cannot be listed, unused ones stay for now: %s", exc)
            return
        for disk in disks:
            if disk.node and now_s - disk.used_s > _MARK_S:
                self._mark(disk)
        keep_hours = {pool_of(name): one.keep_hours for name, one in self._wanted.items()}
        for pool in {disk.slot.rpartition("-")[0] for disk in disks}:
            hours = keep_hours.get(pool, max(keep_hours.values()))
            mine = [disk for disk in disks if disk.slot.rpartition("-")[0] == pool]
            for disk in expired(mine, now_s=now_s, keep_hours=hours):
                self._delete(disk, f"no node had it for {hours:g} h")

    def end(self) -> None:
        """The cluster goes down, its nodes are about to be ended: their disks go with them.

        May be said again while they end: `ray down` does until the last one is gone.
        """
        if all(one.keep_after_down for one in self._wanted.values()):
            return
        try:
            disks = self._disks.listed(self._cluster)
        except self._troubles as exc:
            self._warn(f"{self._left_behind()}: they cannot be listed: {exc}")
            return
        kept = {pool_of(k) for k, one in self._wanted.items() if one.keep_after_down}
        for disk in disks:
            if disk.slot.rpartition("-")[0] in kept:
                continue
            if not disk.node:
                self._delete(disk, "the cluster goes down")
                continue
            if disk.disk_id in self._going:
                continue
            self._going.add(disk.disk_id)
            try:
                self._disks.end_with_node(disk)
            except self._troubles as exc:
                self._warn(f"{self._left_behind()}: {disk.disk_id} on {disk.node}: {exc}")

    def _left_behind(self) -> str:
        return (
            "data disks may stay behind and cost money; `spotray cluster disks delete "
            f"{self._cluster}` deletes them"
        )

    def _delete(self, disk: Disk, why: str) -> None:
        now_s = self._clock.now_s()
        try:
            self._disks.delete(disk)
        except DiskNotFree as exc:
            log.info("%s stays: %s", disk.disk_id, exc)
        except self._troubles as exc:
            self._warn(f"{disk.disk_id} cannot be deleted: {exc}")
        else:
            log.info("deleted, since %s: %s", why, told(disk, now_s=now_s))
            self._tell(DiskDeleted(at_s=now_s, disk=disk.disk_id, zone=disk.zone, why=why))

    def _mark(self, disk: Disk) -> None:
        try:
            self._disks.mark_used(disk, now_s=self._clock.now_s())
        except self._troubles as exc:
            log.info("%s: not marked as used: %s", disk.disk_id, exc)

    def _warn(self, what: str) -> None:
        log.warning("%s", what)
        self._tell(Warned(at_s=self._clock.now_s(), what=what))

    @property
    def _disks(self) -> Disks:
        with self._lock:
            if self._made_disks is None:
                self._made_disks = self._make_disks()
            return self._made_disks
