"""The files below ``docker/``: sound by their own linters, and they say the same as the project and as each other."""

import fnmatch
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import yaml
from packaging.requirements import Requirement
from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import start as ray_start

from multigrid_rl.config.compose import compose
from multigrid_rl.ops import doctor

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
PINS = doctor.tested_versions(ROOT / "constraints.txt")
RUNS = "/home/ray/runs"


def text_of(name: str) -> str:
    return (DOCKER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", ["hadolint docker/Dockerfile", "bash -n docker/slurm.sbatch", "shellcheck docker/slurm.sbatch"]
)
def test_files_pass_their_linters(words):
    done = subprocess.run(words.split(), capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def trained(command: str | list[str]):
    """The configuration of a ``multigrid-rl train`` command line."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    assert words[:2] == ["multigrid-rl", "train"]
    return compose(words[2:])


def started(command: list[str]) -> dict:
    """What ``ray start`` makes of its arguments."""
    assert command[:2] == ["ray", "start"]
    return ray_start.make_context("start", command[2:]).params


# --- the image


def instructions() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile with their arguments, continued lines joined."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text_of("Dockerfile"), flags=re.MULTILINE))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def copied() -> list[str]:
    """Files and folders of the project that are copied, in order."""
    return [
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]


def test_image_sources_exist_and_are_not_ignored():
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*"
    allowed = {line[1:] for line in patterns if line[0] == "!"}
    assert set(copied()) == allowed
    for source in allowed:
        assert (ROOT / source).exists()
        assert not any(fnmatch.fnmatch(source, line) for line in patterns[1:] if line[0] != "!")
    assert any(fnmatch.fnmatch("multigrid_rl/__pycache__", line) for line in patterns[1:])


def test_extras_hold_what_their_packages_import_and_are_pinned():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {extra: {req.name.lower(): req for req in map(Requirement, rows)} for extra, rows in extras.items()}
    assert {"imageio", "mujoco"} <= set(asked["control"])
    assert {"imageio", "mujoco"} <= set(asked["bench"])  # Gymnasium's bodies import both
    assert asked["minari"]["minari"].extras == {"hdf5"}
    pins = {name.lower().replace("_", "-") for name in PINS}
    assert {"h5py", *(name.replace("_", "-") for names in asked.values() for name in names)} - pins == set()


def python_of(mark: str) -> str:
    """The Python in a RUN instruction that contains ``mark``."""
    command = next(rest for word, rest in instructions() if word == "RUN" and mark in rest)
    words = shlex.split(command)
    return words[words.index("-c") + 1]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="as the image's Python")
def test_package_list_matches_project():
    code = python_of("tomllib")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert f"ray[rllib]=={PINS['ray']}" in lines
    assert f"ray[default]=={PINS['ray']}" in lines
    assert any(line.startswith("sqlalchemy") for line in lines)  # of a class server
    assert not any("ruff" in line or "pytest" in line for line in lines)


def test_warm_up_calls_existing_functions():
    code = python_of("warm_up")
    for module, name in re.findall(r"from (\S+) import (\w+)", code):
        assert callable(getattr(importlib.import_module(module), name))
    assert compose(re.findall(r"'(\w+=\w+)'", code)).scenario.name == "1v1"


# --- docker compose


@pytest.fixture(scope="module")
def composed() -> dict:
    """The compose file with its variables at their defaults."""
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text_of("compose.yaml")))


def healthy(command: list[str]) -> None:
    """The check asks the address at which Ray's agent answers."""
    assert command[:2] == ["python", "-c"]
    compile(command[2], "health", "exec")
    url = re.search(r"http://localhost:(\d+)(\S+?)'", command[2])
    assert int(url[1]) == DEFAULT_DASHBOARD_AGENT_LISTEN_PORT
    assert f'"{url[2]}"' in (Path(ray.__file__).parent / "dashboard" / "http_server_agent.py").read_text()


def test_compose_ray_nodes_find_each_other(composed):
    head, worker = (composed["services"][name] for name in ("head", "worker"))
    shell, flag, script = head["entrypoint"]
    assert (shell, flag) == ("sh", "-c")
    token, _, command = script.partition(" && exec ")
    assert token == "ray get-auth-token --generate > /dev/null"  # that the volume hands to the workers
    first, other = started(shlex.split(command)), started(worker["entrypoint"])
    assert first["head"] is True
    assert first["block"] is other["block"] is True
    assert other["address"] == f"head:{first['port']}"
    assert worker["depends_on"]["head"]["condition"] == "service_healthy"
    assert first["num_cpus"] == other["num_cpus"] == head["cpus"] == worker["cpus"]
    assert head["ports"] == [f"127.0.0.1:8265:{first['dashboard_port']}"]
    for service in (head, worker):
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()
        assert service["volumes"] == [f"runs:{RUNS}", "auth:/home/ray/.ray"]
        kind, *command = service["healthcheck"]["test"]
        assert kind == "CMD"
        healthy(command)


def test_compose_trains_on_cluster(composed):
    config = trained(composed["x-train"])
    assert (config.cluster.address, config.cluster.num_env_runners) == ("auto", "all")
    # The command that its comments tell is the same.
    assert f"exec head {' '.join(composed['x-train'])}\n" in text_of("compose.yaml")


# --- Kubernetes


@pytest.fixture(scope="module")
def kube() -> dict[str, dict]:
    """Resources by kind."""
    return {part["kind"]: part for part in yaml.safe_load_all(text_of("rayjob.yaml"))}


def pods(kube) -> list[dict]:
    cluster = kube["RayJob"]["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_rayjob_uses_pinned_ray_and_one_image(kube):
    pytest.importorskip("tomllib")  # Python 3.11, for which versions are pinned
    job = kube["RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == PINS["ray"]
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    submitter = job["spec"]["submitterPodTemplate"]["spec"]
    images = [container["image"] for pod in [*pods(kube), submitter] for container in pod["containers"]]
    assert images == ["multigrid-rl:cpu"] * 3


def test_every_pod_has_same_runs_and_enough_shared_memory(kube):
    claim = kube["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods(kube):
        (container,) = pod["containers"]
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        runs = volumes[mounted[RUNS]]["persistentVolumeClaim"]["claimName"]
        assert runs == claim["metadata"]["name"]
        assert volumes[mounted["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}
        assert container["resources"]["requests"] == container["resources"]["limits"]
        for probe in ("readinessProbe", "livenessProbe"):
            healthy(container[probe]["exec"]["command"])


def test_rayjob_opens_head_ports_and_starts_ray(kube):
    cluster = kube["RayJob"]["spec"]["rayClusterSpec"]
    head = cluster["headGroupSpec"]
    ports = {port["name"]: port["containerPort"] for port in head["template"]["spec"]["containers"][0]["ports"]}
    defaults = started(["ray", "start", "--head"])
    assert ports["dashboard"] == defaults["dashboard_port"]
    assert ports["gcs-server"] == 6379
    for group in (head, *cluster["workerGroupSpecs"]):
        started(["ray", "start", *(f"--{key}={value}" for key, value in group["rayStartParams"].items())])
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_rayjob_trains_on_shared_volume(kube):
    config = trained(kube["RayJob"]["spec"]["entrypoint"])
    assert config.cluster.address == "auto"
    assert config.run_dir.startswith(f"{RUNS}/")


# --- ray up


def test_ray_up_file_passes_ray_schema_and_starts_nodes_that_find_each_other():
    config = yaml.safe_load(text_of("ray-up.yaml"))
    validate_config(prepare_config(config))
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    options = set(config["docker"]["run_options"])
    assert {"--entrypoint=", "--shm-size=2g", "--env=RAY_AUTH_MODE=token"} <= options
    (head,) = [shlex.split(line) for line in config["head_start_ray_commands"] if line.startswith("ray start")]
    (worker,) = [shlex.split(line) for line in config["worker_start_ray_commands"] if line.startswith("ray start")]
    assert started(worker)["address"] == f"$RAY_HEAD_IP:{started(head)['port']}"
    assert started(head)["dashboard_host"] in (None, "localhost", "127.0.0.1")  # this machine alone
    command = re.search(r"ray exec docker/ray-up.yaml '(.*)'", text_of("ray-up.yaml"))[1]
    assert trained(command).cluster.address == "auto"


# --- Slurm


def test_slurm_script_takes_whole_nodes_and_passes_arguments():
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text_of("slurm.sbatch"), flags=re.MULTILINE))
    assert int(asked["nodes"]) >= 2
    assert asked["ntasks-per-node"] == "1"
    assert asked["signal"].startswith("B:TERM@")
    (example,) = re.findall(r"sbatch docker/slurm.sbatch (scenario.*)", text_of("slurm.sbatch"))
    (line,) = re.findall(r'^"\$BIN/multigrid-rl" (train .*) "\$@" &$', text_of("slurm.sbatch"), flags=re.MULTILINE)
    line = line.replace('"$head_ip:$PORT"', "10.0.0.1:6379")
    assert trained(f"multigrid-rl {line} {example}").cluster.address == "10.0.0.1:6379"


# --- what is told about them


@pytest.mark.parametrize(
    ("typed", "index"),
    [
        ([], ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]),
        (["TORCH=gpu"], []),
        (["TORCH=cu126"], ["--extra-index-url", "https://download.pytorch.org/whl/cu126"]),
    ],
)
def test_setup_takes_build_of_torch_that_is_asked_for(tmp_path, typed, index):
    command = ["make", "--dry-run", f"VENV={tmp_path}", "setup", *typed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.endswith(" torch .")]
    assert line.split("tools/install.py ")[1].split() == [*index, "torch", "."]


def test_setup_refuses_unknown_build_of_torch(tmp_path):
    command = ["make", "--dry-run", f"VENV={tmp_path}", "setup", "TORCH=amd"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "TORCH: expected cpu, gpu or a version of CUDA such as cu126, got amd" in done.stderr


def test_every_documented_training_command_is_valid():
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:\w+)?\n(.*?)```", page, flags=re.DOTALL)
    found = re.findall(r"multigrid-rl train [^'\n#]+", "\n".join(blocks))
    assert len(found) >= 4
    for command in found:
        if "--resume" in command:
            continue
        trained(command.replace("HOST", "10.0.0.1").strip())
    for name in re.findall(r"docker/[\w.-]+", page):
        assert (ROOT / name).is_file()
    for name in ("compose.yaml", "rayjob.yaml", "ray-up.yaml", "slurm.sbatch"):
        assert f"docker/{name}" in page
