"""What an environment is filled by: uv with the settings of pip, or pip."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from multigrid_rl import files

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import install  # noqa: E402

CONFIG = """:env:.find-links='/wheels /more'
global.cert='/etc/own.crt'
global.extra-index-url='https://a/simple\\nhttps://b/simple'
global.index-url='https://files/simple'
install.index-url='https://install/simple'
"""


@pytest.fixture
def ran(monkeypatch):
    """Commands that would run, of which none does; each ends as ``status`` says."""
    commands, status = [], {}

    def run(command, **_):
        commands.append(command)
        code = next((code for word, code in status.items() if word in command), 0)
        if code and _.get("check"):
            raise subprocess.CalledProcessError(code, command)
        return SimpleNamespace(returncode=code, stdout=CONFIG)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("INSTALLER", raising=False)
    return commands, status


def test_uv_has_the_settings_of_pip(ran, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("UV_FIND_LINKS", "/own")
    variables = install.uv(install.pip_settings())
    assert variables["UV_DEFAULT_INDEX"] == "https://install/simple"
    assert variables["UV_INDEX"] == "https://a/simple https://b/simple"
    assert variables["SSL_CERT_FILE"] == "/etc/own.crt"
    assert variables["UV_FIND_LINKS"] == "/own"  # uv's own come first
    monkeypatch.delenv("UV_FIND_LINKS")
    assert install.uv(install.pip_settings())["UV_FIND_LINKS"] == "/wheels,/more"


@pytest.mark.parametrize("why", ["unknown setting", "asked for", "no uv"])
def test_pip_installs_where_uv_cannot(ran, monkeypatch, why):
    settings, (commands, status) = install.pip_settings(), ran
    if why == "unknown setting":
        settings["require-hashes"] = "true"
    elif why == "asked for":
        monkeypatch.setenv("INSTALLER", "pip")
    else:
        status["uv"] = 1
    assert install.install(["torch"], install.uv(settings)) == "pip"
    assert commands[-1][:4] == [sys.executable, "-m", "pip", "install"]


def test_pip_tries_where_uv_failed(ran):
    commands, status = ran
    variables = install.uv(install.pip_settings())
    status["uv"] = 2
    assert install.install(["torch"], variables) == "pip"
    assert [command[2] for command in commands[-2:]] == ["uv", "pip"]


def test_extras_are_named_by_what_can_be_typed_there(monkeypatch, tmp_path):
    """Of a wheel by the packages themselves: anybody could take the name of this one on an index."""
    monkeypatch.chdir(files.data_root())
    monkeypatch.setattr(sys, "prefix", str(files.data_root() / ".venv"))
    assert files.install_command("films") == "make setup EXTRAS=films"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert files.install_command("films") == f"pip install --editable '{files.data_root()}[films]'"
    monkeypatch.setattr(files, "data_root", lambda: tmp_path / "multigrid_rl" / "_data")
    monkeypatch.setattr(files, "requires", lambda name: ["rich>=13", 'imageio-ffmpeg>=0.6; extra == "films"'])
    assert files.install_command("films") == "pip install 'imageio-ffmpeg>=0.6'"
