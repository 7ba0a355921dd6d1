from __future__ import annotations

from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.plan.rates import Rate, keep_rate, load_rates, of_model


def rate(model: str, name: str, samples_per_s: float = 10.0) -> Rate:
    return Rate(
        model=model,
        cloud="aws",
        instance_type=name,
        gpu="A10G",
        gpus=1,
        samples_per_s=samples_per_s,
        low_samples_per_s=9.0,
        high_samples_per_s=11.0,
        at="2026-11-22",
    )


def test_a_rate_comes_back_and_a_later_one_of_the_same_replaces_it(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "rates.json"
    assert load_rates(file) == []
    for one in (rate("vit", "g5.xlarge"), rate("vit", "g6.xlarge"), rate("vit", "g5.xlarge", 20.0)):
        keep_rate(one, file)
    assert load_rates(file) == [rate("vit", "g6.xlarge"), rate("vit", "g5.xlarge", 20.0)]
    assert [one.name for one in file.parent.iterdir()] == ["rates.json"]


def test_without_a_name_the_model_of_the_latest_rate_is_taken() -> None:
    kept = [rate("vit", "a"), rate("resnet", "a"), rate("resnet", "b")]
    assert set(of_model(kept)) == {("aws", "a"), ("aws", "b")}
    assert set(of_model(kept, "vit")) == {("aws", "a")}
    assert of_model([]) == {}


def test_a_model_that_was_not_measured_is_told_with_those_that_were() -> None:
    with pytest.raises(ConfigError, match=r"no rate of gpt was measured \(there are: vit\)"):
        of_model([rate("vit", "a")], "gpt")


@pytest.mark.parametrize("text", ["{", "[]", '{"rates": [{"model": "vit"}]}', '{"rates": 3}'])
def test_a_file_of_another_shape_is_told_with_the_cure(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rates.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="is not what `spotray bench-node` writes.*delete it"):
        load_rates(file)


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="a rate is above 0"):
        rate("vit", "a", float("nan"))
