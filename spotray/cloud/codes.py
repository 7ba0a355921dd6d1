"""A cloud's own codes in our words: how each adapter's table is read.

The tables stand in ``errors.py`` of each cloud. What is not in them has no class here: it
must stay visible, and no wrong guess may make a bad credential look like a sold-out market.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spotray.errors import MarketError, SpotrayError, ThrottledError

RETRY_S = 5.0

Kind = type[SpotrayError]


def table_of(*rows: tuple[Iterable[str], Kind]) -> Mapping[str, Kind]:
    """A table from its rows: codes, and the error that all of them are.

    Raises:
        ValueError: a code stands in two rows.

    >>> table_of((["stockout", "gone"], MarketError))["gone"].__name__
    'MarketError'
    """
    table: dict[str, Kind] = {}
    for codes, kind in rows:
        for code in codes:
            if table.setdefault(code, kind) is not kind:
                raise ValueError(f"{code} is {table[code].__name__} and {kind.__name__}")
    return table


def error_of(
    kind: Kind, *, market: str, code: str, words: str, retry_after_s: float = RETRY_S
) -> SpotrayError:
    """The error of that kind, for what a market said.

    Args:
        kind: of the table.
        market: which was asked.
        code: the cloud's.
        words: the cloud's.
        retry_after_s: where the kind is one that passes, seconds.
    """
    text = f"{market}: {code}: {words}"
    if issubclass(kind, ThrottledError):
        return kind(text, market=market, code=code, retry_after_s=retry_after_s)
    if issubclass(kind, MarketError):
        return kind(text, market=market, code=code)
    return kind(text)
