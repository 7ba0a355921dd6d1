"""Jobs on a head, over a connection that may break at any time and is made anew.

A job runs on the head, under Ray's job server. This machine only looks at it: it may sleep,
lose its network, or end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from spotray.clock import Clock, SystemClock
from spotray.errors import ClusterUnreachable, LaunchError
from spotray.launch.remote import Remote, Tunnel

_T = TypeVar("_T")
_POLL_S = 1.0  # between two looks at a job's state
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)  # between attempts to connect; the last one repeats
_ASK_CLOUD = 3  # after so many failed attempts the cloud is asked whether the head is there
_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")  # Ray heeds these more than its argument


@dataclass(frozen=True, kw_only=True)
class JobState:
    """How a job stands."""

    state: str  # pending, running, succeeded, failed or stopped
    exit_code: int | None = None
    message: str = ""
    entrypoint: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it ended, in whatever way."""
        return self.state in ("succeeded", "failed", "stopped")


class JobServer:
    """The job server of one cluster's head. Not for several threads."""

    def __init__(self, remote: Remote, *, clock: Clock | None = None) -> None:
        """Nothing is connected before it is needed."""
        self._remote, self._clock = remote, clock or SystemClock()
        self._token: str | None = None
        self._tunnel: Tunnel | None = None
        self._client: Any = None

    def __enter__(self) -> JobServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        if self._tunnel is not None:
            self._tunnel.close()
        self._tunnel = self._client = None

    def connect(self) -> None:
        """See whether it answers.

        Raises:
            ClusterUnreachable: it does not.
            LaunchError: it does, and refuses.
        """
        self._call(lambda client: client.get_version())

    def submit(
        self,
        *,
        entrypoint: str,
        submission_id: str,
        archive: Path | None,
        env: Mapping[str, str],
        metadata: Mapping[str, str],
    ) -> None:
        """Start a job.

        Args:
            entrypoint: a shell's command, run on the head.
            archive: a zip that becomes its working folder, on every node.

        Raises:
            ClusterUnreachable: the connection broke; the job may have started all the same.
            LaunchError: the head refused it.
        """
        runtime_env: dict[str, Any] = {"env_vars": dict(env)}
        if archive is not None:
            runtime_env["working_dir"] = str(archive)
        try:
            self._call(
                lambda client: client.submit_job(
                    entrypoint=entrypoint,
                    submission_id=submission_id,
                    runtime_env=runtime_env,
                    metadata=dict(metadata),
                )
            )
        except ClusterUnreachable as exc:
            if "status code 500" in str(exc):  # that is an answer, and asking again changes nothing
                raise LaunchError(f"the head refuses the job: {exc}") from exc
            raise

    def state(self, submission_id: str) -> JobState:
        """How a job stands now.

        Raises:
            ClusterUnreachable: the connection broke.
            LaunchError: the head knows no such job.
        """
        return _state(self._call(lambda client: client.get_job_info(submission_id)))

    def running(self) -> list[str]:
        """The jobs that are not over, by Ray's names for them.

        Raises:
            ClusterUnreachable: the connection broke.
        """
        jobs: Sequence[Any] = self._call(lambda client: client.list_jobs())
        return [str(one.submission_id or one.job_id) for one in jobs if not _state(one).is_over]

    def stop(self, submission_id: str) -> JobState:
        """Stop a job, and wait until it has.

        Raises:
            ClusterUnreachable: the connection broke.
            LaunchError: the head knows no such job.
        """
        self._call(lambda client: client.stop_job(submission_id))
        while not (state := self.state(submission_id)).is_over:
            self._clock.sleep(_POLL_S)
        return state

    def log(self, submission_id: str) -> str:
        """All that a job has said so far.

        Raises:
            ClusterUnreachable: the connection broke.
            LaunchError: the head knows no such job.
        """
        return str(self._call(lambda client: client.get_job_logs(submission_id)))

    def follow(
        self,
        submission_id: str,
        *,
        show: Callable[[str], None],
        tell: Callable[[str], None],
        changed: Callable[[JobState], None] = lambda state: None,
        skip: int = 0,
    ) -> JobState:
        """Show what a job says until it ends, however often the connection breaks.

        Args:
            show: gets each piece of the log once.
            tell: gets a line about the connection.
            changed: gets the job's state whenever it is another.
            skip: so many characters of the log were shown before.

        Raises:
            LaunchError: the head knows no such job, or the cluster is gone.
        """
        shown, failed = skip, 0
        before: JobState | None = None
        while True:
            try:
                state = self.state(submission_id)
                if failed:
                    tell("connected again")
                    failed = 0
                if state != before:
                    changed(state)
                    before = state
                if state.is_over:
                    show(self.log(submission_id)[shown:])
                    return state
                if state.state == "running":
                    for piece in self._tail(submission_id, skip=shown):
                        show(piece)
                        shown += len(piece)
                self._clock.sleep(_POLL_S)
            except ClusterUnreachable as exc:
                if not failed:
                    tell(f"the connection broke, and the job goes on without it ({exc})")
                failed += 1
                if failed % _ASK_CLOUD == 0:
                    self._check_head()
                self._clock.sleep(_RETRY_S[min(failed, len(_RETRY_S)) - 1])

    def _tail(self, submission_id: str, *, skip: int) -> Iterator[str]:
        """The log as it grows, without the first ``skip`` characters.

        Ray sends it from its start to each who asks, and so once more to who lost it.
        """
        seen = 0
        pieces = self._call(lambda client: client.tail_job_logs(submission_id))
        with asyncio.Runner() as runner:  # it also ends the stream when somebody interrupts
            while (piece := self._guarded(lambda: runner.run(_next(pieces)))) is not None:
                seen += len(piece)
                if fresh := piece[max(0, len(piece) - max(0, seen - skip)) :]:
                    yield fresh

    def _check_head(self) -> None:
        try:
            if self._remote.head() is None:
                raise LaunchError("the cluster is gone, and the job with it")
        except ClusterUnreachable:
            return  # no network here: that says nothing of the cluster

    def _call(self, ask: Callable[[Any], _T]) -> _T:
        return self._guarded(lambda: ask(self._connected()))

    def _connected(self) -> Any:
        if self._tunnel is not None and not self._tunnel.is_open():
            self.close()
        if self._client is None:
            if self._token is None:
                self._token = self._remote.token()
            if self._tunnel is None:
                self._tunnel = self._remote.tunnel()
            self._client = _client(self._tunnel.url, self._token)
        return self._client

    def _guarded(self, ask: Callable[[], _T]) -> _T:
        """What it gives; Ray's and the network's errors become ours."""
        import aiohttp
        from ray.exceptions import AuthenticationError

        try:
            return ask()
        except AuthenticationError as exc:
            self._token = None
            self.close()
            raise LaunchError(f"the head refuses its own token: {exc}") from exc
        except (OSError, EOFError, aiohttp.ClientError) as exc:
            self.close()
            raise ClusterUnreachable(f"the head does not answer: {exc}") from exc
        except RuntimeError as exc:
            said = str(exc)
            if "status code 404" in said or "does not exist" in said:
                raise LaunchError(f"the head knows no such job: {said[:300]}") from exc
            if "status code 4" in said:
                raise LaunchError(f"the head refuses: {said[:300]}") from exc
            self.close()  # a server that is only starting, or a socket that was cut off
            raise ClusterUnreachable(f"the head does not answer: {said[:300]}") from exc


def _client(url: str, token: str) -> Any:
    from ray.job_submission import JobSubmissionClient

    # They tell of each upload and each end of a stream, which we tell in our own words.
    for module in (JobSubmissionClient, *JobSubmissionClient.__bases__):
        logging.getLogger(module.__module__).setLevel(logging.WARNING)
    headers = {"Authorization": f"Bearer {token}"} if token else None
    held = {name: os.environ.pop(name) for name in _ADDRESSES if name in os.environ}
    try:
        return JobSubmissionClient(url, headers=headers)
    finally:
        os.environ.update(held)


async def _next(pieces: AsyncIterator[str]) -> str | None:
    return await anext(pieces, None)


def _state(job: Any) -> JobState:
    return JobState(
        state=str(getattr(job.status, "value", job.status)).lower(),
        exit_code=job.driver_exit_code,
        # Behind this Ray repeats the end of the log.
        message=" ".join((job.message or "").partition(", last available logs")[0].split()),
        entrypoint=job.entrypoint or "",
    )
