"""Fill-in templates for courses: from a program that works, what stands between its marks is left out.

    python -m tools.templates

Marks are ``# TODO-BEGIN name: what to fill in, with its citation`` and ``# TODO-END name``, at the same depth.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "docs" / "assignments" / "templates"
_SOLUTIONS = ROOT / "tests" / "assignments" / "solutions"
#: Template -> the program that it is made of.
SOURCES = {
    "ppo_one_file_todo.py": ROOT / "examples" / "ppo_one_file.py",
    "vpg_todo.py": _SOLUTIONS / "vpg.py",
    "bc_todo.py": _SOLUTIONS / "bc.py",
    "central_critic_todo.py": _SOLUTIONS / "central_critic.py",
    "walker_reward_todo.py": _SOLUTIONS / "walker_reward.py",
}
_BLOCK = re.compile(r"^( *)# TODO-BEGIN (\w+): (.+)\n(?:.*\n)*?\1# TODO-END \2\n", re.MULTILINE)
_MARKS = "marks: expected pairs of TODO-BEGIN and TODO-END with the same name and depth"


def template_of(program: str) -> str:
    """Return ``program`` with a ``NotImplementedError`` in the place of each marked block.

    Raises:
        ValueError: no block, or a mark without its partner.
    """
    result = without_solutions(program)
    if result == program:
        raise ValueError(_MARKS)
    return result


def without_solutions(program: str) -> str:
    """Return ``program`` as :func:`template_of` does, also where there is no block. Raises ``ValueError``."""
    left = r'\1# TODO \2: \3\n\1raise NotImplementedError("\2 is to be filled in")\n'
    result = _BLOCK.sub(left, program)
    if "TODO-BEGIN" in result or "TODO-END" in result:
        raise ValueError(_MARKS)
    return result


def template_from(source: Path, name: str) -> str:
    """Return the template of a file; where that says ``source:function`` or ``source.py``, it has its own ``name``."""
    text = template_of(source.read_text(encoding="utf-8"))
    return re.sub(rf"(?:examples/)?\b{source.stem}(?=\.py|:\w)", Path(name).stem, text)


def main() -> None:
    """Write all templates."""
    TEMPLATES.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        (TEMPLATES / name).write_text(template_from(source, name), encoding="utf-8")
        print(f"wrote {TEMPLATES / name}")


if __name__ == "__main__":
    main()
