"""The assembly's answers to one worker, as a test wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotray.events import Warned, decode
from spotray.train.membership import Directive
from spotray.train.messages import Answer, Beat, Entry


class Scripted:
    """`Calls` to nobody: a function answers each."""

    def __init__(self) -> None:
        self.kept: list[str] = []  # facts, as an assembly keeps them
        self.answers: dict[str, Callable[..., Any]] = {
            "enter": lambda name, node_id: Entry(warm_up=False, epoch=0, step=0),
            "beat": self._beat,
        }
        self.directive = Directive(generation=0)

    def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        return self.answers[method](*args)

    def keep(self, facts: tuple[str, ...], first: int) -> int:
        self.kept += facts[max(0, len(self.kept) - first) :]
        return len(self.kept)

    def _beat(self, name: str, beat: Beat) -> Answer:
        kept = self.keep(beat.facts, beat.first_fact)
        return Answer(directive=self.directive, facts_kept=kept, losses=0, node_up_s=0.0)

    @property
    def told(self) -> list[str]:
        return [event.what for event in map(decode, self.kept) if isinstance(event, Warned)]
