"""``multigrid-rl doctor`` as it is called."""

import json
import socket

import pytest

from commands import call, works
from multigrid_rl.ops import doctor
from multigrid_rl.ops.doctor import Finding

pytestmark = pytest.mark.usefixtures("no_session")


@pytest.fixture
def silent_port():
    """A port of this machine on which nobody listens, and nobody will while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.slow
def test_doctor_passes_sound_machine():
    done = works("doctor", "--json", "--patience", "240")
    *lines, last = done.stdout.splitlines()
    data = json.loads(last)
    assert data["problems"] == 0
    checks = [finding["check"] for finding in data["findings"]]
    assert list(dict.fromkeys(checks)) == ["packages", "kernels", "gpus", "shm", "disk", "ray"]
    shown = [line.split() for line in lines if not line.startswith(" ")]
    assert [words[:2] for words in shown[:-1]] == [[row["level"], row["check"]] for row in data["findings"]]
    assert sum(line.lstrip().startswith("-> ") for line in lines) == data["warnings"]
    assert lines[-1].endswith(f"{data['warnings']} warning(s), 0 problem(s)")


def test_silent_address_is_a_problem(silent_port, monkeypatch):
    monkeypatch.setattr(doctor, "check_ray", lambda patience_s: Finding("ray", "ok", "started before"))
    result = call("doctor", "--address", f"127.0.0.1:{silent_port}")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("problem")]
    assert line.split()[1:3] == ["cluster", f"127.0.0.1:{silent_port}:"]
    assert "nothing answers there: Connection refused" in line
    assert "-> ray start --head" in result.stdout
    assert "1 problem(s)" in result.stdout


@pytest.mark.parametrize(
    "address", ["nowhere", "", "head:", "head:0", "head:70000", "http://head:8265", "a b:1", "auto:1x"]
)
def test_rejects_invalid_address_before_checks(address):
    result = call("doctor", "--address", address)
    assert (result.exit_code, result.stdout) == (2, "")
    wanted = f"multigrid-rl: address: expected auto, host:port or ray://host:port, got {address}"
    assert result.stderr == f"{wanted.strip()}\n"


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head:6379", "ray://head-1.local:10001", "[::1]:6379"])
def test_accepts_addresses(address, tmp_path):
    assert next(doctor.examine(tmp_path, address, 1.0)).check == "packages"
