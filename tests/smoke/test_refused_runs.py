"""What no run may be asked for costs one line, the same from ``train`` and ``explain``, and nothing is written."""

import re

import pytest

from commands import call, complaint

POLE = "env_id=CartPole-v1"
#: Overrides, and a pattern of the one line. What a configuration alone refuses is in test_refused_overrides.py.
REFUSED = [
    ("train.lr=-1", r"train\.lr: expected greater than 0"),
    ("scheme=ctce", "scheme: expected dtde"),
    ("train.until=20", r"train\.until: expected at least 4096, one batch of train.num_envs=256 .*, got 20"),
    ("scenario.seats.blue_0=nobody", r"scenario\.seats\.blue_0.*nobody"),
    ("experiment=nowhere.yaml", "experiment: .*got nowhere.yaml: No such file or directory: 'nowhere.yaml'"),
    ("train.shaping=nowhere:f", r"train\.shaping: expected module:function that can be imported, got nowhere:f"),
    ("train.shaping=math:pi", r"train\.shaping: expected module:function, got math:pi"),
    ("train.objective=math:pi", "train.objective: expected module:function, got math:pi: 3.14"),
    ("train.bonus.all.jump=1", r"train\.bonus.*jump"),
    (f"{POLE} train.bonus.all.key_pickup=1", "train.bonus: expected {}.*no events to weigh.*'key_pickup': 1.0"),
    (f"{POLE} scenario.seats.agent_0=random", "scenario.seats: expected {}, as .*every agent learns, got .*agent_0"),
    (f"{POLE} model=cnn", "expected mlp, gru or lstm for a vector, got cnn"),
    (f"{POLE} train.shaping=math:sqrt", "train.shaping=math:sqrt: TypeError: math.sqrt.. takes exactly one argument"),
    (f"{POLE} scenario.agents=2", "scenario.agents: expected 1, got 2"),
    (f"{POLE} train.objective=best", "train.objective: expected ppo, policy_gradient or module:function, got best"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[overrides for overrides, _ in REFUSED])
def test_train_and_explain_refuse_in_one_line(overrides, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = complaint(call("explain", *overrides.split()))
    assert re.search(message, said)
    assert complaint(call("train", *overrides.split())) == said
    assert list(tmp_path.iterdir()) == []
