"""One driver at a time for a run's folder."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from spotray.clock import FakeClock
from spotray.errors import ConfigError
from spotray.storage import Store
from spotray.train.lease import Lease


def lease_of(folder: Path, **lease: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "driver.json").write_text(json.dumps(lease))


class Renewing(FakeClock):
    """Somebody renews the lease while we sleep."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def sleep(self, duration_s: float) -> None:
        lease_of(self.folder, owner="o", host="far-away", pid=7, renewals=4)


def test_a_job_that_runs_elsewhere_is_refused_and_named(tmp_path: Path) -> None:
    lease_of(tmp_path, owner="o", host="far-away", pid=7, renewals=3)
    lease = Lease(Store.at(tmp_path), "vit", clock=Renewing(tmp_path))
    with pytest.raises(ConfigError, match="'vit' is running .*process 7 on far-away.*another name"):
        lease.take()
    assert json.loads((tmp_path / "driver.json").read_text())["owner"] == "o"


def test_a_driver_that_is_gone_from_another_machine_is_followed_after_a_look(
    tmp_path: Path,
) -> None:
    lease_of(tmp_path, owner="o", host="far-away", pid=7, renewals=3)
    clock = FakeClock(0.0)
    lease = Lease(Store.at(tmp_path), "vit", clock=clock)
    lease.take()
    assert 10 < clock.now_s() < 20
    assert json.loads((tmp_path / "driver.json").read_text())["pid"] == os.getpid()
    lease.give_back()
    assert not (tmp_path / "driver.json").exists()


def test_a_dead_process_of_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    lease_of(tmp_path, owner="o", host=socket.gethostname(), pid=7, renewals=3)
    clock = FakeClock(0.0)
    lease = Lease(Store.at(tmp_path), "vit", clock=clock)
    lease.take(still_there=lambda pid: False)
    lease.give_back()
    assert clock.now_s() == 0.0


def test_a_lease_is_renewed_while_it_is_held(tmp_path: Path) -> None:
    lease = Lease(Store.at(tmp_path), "vit", renew_s=0.01)
    lease.take()
    try:
        assert lease._thread is not None
        seen = set()
        while len(seen) < 3:
            seen.add(json.loads((tmp_path / "driver.json").read_text())["renewals"])
    finally:
        lease.give_back()
    assert not (tmp_path / "driver.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": "x"}'])
def test_a_damaged_lease_is_looked_at_and_then_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "driver.json").write_text(text)
    lease = Lease(Store.at(tmp_path), "vit", clock=FakeClock())
    lease.take()
    lease.give_back()
    assert not (tmp_path / "driver.json").exists()


def test_who_lost_the_lease_leaves_that_of_the_other_alone(tmp_path: Path) -> None:
    lease = Lease(Store.at(tmp_path), "vit", renew_s=1000)
    lease.take()
    lease_of(tmp_path, owner="another", host="far-away", pid=7, renewals=1)
    lease._closing.set()
    lease.give_back()
    assert (tmp_path / "driver.json").exists()
