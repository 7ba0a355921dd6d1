"""What survives a preemption: one list, by name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from spotray.errors import StateMismatch
from spotray.train.capture import Captured, put_together, take_apart
from spotray.train.sharded import check_slots, is_sharded, whole


@runtime_checkable
class Stateful(Protocol):
    """Anything with torch's pair of methods. It must be alike on all workers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class TrainState:
    """Everything that must survive, by name, in one place."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self.parts = dict(parts)
        # Then each worker holds its own pieces of some tensors.
        self.is_sharded = any(isinstance(p, nn.Module) and is_sharded(p) for p in parts.values())

    def capture(self) -> Captured:
        """The state as it is now; its tensors are the live ones, nothing is copied.

        Raises:
            CheckpointError: a part holds what cannot be stored safely.
            ConfigError: an optimizer's sharded state cannot be cut for other workers.
        """
        if self.is_sharded:
            check_slots(self.parts)
        return take_apart({name: part.state_dict() for name, part in self.parts.items()})

    def restore(self, captured: Captured, *, whence: str) -> None:
        """Load a saved state into all parts.

        Args:
            captured: The saved state.
            whence: Names the source in errors.

        Raises:
            StateMismatch: the saved state belongs to another job: a part is
                missing, or a part does not take its state.
            CheckpointCorrupt: the saved state does not fit itself.
        """
        saved = put_together(captured)
        if missing := sorted(self.parts.keys() - saved.keys()):
            raise StateMismatch(
                f"{whence} has no state for {', '.join(missing)}: it was saved by another "
                "training loop; give this job another name, or restore with the old loop"
            )
        if unused := sorted(saved.keys() - self.parts.keys()):
            raise StateMismatch(
                f"{whence} holds a state of {', '.join(unused)}, which this training loop does "
                "not prepare; give this job another name, or prepare it"
            )
        for name, part in self.parts.items():
            try:
                part.load_state_dict(saved[name])
            except (
                RuntimeError,
                LookupError,
                ValueError,
                TypeError,
                AttributeError,
                AssertionError,
            ) as exc:
                # A KeyError's own text is the key alone.
                text = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
                detail = " ".join(text.split())[:300]
                raise StateMismatch(
                    f"{whence} does not fit this job's {name}: {detail}; give this job another "
                    "name, or go back to the model and the settings that saved it"
                ) from exc


@dataclass(kw_only=True)
class Position:
    """Where a run is, and what must be the same for that to mean anything."""

    global_batch_size: int
    micro_batch_size: int
    seed: int
    samples: int = 0  # in the dataset; 0: not known yet
    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0  # optimizer steps done
    loss: float | None = None  # mean over the last complete global batch

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "step": self.step,
            "loss": self.loss,
            **self._fixed(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, now in self._fixed().items():
            if state_dict[name] != now:
                raise ValueError(f"{name} was {state_dict[name]} and is {now} now")
        self.epoch = int(state_dict["epoch"])
        self.step_in_epoch = int(state_dict["step_in_epoch"])
        self.step = int(state_dict["step"])
        self.loss = state_dict["loss"]

    def _fixed(self) -> dict[str, int]:
        return {
            "global_batch_size": self.global_batch_size,
            "micro_batch_size": self.micro_batch_size,
            "seed": self.seed,
            "samples": self.samples,
        }


def weights_sha256(modules: Mapping[str, nn.Module]) -> str:
    """SHA-256 over names, types, shapes and bytes of all parameters and buffers.

    Sharded ones are gathered one after the other: then all workers must call it.
    """
    digest = hashlib.sha256()
    for name in sorted(modules):
        for key, value in sorted(modules[name].state_dict().items()):
            if not isinstance(value, torch.Tensor):
                continue
            host = whole(value.detach()).to("cpu").contiguous()
            digest.update(f"{name}/{key} {host.dtype} {tuple(host.shape)}\n".encode())
            digest.update(host.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
