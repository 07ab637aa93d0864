"""Fill-in templates: made of programs that work, they say what is missing, and pass their checks once it is there."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from commands import works
from doc_blocks import loaded
from multigrid_rl.text import ConfigError
from tiny_runs import tiny_run
from tools.templates import SOURCES, TEMPLATES, template_from, template_of

SOLUTIONS = Path(__file__).parent / "solutions"
CHECKED = {"vpg": 6, "bc": 4, "walker_reward": 4, "central_critic": 4}


@pytest.fixture
def called(monkeypatch, capsys):
    """Runs a program as a command, in this process, which has imported everything; returns status and output."""

    def run(path):
        monkeypatch.setattr(sys, "argv", [str(path)])
        monkeypatch.syspath_prepend(path.parent)
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(path), run_name="__main__")
        return int(left.value.code), *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", SOURCES)
def test_a_template_is_what_its_program_makes(name):
    made = template_from(SOURCES[name], name)
    assert (TEMPLATES / name).read_text() == made, "python -m tools.templates writes them"
    assert "TODO-BEGIN" not in made


def test_no_template_is_left_over():
    assert {path.name for path in TEMPLATES.glob("*.py")} == set(SOURCES)


@pytest.mark.parametrize(
    "program", ["x = 1\n", "# TODO-BEGIN a: b\nx = 1\n", "# TODO-BEGIN a: b\nx = 1\n# TODO-END c\n", "# TODO-END a\n"]
)
def test_marks_without_a_partner_are_refused(program):
    with pytest.raises(ValueError, match="marks: expected pairs"):
        template_of(program)


def test_what_is_left_out_is_named_where_it_was():
    program = "def f():\n    # TODO-BEGIN f: equation 1\n    return 1\n    # TODO-END f\n"
    assert (
        template_of(program)
        == 'def f():\n    # TODO f: equation 1\n    raise NotImplementedError("f is to be filled in")\n'
    )


@pytest.mark.parametrize("name", CHECKED)
def test_a_template_says_what_is_not_filled_in(called, name):
    status, said, errors = called(TEMPLATES / f"{name}_todo.py")
    lines = said.splitlines()
    assert status == 1
    assert len(lines) == CHECKED[name]
    assert all(line.endswith("is to be filled in") for line in lines), said
    assert not errors


@pytest.mark.parametrize("name", CHECKED)
def test_its_solution_passes_all_checks(called, name):
    status, said, errors = called(SOLUTIONS / f"{name}.py")
    assert [line.rpartition(": ")[2] for line in said.splitlines()] == ["right"] * CHECKED[name], said
    assert (status, errors) == (0, "")


MISTAKES = {
    "vpg": [
        ("-logp * psi", "logp * psi", "check_losses"),
        ("-logp * psi", "-(logp * psi).mean()", "check_losses"),
        ("(values - targets).pow(2)", "torch.nn.functional.mse_loss(values, targets)", "check_losses"),
        ("gamma * lam * ~ends[t] * later", "gamma * lam * later", "check_gae"),
        ("gamma * ~ends[t] * values[t + 1]", "gamma * values[t + 1]", "check_gae"),
        ("gamma * ~ends[t] * later", "gamma * np.where(ends[t], values[t + 1], later)", "check_reward_to_go"),
        ("later = values[-1]", "later = 0 * values[-1]", "check_reward_to_go"),
        (".sum(dim=1)\n    # TODO-END gaussian", ".mean(dim=1)\n    # TODO-END gaussian", "check_gaussian"),
        ("advantages, advantages + values[:-1]", "advantages, advantages", "check_gae"),
        ("-torch.min(ratio", "-torch.max(ratio", "check_clip"),
        ("torch.clamp(ratio, 1 - clip, 1 + clip) * psi", "torch.clamp(ratio, max=1 + clip) * psi", "check_clip"),
        ("torch.clamp(ratio, 1 - clip, 1 + clip) * psi", "torch.clamp(ratio, 0.8, 1.2) * psi", "check_clip"),
        ("ratio = torch.exp(logp - old_logp)", "ratio = torch.exp(logp)", "check_clip"),
        ("* torch.exp(-log_std)", "* torch.exp(-log_std.detach())", "check_gaussian"),
        ("pow(2) - log_std -", "pow(2) - log_std[0] -", "check_gaussian"),
        ("torch.log_softmax(logits, dim=1)", "logits", "check_categorical"),
    ],
    "bc": [
        (".sum(dim=1)\n    # TODO-END negative", ".mean(dim=1)\n    # TODO-END negative", "check_log_prob"),
        (".mean(dim=1)\n    # TODO-END squared", ".sum(dim=1)\n    # TODO-END squared", "check_mse"),
        (".sum(dim=1)\n    # TODO-END negative", ".sum()[None]\n    # TODO-END negative", "check_log_prob"),
        ("* torch.exp(-log_std)", "* torch.exp(-log_std.detach())", "check_log_prob"),
        ("(predicted - actions).pow(2)", "predicted.pow(2)", "check_mse"),
        ("(predicted - actions).pow(2)", "(predicted - actions).detach().pow(2)", "check_mse"),
        ("max(rounds - 1, 1)", "rounds", "check_beta"),
        (
            "np.where((uniform < beta)[:, None], expert, learner)",
            "np.copyto(expert, learner, where=(uniform >= beta)[:, None]) or expert",
            "check_who_acts",
        ),
        ("uniform < beta", "uniform > beta", "check_who_acts"),
    ],
    "walker_reward": [
        ("max(0.0, float(seen[TOP][2]))", "float(seen[TOP][2])", "check_uprightness"),
        ("/ 0.4) ** 2", ") ** 2", "check_effort"),
        ("np.mean((np.asarray(action) / 0.4) ** 2)", "np.mean(np.abs(action) / 0.4)", "check_effort"),
        ("uprightness(next_obs)", "uprightness(obs)", "check_shaped"),
        ("np.mean((np.asarray(action) / 0.4) ** 2)", "np.mean(np.square(action, out=action)) / 0.16", "check_shaped"),
    ],
    "central_critic": [
        ("(obs.shape[1] - size - 1) // (size + 1)", "1", "check_split"),
        (
            "views.reshape(len(obs), mates, size), last",
            "views.reshape(len(obs), mates, size), last.flip(1)",
            "check_split",
        ),
        ("torch.cat(columns, dim=1).float()", "sum(columns).float()", "check_one_hot"),
        ("[actions + 1] * last.shape[1]", "[actions] * last.shape[1]", "check_critic_input"),
        ("for view in views.unbind(dim=1)", "for view in views[:, :1].unbind(dim=1)", "check_critic_input"),
        ("for view in views.unbind(dim=1)", "for view in views[:, :1].mul(0).unbind(dim=1)", "check_actor"),
    ],
}


@pytest.mark.parametrize(("name", "right", "wrong", "check"), [(n, *m) for n, rows in MISTAKES.items() for m in rows])
def test_a_mistake_is_found_by_its_check(tmp_path, name, right, wrong, check):
    text = (SOLUTIONS / f"{name}.py").read_text()
    assert text.count(right) == 1, right
    mistaken = tmp_path / f"{name}.py"
    mistaken.write_text(text.replace(right, wrong))
    module = loaded(mistaken)
    with pytest.raises((AssertionError, RuntimeError)):
        getattr(module, check)()


@pytest.mark.parametrize("part", ["gae", "policy_loss", "value_loss", "entropy"])
def test_the_one_file_to_fill_in_stops_at_the_first_part_that_is_missing(tmp_path, part):
    text, parts = SOURCES["ppo_one_file_todo.py"].read_text(), ("gae", "policy_loss", "value_loss", "entropy")
    for other in parts:  # all others are filled in
        if other != part:
            text = text.replace(f"# TODO-BEGIN {other}:", "#").replace(f"# TODO-END {other}\n", "#\n")
    (tmp_path / "ppo_one_file_todo.py").write_text(template_of(text))
    module = runpy.run_path(str(tmp_path / "ppo_one_file_todo.py"), run_name="to_fill_in")
    with pytest.raises(NotImplementedError, match=f"^{part} is to be filled in$"):
        next(module["train"](module["arguments"](["--num-envs", "4"])))


CHECKS = Path(__file__).parents[2] / "docs" / "assignments" / "check_ppo.py"
OF_ONE_FILE = [
    ("~(terminated[t] | done[t]) * later", "~terminated[t] * later", "check_gae"),
    ("next_values[t] * ~terminated[t]", "next_values[t]", "check_gae"),
    ("~terminated[t] - values[t]", "~terminated[t]", "check_gae"),
    ("later = torch.zeros_like(rewards[0])", "later = rewards[0] * 0; values *= 0", "check_gae"),
    ("later = torch.zeros_like(rewards[0])", "later = missing", "check_gae"),
    ("later = torch.zeros_like(rewards[0])", "sys.exit()", "check_gae"),
    ("    return advantages\n", "", "check_gae"),
    ("error = torch.max(error,", "error = torch.min(error,", "check_value_loss"),
    ("error = torch.max(error, (near - targets).pow(2))", "error = (near - targets).pow(2)", "check_value_loss"),
    ("        error = torch.max(error, (near - targets).pow(2))\n", "        pass\n", "check_value_loss"),
    ("loss = error.mean()", "loss = 0.5 * error.mean()", "check_value_loss"),
    ("near = old_values +", "near = 1 +", "check_value_loss"),
    (
        "-torch.min(advantages * ratio, advantages * clipped).mean()",
        "-torch.min(advantages * ratio, advantages * clipped).mean().item()",
        "check_policy_loss",
    ),
    ("torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)", "torch.clamp(ratio, max=1 + clip_coef)", "check_policy_loss"),
    ("torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)", "torch.clamp(ratio, 0.8, 1.2)", "check_policy_loss"),
    ("ratio = torch.exp(logp - old_logp)", "ratio = torch.exp(logp)", "check_policy_loss"),
    ("-torch.min(advantages * ratio", "-torch.max(advantages * ratio", "check_policy_loss"),
    ("entropy = -(log_probs", "entropy = (log_probs", "check_entropy"),
    ("entropy = -(log_probs.exp() *", "entropy = -(log_probs.exp().detach() *", "check_entropy"),
    (
        "entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()",
        "entropy = -log_probs.amax(dim=1).mean()",
        "check_entropy",
    ),
]


@pytest.mark.parametrize(("right", "wrong", "check"), [("", "", None), *OF_ONE_FILE])
def test_checks_of_the_one_file_find_each_mistake(tmp_path, monkeypatch, capsys, right, wrong, check):
    text = SOURCES["ppo_one_file_todo.py"].read_text()
    assert not right or text.count(right) == 1, right
    (tmp_path / "mine.py").write_text(text.replace(right, wrong) if right else text)
    monkeypatch.setattr(sys, "argv", [str(CHECKS), str(tmp_path / "mine.py")])
    failed = loaded(CHECKS).main()
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said if not line.endswith(": right")] == ([check] if check else [])
    assert failed == bool(check)


def test_a_clone_that_exists_is_refused_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bc.py", str(tmp_path / "none"), "-o", str(tmp_path)])
    with pytest.raises(SystemExit, match=f"--output: expected a new folder, got {tmp_path}, which exists"):
        loaded(SOLUTIONS / "bc.py").main()


VPG = ("env_id=CartPole-v1", "train=vpg", "train.minibatch_size=null", "train.until=2048")


@pytest.mark.slow
def test_what_was_filled_in_trains_as_the_command_line_says(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SOLUTIONS))
    own = ["train.objective=vpg:objective", "train.psi=vpg:gae", "train.value_loss=vpg:value_loss"]
    rows = [tiny_run(tmp_path / name, *VPG, *overrides)[1] for name, overrides in (("own", own), ("ours", []))]
    for mine, theirs in zip(*rows, strict=True):
        for name in ("learner/agent_0/policy_loss", "learner/agent_0/vf_loss", "approx_kl/agent_0"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name


@pytest.mark.slow
def test_a_critic_that_was_filled_in_trains_and_its_player_needs_no_team_mate(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SOLUTIONS))
    monkeypatch.chdir(tmp_path)
    words = ["scenario=coop", "scheme=ctde", "experiment=none", "model.name=central_critic:CentralCritic"]
    rows = tiny_run(tmp_path / "run", *words, "scenario.game.max_steps=30")[1]
    assert {"explained_variance/red_0", "explained_variance/red_1"} <= rows[-1].keys()
    works("evaluate", tmp_path / "run", "--episodes", 4)
    monkeypatch.setattr(sys.modules["central_critic"], "CentralCritic", WithoutCentralSpace)
    with pytest.raises(ConfigError, match=r"central_critic:CentralCritic: arguments: expected .*central_space\), got"):
        tiny_run(tmp_path / "refused", *words)


class WithoutCentralSpace:
    def __init__(self, observation_space, outputs, hidden, generator): ...


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["log_prob", pytest.param("mse", marks=pytest.mark.long)])
def test_what_the_cloning_program_writes_is_a_player(tmp_path, loss):
    works("data", "record", "cheetah-expert", "scenario=halfcheetah", "--steps", 2000, "-o", tmp_path / "demos")
    options = ["--loss", loss, "--steps", "20", "--expert", "cheetah-expert", "--rounds", "2", "--label-steps", "100"]
    command = [sys.executable, "bc.py", tmp_path / "demos", "-o", tmp_path / "clone", *options]
    done = subprocess.run(command, cwd=SOLUTIONS, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "round 1: 2,200 rows" in done.stdout
    works("evaluate", tmp_path / "clone", "--episodes", 2)
