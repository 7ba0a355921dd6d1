"""`ElasticTrainer`: Ray Train's TorchTrainer for machines that may be taken away."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

import ray
import ray.train
from ray.exceptions import RayError
from ray.train import RunConfig
from ray.train.torch import TorchConfig
from ray.train.v2.api.config import ScalingConfig  # ray.train's own, as type checkers see it
from ray.train.v2.api.exceptions import TrainingFailedError  # as above
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spotray.cluster.job_actors import NAMESPACE, actor_name
from spotray.errors import ConfigError, JournalError, SpotrayError
from spotray.events import FellBack, JobEnded, JobStarted
from spotray.ledger.journal import JournalWriter
from spotray.storage import Store
from spotray.track.following import Following
from spotray.track.prometheus import RayMetrics
from spotray.track.tracker import RunAbout, check_installed, tracker
from spotray.train.config import SpotConfig
from spotray.train.coordinator import Coordinator
from spotray.train.lease import Lease
from spotray.train.live import GaveWay, LiveTraining, RemoteCoordinator, Stopped
from spotray.train.live_coordinator import LiveCoordinator
from spotray.train.live_worker import LiveJob
from spotray.train.membership import Timeouts
from spotray.train.placing import ClusterWorkers
from spotray.train.ray_internals import SpotTorchTrainer, own_error, set_fast_recovery_env
from spotray.train.worker import WorkerLoop, remove_job_memory

log = logging.getLogger(__name__)

JOB_FOLDER = "spotray"  # inside of the run's folder, beside Ray Train's own files
_CALL_S = 10.0  # for an answer of the coordinator
_SWEEP_S = 20.0  # for a task on each node that was left behind


class ElasticTrainer:
    """Trains on the nodes that are there, through preemptions, with the same result.

    ::

        trainer = spotray.ElasticTrainer(
            train_loop,
            train_loop_config={"lr": 1e-3},
            scaling_config=ray.train.ScalingConfig(num_workers=(1, 4)),
            run_config=ray.train.RunConfig(name="vit", storage_path="s3://bucket/runs"),
        )
        result = trainer.fit()

    A loop that makes a `spotray.Run` keeps its state through every loss of nodes. A
    plain Ray Train loop that does its own checkpoints runs too, and gets everything
    but the saved state.

    Args:
        train_loop_per_worker: The training function, with or without a config
            argument.
        train_loop_config: Handed to it.
        scaling_config: Ray Train's; ``num_workers=(min, max)`` makes the job elastic.
        run_config: Ray Train's; ``storage_path`` must be reachable from all nodes. A
            job of the same name goes on where it stopped.
        spot: How the job guards itself; the defaults work.
        recovery: ``"live"``: the workers that are left when one is lost go on in their
            processes, and a new one joins while they step. A loop that live recovery
            cannot serve (it calls ``ray.train`` itself, or its model is sharded) falls
            back to ``"restart"``: Ray Train's worker groups, formed anew at every change.
        torch_config: Ray Train's; by default NCCL with GPUs and gloo without.

    Raises:
        ConfigError: numbers of workers that make no sense; a tracker that is not installed.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        spot: SpotConfig | None = None,
        recovery: Literal["live", "restart"] = "live",
        torch_config: TorchConfig | None = None,
    ) -> None:
        if recovery not in ("live", "restart"):
            raise ConfigError(f"recovery must be 'live' or 'restart', got {recovery!r}")
        self.train_loop_per_worker = train_loop_per_worker
        self.train_loop_config = dict(train_loop_config or {})
        self.scaling_config = scaling_config or ScalingConfig()
        self.spot = spot or SpotConfig()
        self.recovery = recovery
        self.torch_config = torch_config
        self.run_config = _named(run_config or RunConfig())
        check_workers(self.scaling_config)
        check_installed(self.spot.trackers)

    @property
    def run_dir(self) -> str:
        """The run's folder, for ``spotray status`` and ``spotray cost``."""
        return self._run_store().url

    def fit(self) -> ray.train.Result:
        """Train to the end.

        Returns:
            Ray Train's result: the last reported metrics, and the final checkpoint
            (readable by `torch.distributed.checkpoint`).

        Raises:
            ConfigError: the storage cannot be written, a job of this name is running, a
                tracker has no way to its server, or an input of the loop is wrong.
            StateMismatch: a job of this name trained another model or batch size.
            ray.train.TrainingFailedError: the training function failed.
        """
        store = self._run_store().child(JOB_FOLDER)
        store.check_writable()
        if not ray.is_initialized():
            ray.init()
        set_fast_recovery_env()
        run_id = run_id_of(store)
        following = self._following(store, run_id)
        name = str(self.run_config.name)
        cluster_journal = self.spot.cluster_journal or os.environ.get("SPOTRAY_JOURNAL", "")
        coordinator = self._start_coordinator(store, run_id, writes_nodes=not cluster_journal)
        lease = Lease(store, name)
        try:
            lease.take()
        except ConfigError:
            _end_coordinator(coordinator)
            raise
        journal = JournalWriter(store.child("journal"), writer=f"driver-{int(time.time() * 1000)}")
        low, high = worker_range(self.scaling_config)
        journal.append(
            JobStarted(
                at_s=time.time(),
                job=name,
                run_id=run_id,
                min_workers=low,
                max_workers=high,
                cluster_journal=cluster_journal,
                labels=dict(self.spot.labels),
            )
        )
        following.start()
        status, why = "failed", ""
        on_interrupt = signal.getsignal(signal.SIGINT)  # Ray Train puts its own there
        try:
            result = None
            if self.recovery == "live":
                result = self._train_live(store, run_id, coordinator, journal)
            if result is None:
                result = self._train(store, run_id, coordinator)
            status = "finished"
            _sweep(coordinator, run_id)
            return result
        except TrainingFailedError as exc:
            if own := own_error(exc):
                why = str(own)
                raise own from exc
            why = str(exc)[-300:]
            raise
        except (KeyboardInterrupt, SystemExit) as exc:
            # Ray's handler for Ctrl-C ends the driver with exit code 0 or 1.
            status = "interrupted"
            raise KeyboardInterrupt from exc
        except SpotrayError as exc:
            why = str(exc)
            raise
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, on_interrupt)
            _end_coordinator(coordinator)
            lease.give_back()
            journal.append(JobEnded(at_s=time.time(), job=name, status=status, why=why))
            try:
                journal.close()
            except JournalError as exc:  # must not hide how the job ended
                log.warning("the end of %s is not in its journal: %s", name, exc)
            following.close(status)

    def status(self) -> dict[str, Any] | None:
        """How far the job is, for a live view from another thread; None if nobody answers."""
        try:
            actor = ray.get_actor(actor_name(str(self.run_config.name)), namespace=NAMESPACE)
            return cast("dict[str, Any]", ray.get(actor.status.remote(), timeout=2))
        except (ValueError, RayError):
            return None

    def _train_live(
        self, store: Store, run_id: str, coordinator: Any, journal: JournalWriter
    ) -> ray.train.Result | None:
        """Train with live recovery; None if it gave way to restarts."""
        job = LiveJob(
            loop=self.train_loop_per_worker,
            config=self.train_loop_config,
            run_id=run_id,
            store=store,
            spot=self.spot,
            coordinator=coordinator,
        )
        failures = self.run_config.failure_config
        workers = ClusterWorkers(self.scaling_config, name=str(self.run_config.name))
        try:
            ended = LiveTraining(
                job,
                supervisor=RemoteCoordinator(coordinator),
                workers=workers,
                max_failures=failures.max_failures if failures is not None else 0,
            ).run()
        finally:
            workers.close()
        assert not isinstance(ended, Stopped), "nobody stops it"
        if isinstance(ended, GaveWay):
            log.warning("live recovery gives way to restarts: %s", ended.why)
            generation = (self.status() or {}).get("generation", 0)
            journal.append(
                FellBack(at_s=time.time(), generation=generation, why=ended.why, to="restart")
            )
            ray.get(coordinator.stop_live.remote(), timeout=_CALL_S)
            return None
        metrics, path = ended
        root = None
        if path is not None:
            root = Store.at(path, filesystem=None).root if "://" in path else path
        checkpoint = ray.train.Checkpoint(root, filesystem=store.fs) if root is not None else None
        run = self._run_store()
        return ray.train.Result(
            metrics=dict(metrics),
            checkpoint=checkpoint,
            path=run.root,
            error=None,
            best_checkpoints=[(checkpoint, dict(metrics))] if checkpoint is not None else [],
            _storage_filesystem=run.fs,
        )

    def _train(self, store: Store, run_id: str, coordinator: Any) -> ray.train.Result:
        loop = WorkerLoop(
            loop=self.train_loop_per_worker,
            run_id=run_id,
            store=store,
            spot=self.spot,
            coordinator=coordinator,
        )

        def train_loop(config: dict[str, Any]) -> Any:
            return loop(config)

        trainer = SpotTorchTrainer(
            train_loop,
            train_loop_config=self.train_loop_config,
            torch_config=self.torch_config or TorchConfig(),
            scaling_config=self.scaling_config,
            run_config=self.run_config,
            coordinator=coordinator,
            max_idle_restarts=self.spot.max_restarts_without_progress,
        )
        return trainer.fit()

    def _start_coordinator(self, store: Store, run_id: str, *, writes_nodes: bool) -> Any:
        """The coordinator, on the driver's node: the one that a job cannot lose anyway."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        resources = self.scaling_config._resources_per_worker_not_none
        name = str(self.run_config.name)
        low, high = worker_range(self.scaling_config)
        live = self.recovery == "live"
        actor = ray.remote(LiveCoordinator if live else Coordinator).options(
            name=actor_name(name),
            namespace=NAMESPACE,
            num_cpus=0,
            # A live worker that joins holds a thread until the others are there too.
            max_concurrency=8 + 3 * high if live else 8,
            max_restarts=-1,
            scheduling_strategy=here,
        )
        more: dict[str, Any] = {}
        if live:
            timeouts = Timeouts(heartbeat_s=self.spot.heartbeat_timeout_s)
            more = {"min_workers": low, "max_workers": high, "timeouts": timeouts}
            more["run_id"] = run_id
        try:
            return actor.remote(
                store, self.spot, dict(resources), writes_nodes=writes_nodes, **more
            )
        except ValueError as exc:
            raise ConfigError(
                f"a job named {name!r} is running on this cluster: wait for its end, or give "
                "this one another name"
            ) from exc

    def _following(self, store: Store, run_id: str) -> Following:
        """Who tells the trackers and Ray's metrics of the run; not started yet.

        Raises:
            ConfigError: a tracker has no way to its server.
        """
        home, name = self._run_store(), str(self.run_config.name)
        about = RunAbout(
            run_id=run_id,
            name=name,
            url=home.url,
            config=self.train_loop_config,
            labels=dict(self.spot.labels),
        )
        return Following(
            home,
            store.child("tracking"),
            [tracker(one, about, run_dir=home) for one in self.spot.trackers],
            show=RayMetrics(name),
        )

    def _run_store(self) -> Store:
        filesystem = self.run_config.storage_filesystem
        path = str(self.run_config.storage_path)
        return Store.at(path, filesystem=filesystem).child(str(self.run_config.name))


def _named(config: RunConfig) -> RunConfig:
    name = config.name or f"spotray-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    return replace(config, name=name)


def check_workers(config: ScalingConfig) -> None:
    """Refuse numbers of workers that make no sense.

    Raises:
        ConfigError: the least is below 1, or above the most.
    """
    low, high = worker_range(config)
    if low < 1 or high < low:
        raise ConfigError(
            f"num_workers=({low}, {high}): the least must be at least 1 and not above the most"
        )


def worker_range(config: ScalingConfig) -> tuple[int, int]:
    """The least and the most workers."""
    workers = config.num_workers
    return (workers, workers) if isinstance(workers, int) else (workers[0], workers[1])


def run_id_of(store: Store) -> str:
    """The run's id, made at its first start and found again at the next."""
    try:
        raw = json.loads(store.read("run.json"))
        return str(raw["run_id"])
    except FileNotFoundError:
        run_id = uuid.uuid4().hex
        store.write("run.json", json.dumps({"run_id": run_id}).encode())
        return run_id
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"{store.url}/run.json is damaged ({exc!r}): restore it, or give the job another name"
        ) from exc


def _sweep(coordinator: Any, run_id: str) -> None:
    """Give back the memory of nodes that took part, but not to the end."""
    try:
        nodes = ray.get(coordinator.left_behind.remote(), timeout=_CALL_S)
        remove = ray.remote(num_cpus=0, max_retries=0)(remove_job_memory)
        at = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
        ray.get(
            [remove.options(scheduling_strategy=one).remote(run_id) for one in at],
            timeout=_SWEEP_S,
        )
    except RayError as exc:
        log.warning("snapshots of %s may be left on some nodes: %s", run_id, exc)


def _end_coordinator(coordinator: Any) -> None:
    try:
        ray.get(coordinator.close.remote(), timeout=15)
    except RayError as exc:
        log.warning("the job's coordinator did not close its journal: %s", exc)
    ray.kill(coordinator)
