"""The way back to a launch, from any shell."""

from __future__ import annotations

from dataclasses import dataclass

from spotray.clock import Clock, SystemClock
from spotray.errors import LaunchError
from spotray.launch.jobs import JobServer
from spotray.launch.launch import lost, read_cluster, remote_of, seen
from spotray.launch.records import Launch, Records
from spotray.launch.remote import Remote


def look_again(launch: Launch, server: JobServer, *, records: Records, clock: Clock) -> Launch:
    """How a launch stands now.

    Raises:
        ClusterUnreachable: its cluster could not be asked.
    """
    try:
        launch = seen(launch, server.state(launch.submission_id), now_s=clock.now_s())
    except LaunchError as exc:
        launch = lost(launch, str(exc), now_s=clock.now_s())
    records.save(launch)
    return launch


@dataclass(frozen=True)
class Wayback:
    """The way from any shell to the cluster of a launch; ends with its ``with`` block."""

    remote: Remote
    server: JobServer
    clock: Clock

    @classmethod
    def to(cls, launch: Launch, *, records: Records) -> Wayback:
        """By the spec that the cluster was brought up with.

        Raises:
            ConfigError: that is no longer there.
        """
        file = records.spec_file(launch.cluster_name)
        remote = remote_of(file, read_cluster(file)[1])
        clock = SystemClock()
        return cls(remote, JobServer(remote, clock=clock), clock)

    def __enter__(self) -> Wayback:
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.close()
