"""Each thing that the doctor looks at, sound and ill."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from numba.core.caching import NullCache

from multigrid_rl import jit
from multigrid_rl.config import ConfigError, data_root
from multigrid_rl.players.cards import MODEL_FILE
from multigrid_rl.players.catalogue import CATALOGUE_FILE
from multigrid_rl.rllib import doctor, machine
from multigrid_rl.world import kernels

Usage = namedtuple("Usage", "total used free")


def is_sound(finding) -> bool:
    """Nothing to change, and nothing said about it."""
    assert "\n" not in finding.found + finding.change
    assert (finding.level == "ok") == (finding.change == "")
    return finding.level == "ok"


@pytest.mark.parametrize(("found", "level"), [("3.11.7", "ok"), ("3.9.18", "problem"), ("3.13.0", "problem")])
def test_python_is_one_that_the_package_allows(found, level):
    finding = machine.check_python(found)
    assert finding.level == level
    assert found in finding.found
    assert is_sound(finding) or "install Python" in finding.change


def test_this_installation_has_every_package_in_an_allowed_version():
    assert machine.check_python().level == "ok"
    assert [finding for finding in machine.check_packages() if finding.level == "problem"] == []


def packages(*needed: str, pins: Path = Path("nowhere")):
    return machine.check_packages(needed, pins)


def test_a_package_that_is_missing_or_too_old_is_named_with_what_to_install():
    (missing,) = packages("no-such-package-anywhere>=2", "numpy")
    assert (missing.level, missing.found) == ("problem", "no-such-package-anywhere is missing")
    assert missing.change == "pip install 'no-such-package-anywhere>=2'"
    (old,) = packages("numpy>=999")
    assert old.level == "problem"
    assert old.found.endswith("(allowed is >=999)")


def test_a_requirement_of_another_system_or_of_an_extra_is_left_out():
    found = packages("no-such-package-anywhere; python_version < '3'", "numpy; extra == 'dev'", "numpy")
    assert [finding.found.split(",")[0] for finding in found] == ["all 1 are there"]


def test_a_version_that_was_not_tested_is_a_warning(tmp_path):
    pins = tmp_path / "constraints.txt"
    pins.write_text("# exact\nNumPy==0.0.1; python_version >= '3.0'\nPyYAML==0.0.2; python_version < '3.0'\n")
    (finding,) = packages("numpy", "pyyaml", pins=pins)
    assert finding.level == "warning"
    assert finding.found.startswith("numpy ")
    assert finding.found.endswith("(tested is 0.0.1)")
    build = torch.__version__.partition("+")[0]
    pins.write_text(f"torch=={build}\n")
    assert packages("torch", pins=pins)[0].level == "ok"  # +cpu and +cu130 are builds of one version


def test_the_shipped_pins_are_read():
    assert machine.tested_versions(data_root() / "constraints.txt")["torch"]


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
def test_a_containers_quota_is_read_from_either_version_of_control_groups(files, expected, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.cpu_quota(tmp_path) == expected


def test_fewer_cpus_than_a_container_shows_are_a_warning():
    assert is_sound(machine.check_cpus(4, 4.0))
    finding = machine.check_cpus(16, 2.5)
    assert finding.found == "16 seen, but this container gets the time of 2.5"
    assert "train.torch_threads=2" in finding.change
    assert "cluster.num_env_runners=2" in finding.change
    assert "train.torch_threads=1 " in machine.check_cpus(16, 0.5).change


@pytest.mark.parametrize(
    ("value", "level"), [(None, "ok"), ("2", "ok"), ("64", "warning"), ("many", "problem"), ("0", "problem")]
)
def test_threads_that_are_asked_for_are_at_most_the_cpus(value, level):
    finding = machine.check_threads({} if value is None else {"OMP_NUM_THREADS": value}, 2)
    assert finding.level == level
    assert is_sound(finding) == (level == "ok")


def test_threads_that_make_torch_slower_are_a_warning():
    assert is_sound(machine.check_torch((500.0, 900.0), 2))
    assert is_sound(machine.check_torch((500.0, 410.0), 2))
    finding = machine.check_torch((500.0, 100.0), 2)
    assert finding.found == "500 matrix products a second with 1 thread, 100 with 2"
    assert "train.torch_threads=1" in finding.change
    assert is_sound(machine.check_torch((500.0, 100.0), 1))


def test_torch_is_measured_and_its_threads_are_put_back():
    before = torch.get_num_threads()
    assert machine.products_per_second(1, seconds=0.01) > 0
    assert torch.get_num_threads() == before


def test_a_home_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    assert is_sound(machine.check_home(tmp_path))
    monkeypatch.setenv("HOME", "/proc/nowhere")
    finding = machine.check_home()
    assert finding.level == "warning"
    assert finding.found == "nothing can be written in /proc/nowhere: No such file or directory"
    assert "set HOME" in finding.change
    assert doctor.check_token("auto").level == "ok"


def test_ray_is_tried_with_a_token_where_it_could_not_keep_one(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        doctor, "_apart", lambda _, patience_s, environment: given.append(environment) or {"version": 1}
    )
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for folder in (tmp_path, "/proc/nowhere"):
        monkeypatch.setenv("HOME", str(folder))
        doctor.check_ray()
    assert given[0] == {}
    assert len(given[1]["RAY_AUTH_TOKEN"]) == 64


def test_kernels_are_kept_where_there_is_room():
    assert is_sound(machine.check_kernels())
    assert machine.kernel_folder().is_dir()


def test_a_folder_that_cannot_hold_kernels_is_a_problem(tmp_path):
    (tmp_path / "file").write_text("")
    finding = machine.check_kernels(tmp_path / "file" / "cache")
    assert finding.level == "problem"
    assert "NUMBA_CACHE_DIR" in finding.change
    assert machine.check_kernels(tmp_path / "new").level == "ok"


def test_a_full_disk_under_the_kernels_is_a_problem(tmp_path, monkeypatch):
    # Empty files can still be made on it.
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(machine.tempfile, "TemporaryFile", lambda dir: full)
        finding = machine.check_kernels(tmp_path)
    assert finding.level == "problem"
    assert "No space left on device" in finding.found


def test_kernels_in_the_temporary_folder_are_a_warning_and_kernels_nowhere_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    finding = machine.check_kernels(tmp_path / jit.TEMPORARY / "world")
    assert finding.level == "warning"
    assert "NUMBA_CACHE_DIR" in finding.change
    monkeypatch.setattr(kernels.step_games, "_cache", NullCache())
    assert machine.check_kernels().level == "problem"
    assert "temporary folder" in machine.check_kernels().found


def test_a_containers_shared_memory_is_too_small(tmp_path):
    assert is_sound(machine.check_shm(tmp_path, enough=1))
    finding = machine.check_shm(tmp_path, enough=2**60)
    assert finding.level == "warning"
    assert str(tmp_path) in finding.found
    assert "--shm-size=2g" in finding.change
    assert is_sound(machine.check_shm(tmp_path / "nowhere"))


def test_a_disk_that_is_nearly_full_is_a_warning_and_a_full_one_a_problem(tmp_path, monkeypatch):
    assert is_sound(machine.check_disk(tmp_path, enough=1, least=1))
    for mib, level in ((5000, "ok"), (1000, "warning"), (100, "problem")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=mib * 2**20: Usage(2**40, 2**40 - free, free))
        finding = machine.check_disk(tmp_path)
        assert (finding.level, finding.found) == (level, f"{mib:,} MiB free in {tmp_path}")


def test_a_working_folder_that_is_gone_is_a_problem(tmp_path):
    assert machine.check_disk(tmp_path / "gone").level == "problem"


@pytest.mark.parametrize(("limit", "level"), [(1024, "warning"), (4096, "ok"), (65536, "ok"), (-1, "ok")])
def test_open_files(limit, level):
    finding = machine.check_open_files(limit)
    assert finding.level == level
    assert is_sound(finding) or "ulimit -n" in finding.change


def test_a_damaged_player_is_a_problem_that_names_its_file(tmp_path):
    root = Path(shutil.copytree(data_root() / "checkpoints", tmp_path / "checkpoints"))
    (sound,) = machine.check_opponents(root)
    assert is_sound(sound)
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
    assert all("the catalogue lists sha256 ffff" in finding.found for finding in machine.check_opponents(root)[:1])


def test_a_folder_without_players_is_a_warning(tmp_path):
    assert [finding.level for finding in machine.check_opponents(tmp_path)] == ["warning"]


def test_a_gpu_that_torch_does_not_see_is_a_warning(tmp_path):
    assert machine.check_gpu([], tmp_path).found.startswith("none")
    (tmp_path / "nvidia0").touch()
    assert "sees none" in machine.check_gpu([], tmp_path).found
    assert "--gpus all" in machine.check_gpu([], tmp_path).change
    finding = machine.check_gpu(["One of a kind"], tmp_path)
    assert is_sound(finding)
    assert finding.found.startswith("One of a kind; ")


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head:6379", "ray://head-1.local:10001", "[::1]:6379"])
def test_addresses_that_may_be_given(address):
    assert doctor.checked_address(address) == address


@pytest.mark.parametrize(
    "address", ["", "head", "head:", "head:0", "head:70000", "http://head:8265", "a b:1", "auto:1x"]
)
def test_what_is_no_address_is_refused_in_one_line(address):
    with pytest.raises(ConfigError) as caught:
        doctor.checked_address(address)
    assert str(caught.value) == f"address={address}: allowed is auto, host:port or ray://host:port"


@pytest.mark.parametrize(
    ("mode", "token", "address", "level"),
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
def test_a_token_that_ray_would_not_show_is_told(mode, token, address, level, kind, tmp_path):
    environment = {} if mode is None else {"RAY_AUTH_MODE": mode}
    if token and kind == "file":
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("abc")
    elif token:
        environment["RAY_AUTH_TOKEN"] = "abc"
    finding = doctor.check_token(address, environment, tmp_path)
    assert finding.level == level
    assert is_sound(finding) == (level == "ok")
    assert "abc" not in finding.found + finding.change


def test_a_process_that_says_nothing_or_hangs_is_a_reason_in_one_line(monkeypatch):
    assert "no answer within 0.2 s" in doctor.check_ray(patience_s=0.2).found
    monkeypatch.setattr(doctor.sys, "executable", "/bin/false")
    finding = doctor.check_ray()
    assert finding.level == "problem"
    assert "status 1" in finding.found
