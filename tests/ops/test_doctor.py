"""Each thing that the doctor looks at, sound and ill, and the verb as it is called."""

import json
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from numba.core.caching import NullCache

from commands import call, works
from multigrid_rl import jit
from multigrid_rl.cores import cpu_quota
from multigrid_rl.ops import doctor
from multigrid_rl.ops.doctor import Finding
from multigrid_rl.world import kernels

Usage = namedtuple("Usage", "total used free")
MIB = 2**20
NOWHERE = Path("/proc/nowhere")


@pytest.mark.parametrize(
    ("check", "given", "level", "parts"),
    [
        ("gpus", ["2.13.0+cpu", None, 0], "ok", ["2.13.0+cpu is built without CUDA"]),
        ("gpus", ["2.13.0+cu130", "13.0", 2], "ok", ["sees 2", "cluster.gpus_per_learner=1"]),
        ("gpus", ["2.13.0+cu130", "13.0", 0], "warning", ["built for CUDA 13.0 and sees no GPU", "nvidia-smi"]),
        ("kernels", [NOWHERE / "cache"], "problem", ["NUMBA_CACHE_DIR"]),
        ("shm", [Path("/"), 1], "ok", []),
        ("shm", [Path("/"), 2**60], "warning", ["/ has ", "--shm-size=2g"]),
        ("shm", [NOWHERE], "ok", []),
        ("disk", [NOWHERE], "problem", [str(NOWHERE)]),
    ],
)
def test_names_problems_and_remedies(check, given, level, parts):
    finding = getattr(doctor, f"check_{check}")(*given)
    output = finding.found + finding.change
    assert finding.level == level
    assert [part for part in parts if part not in output] == []
    assert "\n" not in output
    assert (level == "ok") == (finding.change == "")


def test_checks_local_machine_by_default():
    assert doctor.check_kernels().level == "ok"
    assert [finding for finding in doctor.check_packages() if finding.level == "problem"] == []


@pytest.mark.parametrize(
    ("needed", "level", "expected"),
    [
        (["no-such-package>=2"], "problem", "no-such-package: expected >=2, got none"),
        (["numpy>=999"], "problem", "numpy: expected >=999, got "),
        (["no-such-package; python_version < '3'", "numpy; extra == 'dev'", "numpy"], "ok", "all 1 are there"),
    ],
)
def test_packages_have_required_versions(needed, level, expected):
    (finding,) = doctor.check_packages(needed, Path("nowhere"))
    assert finding.level == level
    assert finding.found.startswith(expected)
    assert finding.change == ("" if level == "ok" else f"pip install '{needed[0]}'")


def test_untested_version_is_warning(tmp_path):
    pins = tmp_path / "constraints.txt"
    pins.write_text("# exact\nNumPy==0.0.1; python_version >= '3.0'\nPyYAML==0.0.2; python_version < '3.0'\n")
    (finding,) = doctor.check_packages(["numpy", "pyyaml"], pins)
    assert finding.level == "warning"
    assert finding.found.startswith("numpy ")
    assert finding.found.endswith("(tested is 0.0.1)")
    pins.write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
    assert doctor.check_packages(["torch"], pins)[0].level == "ok"  # +cpu and +cu130 are builds of one version


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_reads_container_quota_from_either_cgroup_version(files, expected, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == expected


def test_local_session_gets_a_token_unless_there_is_one(monkeypatch):
    given = []
    monkeypatch.setattr(
        doctor, "_isolated", lambda _, patience_s, environment: given.append(environment) or {"version": 1}
    )
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    doctor.check_ray(1.0)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    doctor.check_ray(1.0)
    assert len(given[0]["RAY_AUTH_TOKEN"]) == 64
    assert given[1] == {}


def test_kernels_need_lasting_folder_with_space(tmp_path, monkeypatch):
    assert doctor.check_kernels(tmp_path / "new").level == "ok"
    with monkeypatch.context() as patch, Path("/dev/full").open("wb", buffering=0) as full:
        patch.setattr(doctor.tempfile, "TemporaryFile", lambda dir: full)  # empty files can still be made on it
        assert "No space left on device" in doctor.check_kernels(tmp_path).found
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(tmp_path))
    finding = doctor.check_kernels(tmp_path / jit.TEMPORARY / "world")
    assert finding.level == "warning"
    assert "NUMBA_CACHE_DIR" in finding.change
    monkeypatch.setattr(kernels.step_games, "_cache", NullCache())
    assert doctor.check_kernels().level == "problem"
    assert "temporary folder" in doctor.check_kernels().found


@pytest.mark.parametrize(("mib", "level"), [(5000, "ok"), (1000, "warning"), (100, "problem")])
def test_nearly_full_disk_is_warning_and_full_disk_problem(mib, level, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 2**40 - mib * MIB, mib * MIB))
    finding = doctor.check_disk(tmp_path)
    assert (finding.level, finding.found) == (level, f"{mib:,} MiB free in {tmp_path}")


@pytest.mark.parametrize(
    "case",
    [
        ("token", True, "head:6379", "ok"),
        ("token", False, "head:6379", "problem"),
        (None, True, "head:6379", "warning"),
        (None, True, "auto", "ok"),
        (None, False, "head:6379", "ok"),
        ("disabled", True, "head:6379", "ok"),
    ],
)
@pytest.mark.parametrize("kind", ["file", "variable"])
def test_ray_token_is_checked_and_never_shown(case, kind, tmp_path, monkeypatch):
    mode, token, address, level = case
    given = {"HOME": str(tmp_path), "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": None, "RAY_AUTH_TOKEN": None}
    if token and kind == "file":
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("abc")
    elif token:
        given["RAY_AUTH_TOKEN"] = "abc"
    for name, value in given.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    finding = doctor.check_token(address)
    assert finding.level == level
    assert (finding.change == "") == (level == "ok")
    assert "abc" not in finding.found + finding.change


def test_silent_or_hanging_process_is_reported(monkeypatch):
    assert "no answer within 0.2 s" in doctor.check_ray(patience_s=0.2).found
    monkeypatch.setattr(doctor.sys, "executable", "/bin/false")
    finding = doctor.check_ray(60.0)
    assert finding.level == "problem"
    assert "status 1" in finding.found


# --- the verb as it is called


pytestmark = pytest.mark.usefixtures("no_session")


@pytest.fixture
def silent_port():
    """A port of this machine on which no process listens while the test runs."""
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
