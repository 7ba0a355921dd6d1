"""Live workers as plain processes, with their assembly in this one: no Ray."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from spotray.events import Event, StepsDone
from spotray.train.assembly import Assembly
from spotray.train.config import SpotConfig
from spotray.train.copies import Copies, CopiesOf
from spotray.train.inbox import Inbox
from spotray.train.member import Unreachable
from spotray.train.membership import Membership, Roster, Timeouts
from spotray.train.messages import View
from spotray.train.moves import Planner
from spotray.train.session import Progress
from spotray.train.shelf import Shelf

_KEY = b"loopback only"
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["spotray.train.live_worker", "tests.train.live_jobs"])


class _Server(BaseManager):
    """Serves one assembly."""


class Calls:
    """`Calls` over multiprocessing's own protocol."""

    def __init__(self, address: Any) -> None:
        self._address = address
        self._proxies = threading.local()

    def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        try:
            if not hasattr(self._proxies, "one"):
                manager = _Server(address=self._address, authkey=_KEY)
                manager.register("assembly")
                manager.connect()
                self._proxies.one = manager.assembly()
            return self._proxies.one._callmethod(method, args)
        except (OSError, EOFError) as exc:
            if hasattr(self._proxies, "one"):
                del self._proxies.one
            raise Unreachable(str(exc)) from exc


class _Front:
    """What workers reach of the assembly: one that was lost gives no answer any more."""

    assembly: Assembly | None = None

    def _ask(self, method: str, *args: Any) -> Any:
        asked = self.assembly
        if asked is not None:
            answer = getattr(asked, method)(*args)
            if self.assembly is asked:
                return answer
        raise ConnectionResetError("the assembly is gone")

    def enter(self, *args: Any) -> Any:
        return self._ask("enter", *args)

    def beat(self, *args: Any) -> Any:
        return self._ask("beat", *args)

    def join(self, *args: Any) -> Any:
        return self._ask("join", *args)

    def tell(self, *args: Any) -> Any:
        return self._ask("tell", *args)

    def commit(self, *args: Any) -> Any:
        return self._ask("commit", *args)

    def ask(self, *args: Any) -> Any:
        return self._ask("ask", *args)

    def saved(self, *args: Any) -> Any:
        return self._ask("saved", *args)

    def finish(self, *args: Any) -> Any:
        return self._ask("finish", *args)


class LivePool:
    """A live job of plain processes.

    Args:
        folder: For storage and snapshots.
        loop: The training loop; of a module, since other processes import it.
        config: Its argument.
        workers: Least and most.
        asks: They wait for a decision after each report.
        resume_from_checkpoint: Of another job, where to begin.
        copies: The node that is not taken keeps copies of snapshots.
    """

    def __init__(
        self,
        folder: Path,
        loop: Callable[..., Any],
        config: Mapping[str, Any] | None = None,
        *,
        workers: tuple[int, int] = (1, 4),
        timeouts: Timeouts | None = None,
        spot: Mapping[str, Any] | None = None,
        asks: bool = False,
        resume_from_checkpoint: str | None = None,
        copies: bool = False,
    ) -> None:
        self.folder, self.loop, self.config = folder, loop, dict(config or {})
        self.workers = workers
        self.spot = SpotConfig(audit_samples=True, **(spot or {}))
        self._more = {"asks": asks, "resume_from_checkpoint": resume_from_checkpoint}
        self.timeouts = timeouts or Timeouts(heartbeat_s=1.5, join_s=1.0)
        self.events: list[Event] = []
        self.outcomes: dict[str, Any] = {}
        self.view: View | None = None
        self._stepped = threading.Condition()
        self._started: dict[str, tuple[Any, str]] = {}  # name -> process, node
        self._gone: dict[str, str] = {}
        self._frozen: set[str] = set()
        self._queue = CONTEXT.SimpleQueue()
        self._count = 0
        self._closing = threading.Event()
        self.shelf: Shelf | None = None
        self._copies: CopiesOf | None = None
        if copies:
            self.shelf = Shelf(self.shm_of("head"), host="127.0.0.1", node_id="head")
            self._copies = CopiesOf(Copies(self.shelf.address), "r1")
        self.restart_assembly(first=True)
        self._threads = [
            threading.Thread(target=self._watch, daemon=True),
            threading.Thread(target=self._collect, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- the job's coordinator -------------------------------------------------------

    def restart_assembly(self, *, first: bool = False) -> None:
        """Lose everything that the coordinator knows, as a restart of its process does."""
        generation, progress = 0, Progress(step=0, epoch=0, loss=None)
        if first:
            self._front = _Front()
        else:
            generation = self.assembly._membership.roster.generation
            self._front.assembly = None
            self.assembly.close()
        self.assembly = Assembly(
            Membership(
                min_workers=self.workers[0],
                max_workers=self.workers[1],
                timeouts=self.timeouts,
                generation=generation,
            ),
            append=self._append,
            inbox=Inbox(self._append),
            flush=lambda: None,
            on_formed=self._formed,
            host="127.0.0.1",
            planner=Planner(margin_s=0.2, mtbp_s=3600.0),
            max_workers=self.workers[1],
            progress=progress,
            copies=self._copies,
        )
        self._front.assembly = self.assembly
        if first:
            manager = _Server(address=("127.0.0.1", 0), authkey=_KEY)
            manager.register("assembly", callable=lambda: self._front)
            self._server = manager.get_server()
            self.address = self._server.address
            threading.Thread(target=self._serve, args=(self._server,), daemon=True).start()

    def _serve(self, server: Any) -> None:
        with contextlib.suppress(SystemExit):
            server.serve_forever()

    def _stop_server(self) -> None:
        self._server.stop_event.set()
        self._server.listener.close()

    # -- what happens to workers -----------------------------------------------------------

    def start(self, count: int = 1, *, node: str | None = None) -> list[str]:
        """Start workers, each on a node of its own unless ``node`` names one."""
        names = []
        for _ in range(count):
            name = f"w{self._count}"
            self._count += 1
            on = node or f"n-{name}"
            process = CONTEXT.Process(
                target=serve_worker,
                args=(name, on, self.address, str(self.folder), self.loop, self.config, self.spot)
                + (self._more, self._queue),
                daemon=True,
            )
            process.start()
            self._started[name] = (process, on)
            names.append(name)
        return names

    def kill(self, name: str) -> None:
        """Returns when it is gone: one that is started next is not one too many."""
        process = self._started[name][0]
        os.kill(process.pid, signal.SIGKILL)
        process.join(timeout=10)

    def freeze(self, name: str) -> None:
        self._frozen.add(name)
        os.kill(self._started[name][0].pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._frozen.discard(name)
        os.kill(self._started[name][0].pid, signal.SIGCONT)

    def notice(self, *names: str, seconds: float | None = 3600.0) -> None:
        """Announce the loss of workers' nodes; replaces earlier notices."""
        deadline = None if seconds is None else time.time() + seconds
        self.notices({self.node_of(name): deadline for name in names})

    def notices(self, deadlines: Mapping[str, float | None]) -> None:
        """All notices that stand, by node, each with its deadline in Unix seconds."""
        self.assembly.set_notices(deadlines)

    def node_of(self, name: str) -> str:
        return self._started[name][1]

    def shm_of(self, node: str) -> Path:
        """What stands for a node's memory."""
        return self.folder / f"shm-{node}"

    def is_running(self, name: str) -> bool:
        """Whether its process lives, frozen or not."""
        return bool(self._started[name][0].is_alive())

    def pid_of(self, name: str) -> int:
        return int(self._started[name][0].pid)

    def pids(self) -> list[int]:
        """Of all workers ever."""
        return [self.pid_of(name) for name in self._started]

    def forget_frozen(self, name: str) -> None:
        """A frozen worker was killed."""
        self._frozen.discard(name)

    @property
    def done(self) -> bool:
        return self.assembly._membership.done

    @property
    def gave_up(self) -> str:
        return self.assembly._membership.gave_up

    @property
    def generation(self) -> int:
        return self.assembly._membership.roster.generation

    def members(self) -> list[str]:
        """Of the present generation, in the order of ranks."""
        return self.assembly._membership.members_alive()

    def wait_for_step(self, step: int, *, size: int | None = None, timeout_s: float = 60) -> None:
        """Until the journal tells of a step at or beyond ``step``, done by ``size`` workers."""

        def there() -> bool:
            return any(
                isinstance(e, StepsDone)
                and e.last_step >= step
                and (size is None or e.world_size == size)
                for e in self.events
            )

        with self._stepped:
            if not self._stepped.wait_for(there, timeout_s):
                raise TimeoutError(f"no step {step} by {size} workers in {timeout_s} s")

    def wait_for(self, kind: type[Event], count: int, timeout_s: float = 60) -> None:
        """Until the journal tells of so many facts of one kind."""

        def there() -> bool:
            return sum(isinstance(e, kind) for e in self.events) >= count

        with self._stepped:
            if not self._stepped.wait_for(there, timeout_s):
                raise TimeoutError(f"no {count} of {kind.__name__} in {timeout_s} s")

    def wait_until_ready(self, name: str, timeout_s: float = 60) -> None:
        """Until a newcomer waits to be let in."""

        def waits() -> bool:
            return name in self.assembly._membership.newcomers()

        with self._stepped:
            if not self._stepped.wait_for(waits, timeout_s):
                raise TimeoutError(f"{name} is not ready in {timeout_s} s")

    def last_step(self) -> int:
        """That the journal tells of."""
        return max((e.last_step for e in self.events if isinstance(e, StepsDone)), default=0)

    def wait_for_outcomes(self, count: int, timeout_s: float = 120) -> dict[str, Any]:
        """Until so many workers ended by themselves."""
        with self._stepped:
            if not self._stepped.wait_for(lambda: len(self.outcomes) >= count, timeout_s):
                raise TimeoutError(f"{len(self.outcomes)} of {count} workers ended")
        return dict(self.outcomes)

    def finished(self, timeout_s: float = 120) -> list[dict[str, Any]]:
        """Until the job is done and all workers that live have ended; who finished."""
        with self._stepped:
            done = self._stepped.wait_for(self._all_ended, timeout_s)
        failed = [o for o in self.outcomes.values() if "error" in o]
        if failed:
            raise AssertionError(failed[0]["error"])
        if not done:
            raise TimeoutError(f"not finished: members {self.members()}, {self.outcomes}")
        return [o for o in self.outcomes.values() if o["kind"] == "finished"]

    def _all_ended(self) -> bool:
        if any("error" in o for o in self.outcomes.values()):
            return True
        return self.assembly._membership.done and all(
            name in self.outcomes
            for name, (process, _) in self._started.items()
            if (process.is_alive() and name not in self._frozen) or process.exitcode == 0
        )

    def close(self) -> None:
        self._closing.set()
        for process, _ in self._started.values():
            process.kill()  # unless it has ended
            process.join(timeout=10)
        self._stop_server()
        self.assembly.close()
        if self.shelf is not None:
            self.shelf.close()
        for thread in self._threads[:1]:
            thread.join(timeout=5)

    # -- inside ----------------------------------------------------------------------------

    def _append(self, event: Event) -> None:
        with self._stepped:
            self.events.append(event)
            self._stepped.notify_all()

    def _formed(self, roster: Roster) -> None:
        del roster

    def _watch(self) -> None:
        """What the driver does: hears of the end of processes."""
        while not self._closing.wait(0.05):
            gone = {}
            processes = list(self._started.items())  # whoever is started from here on comes next
            for name, (process, _) in processes:
                if not process.is_alive() and name not in self._gone:
                    gone[name] = self._gone[name] = f"exit code {process.exitcode}"
            started = {n: node for n, (_, node) in processes if n not in self._gone}
            self.view = self.assembly.sync(started, gone)
            with self._stepped:
                self._stepped.notify_all()

    def _collect(self) -> None:
        while not self._closing.is_set():
            try:
                name, outcome = self._queue.get()
            except (EOFError, OSError):
                return
            with self._stepped:
                self.outcomes[name] = outcome
                self._stepped.notify_all()


def serve_worker(
    name: str,
    node: str,
    address: Any,
    folder: str,
    loop: Callable[..., Any],
    config: dict[str, Any],
    spot: SpotConfig,
    more: dict[str, Any],
    queue: Any,
) -> None:
    """The process of one worker."""
    import torch

    from spotray.storage import Store
    from spotray.train.live_worker import work
    from spotray.train.member import Member

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    device = torch.device("cpu")
    result: dict[str, Any] = {}

    def recorded(config: dict[str, Any]) -> None:
        result.clear()
        loop({**config, "result": result})

    try:
        member = Member(Calls(address), name=name, node_id=node, device=device)
        outcome = work(
            recorded,
            config,
            member,
            run_id="r1",
            store=Store.at(f"{folder}/store"),
            spot=spot,
            shm_dir=Path(folder) / f"shm-{node}",
            device=device,
            node_id=node,
            **more,
        )
        queue.put((name, {"kind": outcome.kind, "why": outcome.why, **result}))
    except BaseException:
        queue.put((name, {"kind": "failed", "error": traceback.format_exc()}))
    # Groups with a hung collective must not be waited for.
    os._exit(0)
