"""Which of a student's hand-ins counts for a deadline. Computed whenever it is read: courses and extensions change."""

from typing import NamedTuple

from multigrid_rl.serve.course import Course, Deadline
from multigrid_rl.serve.schema import Grade, HandIn, Rating

#: A hand-in with its rating and grade, if it has them.
Own = tuple[HandIn, Rating | None, Grade | None]


class Counted(NamedTuple):
    """What counts for a deadline, and what came after it."""

    own: Own | None
    late: Own | None  # it may be the one that counts
    days: int  # by which that one is late
    points: float | None  # of the one that counts, without the penalty; ``None``: it was not graded


def counted(owned: list[Own], course: Course, deadline: Deadline | None, code: str) -> Counted:
    """Return which hand-in of the student with this id counts: of those that are rated the last, or the best, on time.

    Of those that are late the same way one is chosen, which counts where the course's ``late`` says so.
    """

    def order(own: Own) -> tuple[bool, float, int]:
        rated = own[0].state == "rated" and own[1] is not None
        return rated, own[1].rating if own[1] and rated and course.counts == "best" else 0.0, own[0].id

    days = {own[0].id: course.late_days(own[0].at, deadline, code) if deadline else 0 for own in owned}
    on_time = max((own for own in owned if not days[own[0].id]), key=order, default=None)
    late = max((own for own in owned if days[own[0].id]), key=order, default=None)
    days_late = days[late[0].id] if late else 0
    points = on_time[2].points if on_time and on_time[2] else None
    if late and late[2] and course.late == "penalty":
        reduced = round(late[2].points * max(1 - course.penalty / 100 * days_late, 0.0), 2)
        if points is None or reduced > points:
            return Counted(late, late, days_late, reduced)
    return Counted(on_time, late, days_late, points)
