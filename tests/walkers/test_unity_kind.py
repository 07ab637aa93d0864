"""What Unity's kind of environments can do, and a player's card that names one."""

from bundles import cheetah
from commands import call, complaint
from multigrid_rl.config.scenario import kind_named


def test_unity_shows_vectors_and_is_not_judged():
    kind = kind_named("unity")
    assert (kind.vectors, kind.judged, kind.stock, kind.board) == (True, False, False, False)


def test_player_of_unity_is_not_evaluated_and_inspect_promises_none(tmp_path):
    player = cheetah(tmp_path / "player", package="unity")
    assert call("inspect", player).output.splitlines()[-1].endswith("of unity, where none is played")
    message = "scenario.package: expected gymnasium or pettingzoo, to play episodes, got unity"
    assert message in complaint(call("evaluate", player, "--episodes", 1, "-o", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
