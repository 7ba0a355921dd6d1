"""Every error that spotray raises on purpose.

::

    SpotrayError
    ├── ConfigError             the user's input is wrong; never retried
    │   ├── MetricMissing       no report of any trial will have it
    │   └── NotLive             live recovery cannot serve this training loop
    ├── MarketError             carries ``market``
    │   ├── NoCapacityError     none here now: try the next market
    │   ├── QuotaError          this account may not: retrying cannot help
    │   ├── NotOfferedError     the zone does not sell this type at all
    │   ├── NotPermittedError   these credentials may not: every zone says the same
    │   ├── ThrottledError      ask again after ``retry_after_s``
    │   └── DiskNotFree         another node has this disk, or it is gone: try the next
    ├── TraceError              a trace file is malformed or too short
    ├── NotAnswered             a cloud did not answer a question about the account
    ├── PolicyError             a policy raised, or chose what cannot be done
    ├── MetadataError           a cloud's metadata service gave no usable answer
    ├── JournalError            the journal cannot be read or written
    ├── CheckpointError
    │   ├── CheckpointCorrupt   checksum or manifest disagrees: use the previous one
    │   └── FencedOut           this worker is no longer a member; it may not write
    ├── StateMismatch           a saved state belongs to another model or batch size
    ├── WorldBroken             a peer is gone: the collective cannot finish
    ├── LabError                the laptop lab could not do what it was asked
    ├── ClusterUnreachable      Ray's head does not answer; ask again later
    ├── LaunchError             a launch cannot go on: its cluster or its job is not there
    └── DrainRejected           Ray refused to drain the node

A class exists because a caller acts differently on it. A preemption is not an
error: it is a value (`spotray.cloud.provider.Notice`), an event and a fact in the ledger.
"""

from __future__ import annotations

from typing import Any


class SpotrayError(Exception):
    """Base of all errors that spotray raises on purpose."""


class ConfigError(SpotrayError):
    """The user's input is wrong; the message names the value and the cure."""


class MetricMissing(ConfigError):
    """No report of any trial will have the metric: the sweep cannot go on."""


class NotLive(ConfigError):
    """Live recovery cannot serve this training loop: no trial of it can be trained."""


class MarketError(SpotrayError):
    """A market did not give what was asked of it; ``market`` says which.

    ``code`` is the cloud's own word for it, empty if it had none.
    """

    def __init__(self, message: str, *, market: str, code: str = "") -> None:
        super().__init__(message)
        self.market = market
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only fields are lost by Exception's own pickling, and these
        # errors cross Ray's process borders.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class NoCapacityError(MarketError):
    """No capacity in this market now: try the next one."""


class QuotaError(MarketError):
    """This account may not launch here: retrying cannot help."""


class NotOfferedError(MarketError):
    """The zone does not sell this instance type, on spot or on demand."""


class NotPermittedError(MarketError):
    """These credentials may not launch such a node, in whatever zone."""


class ThrottledError(MarketError):
    """The cloud asks for patience: try again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, market: str, retry_after_s: float, code: str = "") -> None:
        super().__init__(message, market=market, code=code)
        self.retry_after_s = retry_after_s


class DiskNotFree(MarketError):
    """A disk that cannot be had: somebody else has it, or it is gone; try the next.

    ``is_gone``: the cloud knows no such disk.
    """

    def __init__(self, message: str, *, market: str, code: str = "", is_gone: bool = False) -> None:
        super().__init__(message, market=market, code=code)
        self.is_gone = is_gone


class TraceError(SpotrayError):
    """A trace file is malformed, empty or too short."""


class NotAnswered(SpotrayError):
    """A cloud did not answer a question about the account: what was asked stays unknown."""


class PolicyError(SpotrayError):
    """A policy raised, or chose what cannot be done; the message names it and the tick."""


class MetadataError(SpotrayError):
    """A cloud's metadata service gave no usable answer; ask again later."""


class JournalError(SpotrayError):
    """The journal cannot be read or written."""


class CheckpointError(SpotrayError):
    """A checkpoint or snapshot could not be written or read."""


class CheckpointCorrupt(CheckpointError):
    """Checksum or manifest disagrees with the bytes: use the previous checkpoint."""


class FencedOut(CheckpointError):
    """This worker is no longer a member; it may not write."""


class StateMismatch(SpotrayError):
    """A saved state belongs to another model, batch size or dataset."""


class WorldBroken(SpotrayError):
    """A peer of this generation is gone, so a collective cannot finish."""


class LabError(SpotrayError):
    """The laptop lab could not do what it was asked."""


class ClusterUnreachable(SpotrayError):
    """Ray's head does not answer; ask again later."""


class LaunchError(SpotrayError):
    """A launch cannot go on: its cluster did not come up, or cluster or job are gone."""


class DrainRejected(SpotrayError):
    """Ray refused to drain the node."""


def one_line(error: BaseException, most: int = 240) -> str:
    """An error's own words without line ends, and not a page of them.

    >>> one_line(OSError("disk\\n full"))
    'disk full'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 3] + "..."


def first_line(error: BaseException) -> str:
    """The first line of an error that has a traceback of another process in its words."""
    return (str(error).strip() or repr(error)).splitlines()[0][:160]


def _rebuild(
    cls: type[SpotrayError], args: tuple[Any, ...], fields: dict[str, Any]
) -> SpotrayError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(fields)
    return error
