"""A little of YAML as text, with comments: what a person would write, not what a dumper does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_PLAIN = re.compile(r"(\./)?[A-Za-z_/~][\w./@+~-]*( [\w./@+-]+)*", re.ASCII)
_COMMAND = re.compile(r"[A-Za-z./~][ -~]*[!-~]")  # what may stand in a block without quotes
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"}


def scalar(value: Any) -> str:
    """One value, quoted only where YAML would read another one.

    >>> scalar("g5.xlarge"), scalar("no"), scalar(True), scalar(10.0)
    ('g5.xlarge', '"no"', 'true', '10')
    """
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else _quoted(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def flow(value: Any) -> str:
    """A value on one line.

    >>> flow({"Ebs": {"VolumeSize": 100}, "types": ["a", "b"]})
    '{Ebs: {VolumeSize: 100}, types: [a, b]}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(one) for one in value) + "]"
    return scalar(value)


def indent(lines: Iterable[str], by: int) -> list[str]:
    """The lines, moved to the right."""
    return [" " * by + line if line else line for line in lines]


def command(text: str, comment: str = "") -> list[str]:
    """One entry of a list of shell commands; a long one is folded at its line ends."""
    lines = [f"# {one}" for one in comment.splitlines()]
    if "\n" in text:
        return [*lines, "- >-", *indent(text.splitlines(), 2)]
    return [*lines, f"- {_command_scalar(text)}"]


def _command_scalar(text: str) -> str:
    """Plain if YAML takes it so: shell commands read badly in quotes."""
    is_words = _COMMAND.fullmatch(text) and not re.search(r": | #|:$", text) and " " in text
    return text if is_words else scalar(text)


def _quoted(text: str) -> str:
    """In double quotes, with YAML's escapes for all that is not printable ASCII."""
    shown = []
    for char in text:
        code = ord(char)
        if char in '"\\':
            shown.append("\\" + char)
        elif 0x20 <= code < 0x7F:
            shown.append(char)
        else:
            shown.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(shown)}"'
