"""Files that run a class server elsewhere say what the command takes. No container was started with them."""

from __future__ import annotations

import re
from pathlib import Path

import typer
import yaml

from multigrid_rl.serve.verbs import serve

DOCKER = Path(__file__).parents[2] / "docker"


def options() -> set[str]:
    app = typer.Typer()
    app.command()(serve)
    return {name for part in typer.main.get_command(app).params for name in part.opts}


def test_container_unit_and_proxy_fit_the_command():
    services = yaml.safe_load((DOCKER / "serve.yaml").read_text())["services"]
    unit = (DOCKER / "multigrid-rl-serve.service").read_text()
    said = [word.partition("=")[0] for word in services["server"]["command"] if word.startswith("--")]
    said += re.findall(r"--[a-z-]+", re.search(r"ExecStart=(.*)", unit)[1])
    assert set(said) <= options()
    assert "ports" not in services["server"]  # Caddy alone is reached from outside
    assert "ports" not in services["db"]
    assert "127.0.0.1:8080" in (DOCKER / "Caddyfile").read_text()
    assert services["caddy"]["environment"]["UPSTREAM"] == "server:8080"
