from __future__ import annotations

import pickle
import re

import pytest

from spotray import errors
from spotray.errors import MarketError, SpotrayError, ThrottledError, first_line, one_line


def tree(cls: type[SpotrayError]) -> list[type[SpotrayError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in tree(child))]


def make(cls: type[SpotrayError]) -> SpotrayError:
    fields: dict[str, object] = {}
    if issubclass(cls, MarketError):
        fields["market"] = "aws/us-east-1a/g5.xlarge/spot"
    if issubclass(cls, ThrottledError):
        fields["retry_after_s"] = 1.5
    return cls("spots are out: try another zone", **fields)


@pytest.mark.parametrize("cls", tree(SpotrayError), ids=lambda cls: cls.__name__)
def test_an_error_survives_the_way_to_another_process(cls: type[SpotrayError]) -> None:
    error = make(cls)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error) == "spots are out: try another zone"
    assert vars(again) == vars(error)


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = re.findall(r"^ +(?:[│ ]*[├└]── )?([A-Z]\w+)(?:$|  )", errors.__doc__ or "", re.M)
    public = (cls.__name__ for cls in tree(SpotrayError) if not cls.__name__.startswith("_"))
    assert sorted(drawn) == sorted(public)


def test_nothing_else_is_an_error_of_ours() -> None:
    stray = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and not issubclass(value, SpotrayError)
    ]
    assert stray == []


def test_an_errors_words_take_one_line_and_no_page() -> None:
    assert one_line(OSError("disk\n  full")) == "disk full"
    assert one_line(OSError()) == "OSError"
    told = one_line(OSError("full " * 100), 50)
    assert len(told) == 50
    assert told.endswith("...")
    assert first_line(OSError("a rank is gone\nTraceback ...")) == "a rank is gone"
    assert first_line(OSError()) == "OSError()"
