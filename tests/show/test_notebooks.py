"""The notebooks and docs/python.md do what they say."""

import os
import re
from pathlib import Path

import pytest

import multigrid_rl
from notebooks import cells_of, main_module, value_of
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A module like a notebook's, in an empty folder."""
    return main_module(monkeypatch, tmp_path)


def sources_of(path):
    """Text of the cells; training is as short as it can be."""
    return [re.sub(r"\b200_000\b", "20_480", "".join(cell["source"])) for cell in cells_of(path)]


def shown_twice(module, cells):
    """What a notebook shows, after the cells that write folders have run a second time."""
    values = [value_of(cell, module) for cell in cells]
    for cell in cells:
        if "train(" in cell or "subprocess" in cell:
            value_of(cell, module)
    return values


@pytest.fixture
def in_kernel(tmp_path, monkeypatch):
    """Runs cells as a notebook's server does; returns the outputs of each as a page shows them."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))

    def run(cells, **options):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        where = {"metadata": {"path": str(tmp_path)}}
        client = nbclient.NotebookClient(book, resources=where, coalesce_streams=True, timeout=300, **options)
        with monkeypatch.context() as patch:  # below pytest a kernel leaves out what other programs print
            patch.delenv("PYTEST_CURRENT_TEST")
            return [cell.outputs for cell in client.execute().cells]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_kernel_shows_one_output_for_a_run(path, in_kernel):
    """Lines before it, one text that is replaced, lines after it and the cell's value; nothing on stderr."""
    for outputs in in_kernel(sources_of(path)):
        kinds = [output.get("name", output.output_type) for output in outputs]
        before = ([], ["stdout"], ["stdout", "display_data"])
        assert kinds in ([], *([*kind, "execute_result"] for kind in before))
        assert "\x1b" not in "".join(output.get("text", "") for output in outputs)


@pytest.mark.slow
def test_a_kernel_shows_a_mistake_as_one_line_and_a_plot_as_a_picture(in_kernel, tmp_path):
    tiny_run(tmp_path / "run", "scenario=1v1", "train.until=8192")
    mistake, other, plot = in_kernel(
        ["import multigrid_rl\nmultigrid_rl.train('1v1', lrr=1)", "multigrid_rl.evaluate('nobody')",
         "%matplotlib inline\nmultigrid_rl.Run('run').plot('return_mean/*'); None"],
        allow_errors=True,
    )  # fmt: skip
    for (output,) in (mistake, other):
        assert len(output.traceback) == 1
        assert output.traceback[0].startswith(f"{output.ename}: ")
    assert [sorted(output["data"]) for output in plot] == [["image/png", "text/plain"]]


@pytest.mark.slow
def test_train_look_improve(notebook):
    verdict, table, win, replay, returns = shown_twice(notebook, sources_of(NOTEBOOKS[0]))
    assert verdict == (False, "until")
    assert list(table.columns) == ["return_mean/red_0", "episode_len_mean"]
    assert 0 <= win <= 1
    assert replay._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "worst (stochastic, red)" in replay.save("game.html").read_text()
    assert returns[0] != returns[1]


@pytest.mark.slow
def test_custom_player_in_cup(notebook):
    _, step, interval, win, entries = shown_twice(notebook, sources_of(NOTEBOOKS[1]))
    assert step[1:3] == (False, False)
    assert len(interval) == 2
    assert 0 <= win <= 1
    assert [path.name for path in entries] == ["mine"]
    assert len(list(Path("runs/1v1").iterdir())) == 2
    assert notebook.run.config["scenario"]["seats"]["blue_0"] == {"notebook_main:Toggler": 1.0, "random": 1.0}
    assert multigrid_rl.evaluate(notebook.run, episodes=2)["episodes"] == 2  # classes that were handed over are trusted


def test_the_snippet_of_the_readme_runs(notebook, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    exec(block.replace("200_000", "12_288").replace("300_000", "16_384"), notebook.__dict__)
    assert notebook.action in range(7)
    assert notebook.run.verdict["env_steps"] == 16_384


@pytest.mark.slow
def test_page_snippets_run(notebook):
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "python.md").read_text(), re.M | re.S)
    exec("".join(blocks).replace("200_000", "20_480"), notebook.__dict__)
    assert notebook.rewards.shape == (1024,)
    assert notebook.observation["image"].shape == (5, 5, 3)
    assert notebook.game.possible_agents == ["blue_0", "blue_1", "red_0", "red_1"]
    again = multigrid_rl.Run(notebook.run.path)
    assert again.metrics.equals(notebook.run.metrics)
    assert multigrid_rl.load_player(again).name == "1v1-red_0"
