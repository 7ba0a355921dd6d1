"""Ray's commands as they answer, well and badly; the real ones are in `test_on_a_head`."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from spotray.errors import ClusterUnreachable, LaunchError
from spotray.launch.remote import RayCommands, run_on_terminal

SERVE = """
import http.server, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def ray(tmp_path: Path, code: str) -> RayCommands:
    """Ray's commands, if its program were this one."""
    program = tmp_path / "ray.py"
    program.write_text(code)
    return RayCommands(tmp_path / "c.yaml", ray=(sys.executable, str(program)))


def test_the_head_is_the_last_word_that_ray_says(tmp_path: Path) -> None:
    remote = ray(tmp_path, "print('Loaded cached config'); print('10.0.0.7')")
    assert remote.head() == "10.0.0.7"


def test_only_ray_s_own_word_means_that_there_is_no_head(tmp_path: Path) -> None:
    gone = "raise RuntimeError('Head node of cluster (c) not found!')"
    assert ray(tmp_path, gone).head() is None
    offline = "raise OSError('Could not connect to the endpoint URL')"
    with pytest.raises(ClusterUnreachable, match="endpoint URL"):
        ray(tmp_path, offline).head()


def test_a_failed_up_or_down_is_an_error_and_down_says_what_may_be_left(tmp_path: Path) -> None:
    remote = ray(tmp_path, "raise SystemExit(3)")
    with pytest.raises(LaunchError, match="`ray up` ended with 3"):
        remote.up()
    with pytest.raises(LaunchError, match=r"may still be paid for.*c\.yaml"):
        remote.down()


@pytest.mark.parametrize(("said", "token"), [("abc123", "abc123"), ("", "")])
def test_the_token_is_told_from_all_else_that_a_shell_says(
    tmp_path: Path, said: str, token: str
) -> None:
    code = (
        "import sys\nprint('Fetched IP: 10.0.0.7')\nprint('+', sys.argv[-1])\n"
        f"print('spotray-token:{said}|')"
    )
    assert ray(tmp_path, code).token() == token


def test_a_head_that_takes_no_command_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match="Permission denied"):
        ray(tmp_path, "import sys; sys.exit('Permission denied (publickey)')").token()


@pytest.mark.parametrize(
    ("left", "config"),
    [
        (
            "max_workers: 3\nprovider: {type: aws}\n",
            {"max_workers": 3, "provider": {"type": "aws"}},
        ),
        ("", None),
        ("max_workers: {", None),
    ],
)
def test_what_ray_up_left_on_the_head_is_read_and_nothing_is_made_of_a_damaged_one(
    tmp_path: Path, left: str, config: object
) -> None:
    told = base64.b64encode(left.encode()).decode()
    assert ray(tmp_path, f"print('Fetched IP'); print('spotray-config:{told}|')").config() == config


def test_a_tunnel_is_open_until_it_is_closed(tmp_path: Path) -> None:
    tunnel = ray(tmp_path, SERVE).tunnel()
    assert tunnel.is_open()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{tunnel.url}/api/version", timeout=5)
    tunnel.close()
    assert not tunnel.is_open()
    tunnel.close()


def test_a_tunnel_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match="No route to host"):
        ray(tmp_path, "import sys; sys.exit('ssh: No route to host')").tunnel()


def test_what_would_lead_ray_elsewhere_is_kept_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://another:8265")
    assert ray(tmp_path, "import os; print(os.environ.get('RAY_ADDRESS', 'none'))").head() == "none"


def test_a_command_on_the_terminal_is_waited_for_when_ctrl_c_ends_it(tmp_path: Path) -> None:
    program = tmp_path / "ray.py"
    program.write_text(
        # It asks once whoever started it has begun to wait.
        "import time\ntry:\n    time.sleep(1)\n    print('asks', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    time.sleep(1)\n    print('cleaned up', flush=True)\n"
    )
    user = (
        "import sys\nfrom spotray.launch.remote import run_on_terminal\n"
        f"code = run_on_terminal('up', ray=(sys.executable, {str(program)!r}))\n"
        "print('then', code)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", user], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asks\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == "cleaned up\nthen 130\n"


def test_a_commands_exit_code_is_passed_on_as_a_shell_says_it(tmp_path: Path) -> None:
    program = tmp_path / "ray.py"
    for code, said in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)):
        program.write_text(code)
        assert run_on_terminal("up", ray=(sys.executable, str(program))) == said
