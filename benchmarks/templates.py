"""Fill-in templates for courses: from a program that works, what stands between its marks is left out.

    python -m benchmarks.templates

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
    "walker_reward_todo.py": _SOLUTIONS / "walker_reward.py",
}
_BLOCK = re.compile(r"^( *)# TODO-BEGIN (\w+): (.+)\n(?:.*\n)*?\1# TODO-END \2\n", re.MULTILINE)


def template_of(program: str) -> str:
    """Return ``program`` with a ``NotImplementedError`` in the place of each marked block.

    Raises:
        ValueError: no block, or a mark without its partner.
    """
    result, blocks = _BLOCK.subn(
        lambda found: f'{found[1]}# TODO {found[2]}: {found[3]}\n{found[1]}raise NotImplementedError("{found[2]}")\n',
        program,
    )
    if not blocks or "TODO-BEGIN" in result or "TODO-END" in result:
        raise ValueError("marks: expected pairs of TODO-BEGIN and TODO-END with the same name and depth")
    return result


def main() -> None:
    """Write all templates."""
    TEMPLATES.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        text = template_of(source.read_text(encoding="utf-8"))
        # Of programs and templates each knows its own name alone.
        (TEMPLATES / name).write_text(text.replace(source.name, name), encoding="utf-8")
        print(f"wrote {TEMPLATES / name}")


if __name__ == "__main__":
    main()
