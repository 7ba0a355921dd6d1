from __future__ import annotations

import os

import pytest

from spotray.environment import environment


def test_a_variable_of_the_environment_is_set_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPOTRAY_TEST_OLD", "before")
    monkeypatch.delenv("SPOTRAY_TEST_NEW", raising=False)
    with environment(SPOTRAY_TEST_OLD="now", SPOTRAY_TEST_NEW="now"):
        assert os.environ["SPOTRAY_TEST_OLD"] == os.environ["SPOTRAY_TEST_NEW"] == "now"
    assert os.environ["SPOTRAY_TEST_OLD"] == "before"
    assert "SPOTRAY_TEST_NEW" not in os.environ
