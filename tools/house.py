"""The yardsticks of this code base, and the bars that ``make check`` holds: ``python -m tools.house``.

Everything is read from the sources; nothing is imported. Bars only fall; docs/architecture.md has
them beside their targets.
"""

import argparse
import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: Rooms beside the core: sub-packages that the core never names.
ADDONS = ("imitation", "league", "competition", "show", "search", "walkers", "ops", "offpolicy", "serve")
#: Rooms in which comments explain formulas, statistics and kernels.
DENSE = ("learn", "models", "fast", "training")
#: Public modules of Ray begin with one of these; each part of a name that begins with an underscore is private.
_PRIVATE_OF_RAY = re.compile(r"\bray(?:\.\w+)*\._(?!_)\w+")
#: Most modules and lines of ours that a module may import, itself included.
CLOSURES = {"multigrid_rl.training.loop": (62, 10_500), "multigrid_rl.learn.update": (18, 3_200)}
#: Most lines, modules and classes of the package; lines of a file and of a function.
LINES, MODULES, CLASSES, FILE_LINES, FUNCTION_LINES = 47_396, 232, 479, 400, 74
#: Most names of classes and of modules that several places define, and imports inside functions.
SHARED_CLASSES, SHARED_MODULES, LATE_IMPORTS = 0, 0, 121


class Module(NamedTuple):
    """A parsed source file."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.text.count("\n")


def modules_of(package: Path) -> dict[str, Module]:
    """Parse all modules of a package, by their dotted names."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, text, ast.parse(text))
    return found


def imports_of(module: Module) -> Iterator[str]:
    """Yield the dotted names that a module imports when it is imported: none inside of functions or for types alone."""
    stack: list[ast.AST] = list(module.tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            stack += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            stack += ast.iter_child_nodes(node)


def closure_of(modules: dict[str, Module], start: str) -> set[str]:
    """Return the modules that importing ``start`` imports, itself and the packages above them included."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in found or name not in modules:
            continue
        found.add(name)
        waiting += [".".join(name.split(".")[:k]) for k in range(1, name.count(".") + 1)]
        waiting += imports_of(modules[name])
    return found


def functions_of(modules: dict[str, Module]) -> list[int]:
    """Return the length of every function in lines."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for module in modules.values() for node in ast.walk(module.tree) if isinstance(node, kinds)]
    return sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def shared(names: Iterable[str]) -> int:
    """Return how many names occur more than once."""
    return sum(count > 1 for count in Counter(names).values())


def late_imports(tree: ast.Module) -> int:
    """Return how many imports stand inside functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {node for function in functions for node in ast.walk(function)}
    return sum(isinstance(node, ast.Import | ast.ImportFrom) for node in inside)


def comment_share(modules: dict[str, Module], rooms: tuple[str, ...]) -> tuple[float, float]:
    """Return the share of lines that are comments, and the URLs in a thousand lines."""
    chosen = [module for module in modules.values() if module.name.split(".")[1:2] in [[room] for room in rooms]]
    lines = max(sum(module.lines for module in chosen), 1)
    comments = sum(len(re.findall(r"^\s*#", module.text, re.MULTILINE)) for module in chosen)
    urls = sum(len(re.findall(r"https?://", module.text)) for module in chosen)
    return comments / lines, 1000 * urls / lines


def private_names_of_ray(modules: dict[str, Module]) -> list[str]:
    """Return the private names of Ray's that are imported or spelt out."""
    found: set[str] = set()
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray":
                found |= {
                    f"{node.module}.{alias.name}" for alias in node.names if "._" in f"{node.module}.{alias.name}"
                }
        found |= set(_PRIVATE_OF_RAY.findall(module.text))
    return sorted(found)


def rows_of(package: Path) -> Iterator[tuple[str, float, float | None]]:
    """Yield name, value and bar (``None``: none) of every yardstick; a bar is the most that is allowed."""
    modules = modules_of(package)
    addons = {name for name in modules if name.split(".")[1:2] and name.split(".")[1] in ADDONS}
    yield "lines of the package", sum(module.lines for module in modules.values()), LINES
    yield "of them the core's", sum(module.lines for name, module in modules.items() if name not in addons), None
    yield "modules", len(modules), MODULES
    nodes = [node for module in modules.values() for node in ast.walk(module.tree)]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    yield "classes", len(classes), CLASSES
    yield "names of classes that several places define", shared(classes), SHARED_CLASSES
    files = [module.path.stem for module in modules.values() if not module.path.stem.startswith("__")]
    yield "names of modules that several rooms have", shared(files), SHARED_MODULES
    yield "imports inside functions", sum(late_imports(module.tree) for module in modules.values()), LATE_IMPORTS
    yield "lines of the longest file", max(module.lines for module in modules.values()), FILE_LINES
    lengths = functions_of(modules)
    yield "lines of a function, median", statistics.median(lengths), 7
    yield "of one in ten at least", lengths[int(0.9 * len(lengths))], 22
    yield "of the longest", lengths[-1], FUNCTION_LINES
    for start, (most_modules, most_lines) in CLOSURES.items():
        found = closure_of(modules, start)
        if found:
            yield f"modules that {start} imports", len(found), most_modules
            yield f"lines that {start} imports", sum(modules[name].lines for name in found), most_lines
            yield f"add-ons' modules that {start} imports", len(found & addons), 0
    comments, urls = comment_share(modules, DENSE)
    yield f"comments in {', '.join(DENSE)}, % of lines", round(100 * comments, 1), None
    yield "links in them in a thousand lines", round(urls, 1), None
    yield "private names of Ray's", len(private_names_of_ray(modules)), None


def main() -> None:
    """Print all yardsticks; leave with status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, default=Path("multigrid_rl"), help="folder of the package")
    missed = False
    for name, value, bar in rows_of(parser.parse_args().package):
        over = bar is not None and value > bar
        missed |= over
        print(f"{name:<58}{value:>10,g}" + ("" if bar is None else f"  (at most {bar:,g}){' MISSED' * over}"))
    sys.exit(missed)


if __name__ == "__main__":
    main()
