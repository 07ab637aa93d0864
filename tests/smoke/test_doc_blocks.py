"""Every fenced block of README and docs is run, shortened, and its commands a second time; what is not says why not."""

import re
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from commands import call
from doc_blocks import PAGES, ROOT, Block, Shell, all_blocks, blocks_of
from tools.house import ADDONS

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

#: Lines of commands that are not run, by what stands in them, and why.
NOT_RUN = {
    r"^(git clone|make setup|make clean|source|sudo|apt-get|pip install|\.venv/bin/pip|!|%cd)": "sets a machine up",
    r"^docker|^make cluster-up": "needs Docker; its files: tests/ops/test_cluster_files.py",
    r"^(ray |export RAY_|kubectl|sbatch)|address[= ]": "needs a cluster; by hand: tests/faults/test_cluster_by_hand.py",
    r"gpus_per_learner": "needs a GPU",
    r"^tensorboard": "goes on until it is ended",
    r"multigrid-rl (play|watch .*--web)": "goes on until a person ends it: tests/show/test_play_sessions.py",
    r"games\.json scenario=1v1|data=demos/mine": "needs games of a person: tests/imitation/test_demonstrations.py",
    r"multigrid-rl serve": "needs a course, goes on until it is ended: tests/serve",
    r"pybullet": "needs a package that tests do not install",
    r"scenario=unity": "needs Unity's editor: tests/walkers/test_unity.py",
    r"import-(policy|mlagents)|experts/cheetah|imported\.yaml": "needs a file of the reader's: "
    "tests/imitation/test_imported_policies.py, tests/walkers/test_mlagents.py",
    r"my-program": "needs a run with a network of the reader's: tests/competition/test_export_agent.py",
    r"ppo_one_file_todo|=my_estimates:gae": "needs the reader's work: tests/smoke/test_same_numbers.py",
    r"central_critic_todo": "needs the reader's work: tests/assignments/test_templates.py",
    r"walker_reward_todo": "needs the reader's work: tests/assignments/test_templates.py",
    r"^python examples": "takes minutes: tests/smoke/test_same_numbers.py, tests/smoke/test_rllib_examples.py",
    r"check_environment|pettingzoo:meet\b": "needs the file beside the page: tests/assignments/test_handout.py",
    r"make study": "takes hours: tests/benchmarks",
    r"(make|rl) search": "takes hours: tests/search/test_search.py, test_search_plans.py",
    r"cup submissions (-o|.*june|env_id|--scenario half)|my-rubric": "needs hand-ins of a class: tests/competition",
}
#: Pages that tests of their own run from top to bottom, and blocks of Python that do.
ELSEWHERE = {
    "docs/first-hour.md": "tests/smoke/test_first_hour.py",
    "docs/extending.md": "tests/smoke/test_first_hour.py",
    "docs/games.md": "tests/smoke/test_first_hour.py",
    "docs/python.md": "tests/show/test_notebooks.py",
}
#: Pages whose commands take more than a few seconds.
LONG = {"cluster", "control", "imitation", "judging", "league", "running", "rllib", "setup", "looking",
        "2-1v1-rllib", "3-policy-gradients", "4-imitation", "5-walker", "1-single-agent"}  # fmt: skip
MINE = "multigrid-rl train scenario=1v1 run_dir=runs/mine\n"
AGENT = f"{MINE}multigrid-rl export runs/mine --seat red_0 -o my-agent\n"
SUBMITTED = f"{AGENT}mkdir -p submissions; cp -r my-agent submissions/one\n"
#: What a page takes to be there already.
GIVEN = {
    "agents": MINE,
    "control": "for k in mine a/0 a/1 b/0 b/1; do multigrid-rl train scenario=cartpole run_dir=runs/$k; done",
    "judging": f"{SUBMITTED}for k in kuhn leduc; do multigrid-rl train scenario=$k run_dir=runs/$k/NAME; done\n"
    "multigrid-rl train scenario=connect-four run_dir=runs/four\n"
    "multigrid-rl export runs/four --seat player_0 -o four/one",
    "league": "multigrid-rl train scenario=1v1-league run_dir=runs/1v1-league/NAME scenario.league.every=4096",
    "rllib": "multigrid-rl train scenario=1v1 run_dir=CHECKPOINT",
    "1-single-agent": f"{MINE}multigrid-rl export runs/mine --seat red_0 -o my-red\n"
    "multigrid-rl train scenario=single-obstacle run_dir=runs/one\n"
    "multigrid-rl export runs/one --seat red_0 -o my-agent",
    "3-policy-gradients": "for k in a/{1,2} b/{0,1,2}\n"
    "do multigrid-rl train scenario=lunarlander run_dir=runs/$k; done",
    "5-walker": "multigrid-rl train scenario=walker run_dir=runs/paid",
    "6-two-teams": "mkdir submissions",
}  # fmt: skip
#: What stands for something of the reader's, and sizes of blocks of Python.
REPLACED = {
    "single-obstacle seed=0 run_dir=runs/first": "single-obstacle seed=0 run_dir=runs/first scenario.game.max_steps=20",
    "record PLAYER": "record cheetah-expert",
    "init=runs/1v1/... ": "init=$(ls -d runs/1v1/*) ",
    "submissions --scenario connect-four": "four --scenario connect-four",
    'config("1v1", seed=3)': 'config("1v1", "train.until=8192", seed=3)',
    "until=400_000": "until=8192",
    "num_samples=8": "num_samples=1",
    " --card": "",  # of a player of ours
    "step_004005888": "step_000008192",
}
FEW = {"--episodes": "8", "--until": "12000", "--budget": "5e3", "--steps": "3000", "--seeds": "1"}
MORE = {
    "train": ["--until", "12000"], "evaluate": ["--episodes", "8"], "video": ["--episodes", "2"],
    "report": ["--episodes", "2"], "cup": ["--games", "2"], "exploit": ["--games", "100"],
}  # fmt: skip
LEFT_OUT = re.compile("|".join(NOT_RUN))


def replaced(text: str) -> str:
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    return text


def lines_of(block: Block) -> str:
    """The lines of a block of commands that are run."""
    return replaced("\n".join(line for line in block.text.splitlines() if not LEFT_OUT.search(line)))


def shortened(words: list[str], folder: Path) -> list[str]:
    """The same command with less to do."""
    verb, less = words[0], [FEW.get(before, word) for before, word in pairwise(words)]
    if verb == "train" and "--resume" in words:
        return [verb, *less, "--until", "20000"]
    if verb == "grade":
        from multigrid_rl.competition.cup_commands import rubric_file  # noqa: PLC0415 - an add-on may be left out

        rubric = folder / "rubric.yaml"
        text = rubric_file(Path(words[words.index("--rubric") + 1])).read_text(encoding="utf-8")
        rubric.write_text(re.sub(r"episodes: \d+", "episodes: 100", text), encoding="utf-8")
        less[less.index("--rubric") + 1] = str(rubric)
    as_it_stands = "runs/cups/june" in words or "--game" in words  # a cup's own games, and one game
    return [verb, *less, *([] if as_it_stands else MORE.get(verb, []))]


class Reader:
    """Types what a page says. The second time, what is there already is refused in one line, or written again.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.again, self.typed = folder, False, 0
        self.shell = Shell(folder, self._ask)

    def _ask(self, words: list[str]) -> int:
        verb = words[0]
        if self.again and not any(word in ("-o", "--name", "--json") or "run_dir=" in word for word in words):
            return 0  # writes nothing, or a folder by its time
        words = shortened(words, self._folder)
        self.typed += 1
        result = call(*words)
        if batch := re.search(r"until: expected at least ([\d,]+)", result.stderr):
            result = call(*words, "--until", batch[1].replace(",", ""))
        printed = result.stderr.splitlines()
        there = self.again and result.exit_code == 2 and printed
        if there and re.search(r"expected a new|exists already|not empty|is there", printed[-1]):
            return 0
        good = (0, 1) if verb == "grade" else (0,)
        assert result.exit_code in good, (words, result.output[-500:], result.exception)
        return 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long if page.stem in LONG else ()) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_page_does_what_it_says(page, tmp_path, monkeypatch):
    """From top to bottom in an empty folder, and its commands once more."""
    name = page.relative_to(ROOT).as_posix()
    blocks = [block for block in blocks_of(page) if name not in ELSEWHERE]
    if not blocks:
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("MULTIGRID_RL_PLAYERS", str(tmp_path / "players"))
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    reader, module = Reader(tmp_path), ModuleType("a_page")
    for block in blocks:
        if file := re.match(r"# ([\w-]+\.py)\n", block.text):
            (tmp_path / file[1]).write_text(block.text, encoding="utf-8")
    reader.shell.type(GIVEN.get(page.stem, ""))
    for block in blocks:
        if block.language == "":
            reader.shell.type(lines_of(block))
        elif block.language == "yaml":
            assert yaml.safe_load(block.text)
        elif block.language == "python" and name != "README.md":
            exec(replaced(block.text), module.__dict__)
    reader.again = True
    for block in blocks:
        if block.language == "":
            reader.shell.type(lines_of(block))


def test_every_block_is_run_or_named():
    blocks = all_blocks()
    assert {block.language for block in blocks} <= {"", "text", "python", "yaml", "toml"}
    lines = [line for block in blocks if not block.language for line in block.text.splitlines()]
    assert [pattern for pattern in NOT_RUN if not any(map(re.compile(pattern).search, lines))] == []
    run = [line for line in lines if not LEFT_OUT.search(line)]
    assert len(run) >= 0.6 * len(lines)
    tests = {test for reason in NOT_RUN.values() for test in re.findall(r"tests/[\w/]+(?:\.py)?", reason)}
    left_out = tuple(f"tests/{name}" for name in ADDONS if not (ROOT / "tests" / name).exists())
    missing = [test for test in sorted({*tests, *ELSEWHERE.values()}) if not (ROOT / test).exists()]
    assert [test for test in missing if not test.startswith(left_out)] == []
    assert [page for page in ELSEWHERE if not (ROOT / page).exists()] == []
