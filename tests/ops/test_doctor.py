"""Each thing that the doctor looks at, sound and ill."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from numba.core.caching import NullCache

from multigrid_rl import jit
from multigrid_rl.config.compose import data_root
from multigrid_rl.ops import doctor, machine
from multigrid_rl.players.cards import MODEL_FILE
from multigrid_rl.players.catalogue import CATALOGUE_FILE
from multigrid_rl.world import kernels

Usage = namedtuple("Usage", "total used free")
MIB = 2**20
NOWHERE = Path("/proc/nowhere")


@pytest.mark.parametrize(
    ("check", "given", "level", "parts"),
    [
        ("python", ["3.11.7"], "ok", ["3.11.7"]),
        ("python", ["3.9.18"], "problem", ["expected ", "got 3.9.18", "install Python"]),
        ("python", ["3.13.0"], "problem", ["got 3.13.0"]),
        ("cpus", [4, 4.0], "ok", ["4 for this process"]),
        ("cpus", [16, 2.5], "warning", ["16 seen", "the time of 2.5", "torch_threads=2", "num_env_runners=2"]),
        ("cpus", [16, 0.5], "warning", ["torch_threads=1 "]),
        ("threads", [{}, 2], "ok", []),
        ("threads", [{"OMP_NUM_THREADS": "2"}, 2], "ok", ["OMP_NUM_THREADS=2 on 2 CPU(s)"]),
        ("threads", [{"OMP_NUM_THREADS": "64"}, 2], "warning", ["OMP_NUM_THREADS: expected 1 to 2, got 64"]),
        ("threads", [{"OMP_NUM_THREADS": "many"}, 2], "problem", ["got many"]),
        ("threads", [{"OMP_NUM_THREADS": "0"}, 2], "problem", ["got 0"]),
        ("torch", [(500.0, 900.0), 2], "ok", []),
        ("torch", [(500.0, 410.0), 2], "ok", []),
        ("torch", [(500.0, 100.0), 1], "ok", []),
        ("torch", [(500.0, 100.0), 2], "warning", ["a second with 1 thread, 100 with 2", "train.torch_threads=1"]),
        ("kernels", [NOWHERE / "cache"], "problem", ["NUMBA_CACHE_DIR"]),
        ("shm", [Path("/"), 1], "ok", []),
        ("shm", [Path("/"), 2**60], "warning", ["/ has ", "--shm-size=2g"]),
        ("shm", [NOWHERE], "ok", []),
        ("disk", [NOWHERE], "problem", [str(NOWHERE)]),
        ("open_files", [1024], "warning", ["ulimit -n"]),
        ("open_files", [4096], "ok", []),
        ("open_files", [-1], "ok", []),
        ("gpu", [["One of a kind"]], "ok", ["One of a kind; "]),
        ("gpu", [[], NOWHERE], "ok", ["none"]),
    ],
)
def test_names_problems_and_remedies(check, given, level, parts):
    finding = getattr(machine, f"check_{check}")(*given)
    output = finding.found + finding.change
    assert finding.level == level
    assert [part for part in parts if part not in output] == []
    assert "\n" not in output
    assert (level == "ok") == (finding.change == "")


def test_checks_local_machine_by_default():
    assert machine.check_python().level == machine.check_kernels().level == "ok"
    assert [finding for finding in machine.check_packages() if finding.level == "problem"] == []
    before = torch.get_num_threads()
    assert machine.products_per_second(1, seconds=0.01) > 0
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("needed", "level", "expected"),
    [
        (["no-such-package>=2"], "problem", "no-such-package: expected >=2, got none"),
        (["numpy>=999"], "problem", "numpy: expected >=999, got "),
        (["no-such-package; python_version < '3'", "numpy; extra == 'dev'", "numpy"], "ok", "all 1 are there"),
    ],
)
def test_packages_have_required_versions(needed, level, expected):
    (finding,) = machine.check_packages(needed, Path("nowhere"))
    assert finding.level == level
    assert finding.found.startswith(expected)
    assert finding.change == ("" if level == "ok" else f"pip install '{needed[0]}'")


def test_untested_version_is_warning(tmp_path):
    pins = tmp_path / "constraints.txt"
    pins.write_text("# exact\nNumPy==0.0.1; python_version >= '3.0'\nPyYAML==0.0.2; python_version < '3.0'\n")
    (finding,) = machine.check_packages(["numpy", "pyyaml"], pins)
    assert finding.level == "warning"
    assert finding.found.startswith("numpy ")
    assert finding.found.endswith("(tested is 0.0.1)")
    pins.write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
    assert machine.check_packages(["torch"], pins)[0].level == "ok"  # +cpu and +cu130 are builds of one version


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
    assert jit.cpu_quota(tmp_path) == expected


def test_unwritable_home_warns_and_ray_gets_token(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        doctor, "_isolated", lambda _, patience_s, environment: given.append(environment) or {"version": 1}
    )
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for folder in (tmp_path, NOWHERE):
        monkeypatch.setenv("HOME", str(folder))
        doctor.check_ray(1.0)
    assert given[0] == {}
    assert len(given[1]["RAY_AUTH_TOKEN"]) == 64
    finding = machine.check_home()
    assert (finding.level, finding.found) == (
        "warning",
        f"nothing can be written in {NOWHERE}: No such file or directory",
    )
    assert "set HOME" in finding.change
    assert doctor.check_token("auto").level == "ok"


def test_kernels_need_lasting_folder_with_space(tmp_path, monkeypatch):
    assert machine.check_kernels(tmp_path / "new").level == "ok"
    with monkeypatch.context() as patch, Path("/dev/full").open("wb", buffering=0) as full:
        patch.setattr(machine.tempfile, "TemporaryFile", lambda dir: full)  # empty files can still be made on it
        assert "No space left on device" in machine.check_kernels(tmp_path).found
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    finding = machine.check_kernels(tmp_path / jit.TEMPORARY / "world")
    assert finding.level == "warning"
    assert "NUMBA_CACHE_DIR" in finding.change
    monkeypatch.setattr(kernels.step_games, "_cache", NullCache())
    assert machine.check_kernels().level == "problem"
    assert "temporary folder" in machine.check_kernels().found


@pytest.mark.parametrize(("mib", "level"), [(5000, "ok"), (1000, "warning"), (100, "problem")])
def test_nearly_full_disk_is_warning_and_full_disk_problem(mib, level, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 2**40 - mib * MIB, mib * MIB))
    finding = machine.check_disk(tmp_path)
    assert (finding.level, finding.found) == (level, f"{mib:,} MiB free in {tmp_path}")


def test_damaged_player_is_problem_naming_file(tmp_path):
    assert [finding.level for finding in machine.check_opponents(tmp_path)] == ["warning"]
    root = Path(shutil.copytree(data_root() / "checkpoints", tmp_path / "checkpoints"))
    assert [finding.level for finding in machine.check_opponents(root)] == ["ok"]
    model = root / "blue-adept" / MODEL_FILE
    data = model.read_bytes()
    model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    shutil.rmtree(root / "2v2-rookie")
    found = machine.check_opponents(root)
    assert [finding.level for finding in found] == ["problem", "problem"]
    assert any(str(model) in finding.found and "sha256" in finding.found for finding in found)
    assert any("2v2-rookie" in finding.found and "cannot be read" in finding.found for finding in found)
    text = (root / CATALOGUE_FILE).read_text()
    (root / CATALOGUE_FILE).write_text("players: [")
    assert machine.check_opponents(root)[0].level == "problem"
    (root / CATALOGUE_FILE).write_text(text.replace("sha256: ", f"sha256: {'f' * 64} #"))
    assert "expected the catalogue's ffff" in machine.check_opponents(root)[0].found


def test_gpu_unseen_by_torch_is_warning(tmp_path):
    (tmp_path / "nvidia0").touch()
    finding = machine.check_gpu([], tmp_path)
    assert finding.level == "warning"
    assert "sees none" in finding.found
    assert "--gpus all" in finding.change


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
