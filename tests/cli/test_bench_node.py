"""``spotray bench-node``: what it prints and keeps, and who this machine is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.cli.bench_node import asked
from spotray.cli.main import main
from spotray.plan.rates import load_rates, rates_file
from tests.cloud.servers import AzureServer, GcpServer

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    file = tmp_path / "mine.py"
    file.write_text("def step(): return 5\n")
    return str(file)


QUICK = ["--seconds", "0.01", "--warmup", "0"]


def test_the_rate_is_printed_and_kept(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench-node", script, *QUICK, "--type", "aws/m5.large"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mine.py on aws/m5.large (")
    assert "samples/s, of 10 rounds 8 within" in out
    (kept,) = load_rates(rates_file())
    assert (kept.model, kept.cloud, kept.instance_type) == ("mine.py", "aws", "m5.large")
    assert kept.samples_per_s > 0


def test_json_has_the_rate_and_nothing_is_kept_if_not_wished(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench-node", script, *QUICK, "--type", "aws/m5.large", "--no-keep", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rate"]["samples_per_s"] == told["speed"]["samples_per_s"]
    assert load_rates(rates_file()) == []


def test_the_rate_of_a_cpu_is_not_kept_as_that_of_a_gpu(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["bench-node", script, *QUICK, "--type", "aws/g5.xlarge"]) == 1
    assert "g5.xlarge has 1 A10G, and torch sees no GPU here" in capsys.readouterr().err
    assert load_rates(rates_file()) == []


@pytest.mark.parametrize("said", ["g5.xlarge", "ibm/x", "aws/"])
def test_a_type_that_is_none_is_one_line(
    said: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench-node", script, *QUICK, "--type", said]) == 1
    assert "write CLOUD/TYPE" in capsys.readouterr().err


def test_the_metadata_service_that_answers_says_what_this_machine_is() -> None:
    with GcpServer() as gcp, AzureServer() as azure:
        assert asked(aws=NOWHERE, gcp=gcp.url, azure=NOWHERE) == ("gcp", "g2-standard-4")
        assert asked(aws=NOWHERE, gcp=NOWHERE, azure=azure.url) == (
            "azure",
            "Standard_NC4as_T4_v3",
        )
    assert asked(aws=NOWHERE, gcp=NOWHERE, azure=NOWHERE) is None
