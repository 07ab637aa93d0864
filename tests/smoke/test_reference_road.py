"""``train.compiled=false`` runs what compiled runs compute, in torch alone."""

import pytest

from multigrid_rl import fast
from multigrid_rl.learn import rollout, update
from tiny_runs import tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start
SHORT = ("train.until=1024",)


@pytest.mark.parametrize(
    "settings",
    [(), ("model=gru", "model.hidden=[16]"), ("scenario=cartpole", "experiment=none")],
    ids=["doors", "memory", "vectors"],
)
def test_rows_are_those_of_compiled_networks(tmp_path, monkeypatch, settings):
    compiled = without_time(tiny_run(tmp_path / "compiled", *settings, *SHORT)[1])
    monkeypatch.setattr(fast, "_COMPILERS", dict.fromkeys(fast._COMPILERS, "nowhere:nothing"))
    monkeypatch.setattr(rollout, "CompiledCollector", None)
    monkeypatch.setattr(update, "ppo_gradient", None)
    torchs = without_time(tiny_run(tmp_path / "torch", *settings, *SHORT, "train.compiled=false")[1])
    assert len(torchs) == len(compiled) > 1
    for ours, theirs in zip(compiled, torchs, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_env_runners_play_without_compiled_networks(tmp_path):
    settings = (*SHORT, "train.compiled=false")
    alone = without_time(tiny_run(tmp_path / "alone", *settings)[1])
    remote = without_time(tiny_run(tmp_path / "remote", *settings, "cluster.num_env_runners=1")[1])
    apart = {"env_runners", "env_runner_restarts"}
    assert [{k: v for k, v in row.items() if k not in apart} for row in remote] == [
        {k: v for k, v in row.items() if k not in apart} for row in alone
    ]
