"""Files that run a class server elsewhere say what the command takes. No container was started with them."""

import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest
import typer
import yaml

from multigrid_rl.serve import pages, people_pages
from multigrid_rl.serve.course import Course, HandInQuota
from multigrid_rl.serve.serve_commands import serve
from multigrid_rl.serve.site import _FORM_BYTES

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
SERVICES = yaml.safe_load((DOCKER / "serve.yaml").read_text())
SERVER, CADDY = SERVICES["services"]["server"], SERVICES["services"]["caddy"]
CADDYFILE = "\n".join(line.partition("#")[0] for line in (DOCKER / "Caddyfile").read_text().splitlines())
UNIT_FILE = DOCKER / "multigrid-rl-serve.service"


def parsed(words):
    """What the command makes of its words; it refuses an option that there is not, or a value that does not fit."""
    app = typer.Typer()
    app.command()(serve)
    return typer.main.get_command(app).make_context("serve", list(words), resilient_parsing=False).params


def unit():
    found = RawConfigParser(strict=False)
    found.optionxform = str
    found.read(UNIT_FILE)
    return found


def test_the_command_takes_what_they_say():
    in_container = parsed(SERVER["command"][1:])
    assert SERVER["command"][0] == "serve"
    assert (in_container["host"], in_container["port"], in_container["behind_proxy"]) == ("0.0.0.0", 8080, True)
    assert in_container["database"].startswith("postgresql")
    program, verb, *words = shlex.split(unit()["Service"]["ExecStart"])
    here = parsed(words)
    assert (Path(program).name, verb) == ("multigrid-rl", "serve")
    assert (here["host"], here["url"], here["behind_proxy"]) == ("127.0.0.1", "https://ladder.example.org", True)
    for line in (*UNIT_FILE.read_text().splitlines(), *(DOCKER / "serve.yaml").read_text().splitlines()):
        if "multigrid-rl serve " in line and line.startswith("#"):
            parsed(shlex.split(line.partition("multigrid-rl serve ")[2]))
    with pytest.raises(Exception, match="no-such"):
        parsed(["--no-such"])


def test_ports_paths_and_names_are_there():
    port = parsed(SERVER["command"][1:])["port"]
    assert CADDY["environment"]["UPSTREAM"] == f"server:{port}"
    assert f"{{$UPSTREAM:127.0.0.1:{parsed(['course.yaml'])['port']}}}" in CADDYFILE
    assert "ports" not in SERVER  # Caddy alone is reached from outside
    assert "ports" not in SERVICES["services"]["db"]
    # A host that asks by another name than the site's, as Caddy's own checks would, is refused.
    assert "health_uri" not in CADDYFILE
    address, path = re.search(r"http://([\d.]+:\d+)(/\w+)", SERVER["healthcheck"]["test"][-1]).groups()
    assert address == f"127.0.0.1:{port}"
    assert path in {page.path for page in (*pages.PAGES, *people_pages.PAGES)}
    assert (DOCKER / SERVER["build"]["context"] / SERVER["build"]["dockerfile"]).resolve() == DOCKER / "Dockerfile"
    mounts = {its.split(":")[1]: its.split(":")[0] for each in SERVICES["services"].values() for its in each["volumes"]}
    assert str(Path(SERVER["command"][1]).parent) in mounts
    assert (DOCKER / mounts["/etc/caddy/Caddyfile"]).exists()
    assert {name for name in mounts.values() if not name.startswith(".")} == SERVICES["volumes"].keys()
    for each in SERVICES["services"].values():
        assert each.get("depends_on", {}).keys() <= SERVICES["services"].keys()


def test_variables_are_set_where_they_are_read():
    read = set(re.findall(r"\{\$(\w+)", CADDYFILE))
    assert read == CADDY["environment"].keys()
    needed = set(re.findall(r"\$\{(\w+):\?", (DOCKER / "serve.yaml").read_text()))
    said = re.search(r"^#   export (.*)$", (DOCKER / "serve.yaml").read_text(), re.MULTILINE)[1]
    assert needed == set(re.findall(r"(\w+)=", said))


def test_the_proxy_lets_the_largest_upload_through():
    most = int(re.search(r"max_size (\d+)MB", CADDYFILE)[1]) * 1e6
    quota = max(bound.le for bound in HandInQuota.model_fields["megabytes"].metadata if hasattr(bound, "le"))
    assert most >= quota * 1e6 + _FORM_BYTES


def test_the_image_has_what_a_server_needs():
    text = (DOCKER / "Dockerfile").read_text()
    extras = set(re.findall(r"extras\['(\w+)'\]", text))
    assert {"serve", "postgres"} <= extras
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    assert extras <= tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    assert "bubblewrap" in text
    assert 'ENTRYPOINT ["multigrid-rl"]' in text


def test_the_unit_writes_where_it_may(tmp_path):
    service = unit()["Service"]
    assert service["WorkingDirectory"] in service["ReadWritePaths"].split()
    assert "RestrictNamespaces" not in service  # bubblewrap makes them
    if (systemd := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd is not installed")
    file = tmp_path / UNIT_FILE.name
    file.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={shutil.which('true')}", UNIT_FILE.read_text()))
    told = subprocess.run([systemd, "verify", file], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def test_anchors_are_players_or_folders_beside_the_course():
    with pytest.raises(ValueError, match=r"anchors: expected each once, a player's name or a folder beside the course"):
        Course(anchors=["random", "bots/mine"])
