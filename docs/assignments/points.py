"""Points for a run in an environment of Gymnasium, by a rubric in the form that ``multigrid-rl grade`` has for games.

    python docs/assignments/points.py docs/assignments/rubrics/3-policy-gradients.yaml runs/mine

WHO is a run or a player's folder. The last line says passed or not, and so does the exit status (0 or 1). It
trusts what it is given: for hand-ins of strangers see docs/instructors.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import ValidationError

import multigrid_rl
from multigrid_rl.competition.grading import Rubric
from multigrid_rl.evaluation.seeds import Interval
from multigrid_rl.files import read_plain_yaml

METRIC = "return_mean/*"


def main(rubric_file: str, who: str) -> int:
    """Print a line for each check and return the exit status."""
    rubric = Rubric.model_validate(read_plain_yaml(Path(rubric_file)))
    if any(check.metric != METRIC for exam in rubric.exams for check in exam.checks):
        raise ValueError(f"{rubric_file}: metric: expected {METRIC} alone")
    points = 0.0
    for number, exam in enumerate(rubric.exams):
        measured = multigrid_rl.evaluate(
            who, f"scenario={rubric.scenario}", episodes=exam.episodes, seed=rubric.seed + number, mode=rubric.mode
        )
        value = Interval(measured["return_mean"], *measured["return_interval"])
        for row in (check.judged([value]) for check in exam.checks):
            points += row["points"]
            print(
                f"{exam.name}: {row['check']}: {row['value']} {row['interval']}, {row['points']} of {row['of']} points"
            )
    passed = points >= rubric.pass_points
    print(f"{'PASSED' if passed else 'NOT PASSED'}: {points:g} of {rubric.points:g}, {rubric.pass_points:g} are needed")
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except (TypeError, ValueError, ValidationError, OSError) as error:
        sys.exit(f"points.py RUBRIC.yaml WHO: {error}")
