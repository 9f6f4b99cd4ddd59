"""``python -m tests.changed``: the tests of what this branch has changed, by the imports.

A test belongs to a module if it imports it, or a module that imports it in turn; a task of the engines is imported by
whoever sends it by its name. Files that differ from the branch ``main`` count, committed or not. ``--list`` prints the
files of tests and runs nothing; all other options are pytest's.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["Imports", "changed_files", "concerned_by", "main"]

ROOT = Path(__file__).parents[1]
#: What is not a module -> the tests that read it.
_READ_BY = {
    "README.md": "tests/docs tests/repository",
    "CHANGELOG.md": "tests/docs",
    "CONTRIBUTING.md": "tests/docs",
    "docs": "tests/docs",
    "benchmarks": "tests/repository/test_benchmarks.py",
    "binder": "tests/repository",
    "pyproject.toml": "tests/repository tests/test_flow.py",
    "setup.py": "tests/repository/test_wheel.py",
}


class Imports:
    """Who imports whom, in a package and its tests.

    Names that a package's ``__init__`` only passes on lead to the modules that have them.

    Parameters
    ----------
    root : Path
        Folder of the package and of ``tests``.
    package : str
    """

    def __init__(self, root: Path, package: str = "xpulab") -> None:
        self._root = root
        support = sorted((root / "tests" / "support").glob("*.py"))
        files = [*sorted((root / package).rglob("*.py")), *sorted((root / "tests").rglob("*.py"))]
        self._names = {self._name(file): file for file in files} | {file.stem: file for file in support}
        nodes = {file: list(self._nodes(ast.parse(file.read_text()))) for file in files}
        self._passed_on = {
            name: self._passed_on_by(nodes[file]) for name, file in self._names.items() if file.name == "__init__.py"
        }
        senders = defaultdict(set)
        for file in (file for file in files if package in file.parts):
            for call in (node for node in nodes[file] if isinstance(node, ast.Call)):
                for node in call.args:
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        senders[node.value].add(file)
        #: File -> the files that import it.
        self.importers: dict[Path, set[Path]] = defaultdict(set)
        for file in files:
            for imported in self._imported(nodes[file]):
                if imported != root / package / "__init__.py":  # which imports nothing before it is asked for a name
                    self.importers[imported].add(file)
            for task in self._tasks(nodes[file]):
                self.importers[file] |= senders[task]

    def _name(self, file: Path) -> str:
        return ".".join(file.relative_to(self._root).with_suffix("").parts).removesuffix(".__init__")

    @classmethod
    def _nodes(cls, tree: ast.AST) -> Iterator[ast.AST]:
        """The nodes of a tree, without what only a type checker sees."""
        yield tree
        for node in ast.iter_child_nodes(tree):
            if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                yield from cls._nodes(node)

    def _passed_on_by(self, nodes: list[ast.AST]) -> dict[str, str]:
        """Return the names that an ``__init__`` passes on -> their module."""
        found: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[alias.asname or alias.name] = inner if inner in self._names else node.module
        return found

    @staticmethod
    def _tasks(nodes: list[ast.AST]) -> Iterator[str]:
        """Names of the tasks that a module registers."""
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "task" and node.args:
                name = node.args[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value

    def _imported(self, nodes: list[ast.AST]) -> Iterator[Path]:
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self._names:
                        yield self._names[alias.name]
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield from self._home(node.module, alias.name)

    def _home(self, module: str, name: str) -> Iterator[Path]:
        """The file that has a name of a module."""
        if f"{module}.{name}" in self._names:
            yield self._names[f"{module}.{name}"]
        elif (home := self._passed_on.get(module, {}).get(name)) in self._names:
            yield self._names[home]
        elif module in self._names:
            yield self._names[module]

    def affected_by(self, files: Iterable[Path]) -> set[Path]:
        """Return these files, and all that import them, directly or not."""
        found: set[Path] = set()
        ahead = list(files)
        while ahead:
            if (file := ahead.pop()) not in found:
                found.add(file)
                ahead.extend(self.importers[file])
        return found


def changed_files(root: Path, base: str = "main") -> list[str]:
    """Return the files that differ from a branch, committed or not, as paths from the root."""
    commands = (
        ["git", "diff", "--name-only", "--merge-base", base],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    texts = [subprocess.run(words, cwd=root, check=True, capture_output=True, text=True).stdout for words in commands]
    return sorted({line for text in texts for line in text.splitlines()})


def concerned_by(changed: Iterable[str], root: Path) -> list[str]:
    """Return the files and folders of tests for changed files, as paths from the root."""
    chosen: set[Path] = set()
    sources: set[Path] = set()
    for name in changed:
        file = root / name
        if file.suffix == ".ipynb":
            chosen |= {file} if file.exists() else set()
        elif file.suffix == ".py" and ("xpulab" in Path(name).parts[:1] or "tests" in Path(name).parts[:1]):
            sources.add(file)
        elif name.startswith("xpulab/"):  # scripts, styles and tables are read by the modules beside them
            sources |= set(file.parent.glob("*.py"))
        for start, readers in _READ_BY.items():
            if name == start or name.startswith(f"{start}/"):
                chosen |= {root / reader for reader in readers.split()}
    affected = Imports(root).affected_by(sources)
    chosen |= {file for file in affected if file.name.startswith("test_") and file.exists()}
    chosen |= {file.parent for file in sources if file.name == "conftest.py"}
    known = {path for path in chosen if not chosen & set(path.parents)}
    return sorted(str(path.relative_to(root)) for path in known)


def main() -> int:
    """Run these tests, and return pytest's exit status."""
    options = [word for word in sys.argv[1:] if word != "--list"]
    tests = concerned_by(changed_files(ROOT), ROOT)
    print("\n".join(tests) or "no test is concerned", flush=True)
    if "--list" in sys.argv[1:] or not tests:
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
