"""All that ``PPOConfig``'s own methods take is known to ``config()``: followed, or refused with a reason."""

import inspect
import re
from pathlib import Path

import pytest
from ray import tune
from ray._common.deprecation import DEPRECATED_VALUE
from ray.rllib.algorithms.ppo import PPOConfig

from multigrid_rl.rllib import config
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY

PAGE = Path(__file__).parents[2] / "docs" / "rllib.md"
METHODS = (
    "python_environment", "resources", "framework", "api_stack", "environment", "env_runners", "learners", "training",
    "callbacks", "evaluation", "offline_data", "multi_agent", "reporting", "checkpointing", "debugging",
    "fault_tolerance", "rl_module",
)  # fmt: skip


def parameters(method):
    """Names of a method's parameters in all classes, without those that RLlib itself refuses."""
    for kind in PPOConfig.__mro__:
        for name, parameter in inspect.signature(vars(kind).get(method, lambda self: self)).parameters.items():
            gone = isinstance(parameter.default, str | int) and parameter.default == DEPRECATED_VALUE
            if name not in ("self", "kwargs") and not gone:
                yield name


def table():
    """Rows of the page's table by method: the names and patterns in its first cell."""
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        found = re.match(r"\| `\.(\w+)\((.*?)\)`.* \| .* \|$", line)
        if found:
            rows.setdefault(found[1], []).extend(name.strip().rstrip("=") for name in found[2].split(","))
    return rows


@pytest.mark.parametrize("method", METHODS)
def test_page_says_what_becomes_of_every_parameter(method):
    patterns = [name.replace("*", ".*") for name in table()[method]]
    unknown = [name for name in parameters(method) if not any(re.fullmatch(one, name) for one in patterns)]
    assert unknown == []


def test_what_is_not_followed_is_refused_in_one_line():
    from multigrid_rl.rllib.build import RLLIBS  # noqa: PLC0415
    from multigrid_rl.rllib.translation import CONVERTED, SAME  # noqa: PLC0415

    followed = {*RLLIBS, *SAME, *CONVERTED}
    for name in sorted(vars(config("1v1", *TINY))):
        deprecated = getattr(PPOConfig(), name, None) == DEPRECATED_VALUE
        if name in followed or deprecated or name.startswith(("callbacks_", "evaluation_")):
            continue
        made = config("1v1", *TINY)
        vars(made)[name] = {"other"} if name == "policies" else object()
        with pytest.raises(ConfigError, match=r"^.*nothing of ours follows it.*$"):
            made._user_values()


def test_fragment_and_batch_that_differ_are_refused():
    made = config("1v1", *TINY).env_runners(rollout_fragment_length=32)
    assert made.copy().training(train_batch_size=32 * 32)._user_values() == {"train.num_steps": 32}
    with pytest.raises(ConfigError, match="rollout_fragment_length: expected 16, which follows from the batch, got 32"):
        made.training(train_batch_size=32 * 16)._user_values()


def test_values_that_no_configuration_has_are_refused_by_their_key():
    with pytest.raises(ConfigError, match=r"^model.hidden: expected numbers, texts, lists and mappings, got .*Categ"):
        config("1v1", hidden=[tune.choice([16, 32]), 16])
    with pytest.raises(ConfigError, match=r"^scenario: expected"):
        config(tune.choice(["1v1", "coop"]))
