"""A pool of processes that form worlds of one to four workers, without Ray.

Starting a process and importing torch takes seconds, so one pool serves all tests.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Job = Callable[..., Any]


class WorkerPool:
    """Runs one function on several ranks at a time."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, world_size: int, job: Job, *args: Any, timeout_s: float = 120) -> list[Any]:
        """``job(world, *args)`` on each rank; the results by rank. The first error is raised."""
        with tempfile.NamedTemporaryFile(delete=False) as file:
            rendezvous = file.name
        os.unlink(rendezvous)
        try:
            for rank in range(world_size):
                self._pipes[rank].send((rendezvous, rank, world_size, job, args))
            answers = []
            for rank in range(world_size):
                if not self._pipes[rank].poll(timeout_s):
                    raise TimeoutError(f"rank {rank} of {world_size} did not answer")
                answers.append(self._pipes[rank].recv())
        finally:
            Path(rendezvous).unlink(missing_ok=True)
        for error, trace, _ in answers:
            if error is not None:
                error.add_note(trace)
                raise error
        return [result for _, _, result in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    from spotray.train.world import World

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    while True:
        try:
            rendezvous, rank, size, job, args = pipe.recv()
        except EOFError:
            return
        try:
            world = World()
            if size > 1:
                dist.init_process_group(
                    "gloo",
                    init_method=f"file://{rendezvous}",
                    rank=rank,
                    world_size=size,
                    timeout=datetime.timedelta(seconds=60),
                )
                world = World.from_process_group(device=torch.device("cpu"))
            result = job(world, *args)
            answer = (None, "", result)
        except Exception as exc:
            answer = (exc, traceback.format_exc(), None)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        pipe.send(answer)
