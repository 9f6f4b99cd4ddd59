"""The package before its first import: the message for other Pythons, the pins, and what README.md and docs/ list."""

from __future__ import annotations

import json
import pkgutil
import re
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

import xpulab
from xpulab import cli, doctor, magics

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ESTIMATORS = (ROOT / "docs" / "guide" / "estimators.md").read_text()
COMMANDS = (ROOT / "docs" / "guide" / "commands.md").read_text()
DOCUMENTS = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")
]
# docs/ also has copies of documents and generated pages, which git ignores.
PAGES = [
    path
    for path in (ROOT / "docs").rglob("*.md")
    if path.relative_to(ROOT / "docs").parts[0] not in ("benchmarks", "notebooks", "project")
]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
SETUP = runpy.run_path(str(ROOT / "setup.py"))


def commands() -> list[str]:
    """Return the README's commands that make their own environment."""
    return re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)


def table(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table with this first header."""
    rows = text.partition(f"| {header} |")[2].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def subcommands(parser: Any) -> set[str]:
    return set(next(action for action in parser._actions if action.dest == "command").choices)


@pytest.mark.parametrize("version", [(3, 10, 0), (3, 11, 7), (3, 12, 1), (3, 14, 5)])
def test_setup_accepts_a_supported_python(version: tuple[int, ...]) -> None:
    assert SETUP["complaint"]("cpython", version) == ""


@pytest.mark.parametrize(
    ("implementation", "version", "named"),
    [
        ("cpython", (3, 15, 0), "CPython 3.15.0"),
        ("cpython", (3, 9, 18), "CPython 3.9.18"),
        ("cpython", (4, 0, 0), "CPython 4.0.0"),
        ("pypy", (3, 10, 14), "pypy 3.10.14"),
    ],
)
def test_setup_on_another_python_says_what_to_type(implementation: str, version: tuple[int, ...], named: str) -> None:
    message = SETUP["complaint"](implementation, version)
    assert f"xpulab needs CPython 3.10 to 3.14, and this is {named}." in message
    assert "-m venv --clear .venv" in message
    assert ".venv/bin/pip install ." in message


def test_setup_pip_doctor_and_classifiers_name_the_same_pythons() -> None:
    required = SpecifierSet(re.search(r'^requires-python = "(.*)"', PYPROJECT, re.MULTILINE)[1])  # type: ignore[index]
    candidates = [(major, minor) for major in (2, 3, 4) for minor in range(30)]
    by_pip = [(a, b) for a, b in candidates if required.contains(f"{a}.{b}.5")]
    by_setup = [version for version in candidates if not SETUP["complaint"]("cpython", version)]
    classified = re.findall(r'"Programming Language :: Python :: (\d)\.(\d+)"', PYPROJECT)
    assert by_pip == by_setup == list(doctor._PYTHONS) == [(int(a), int(b)) for a, b in classified]


def test_every_dependency_has_its_reason() -> None:
    listed = PYPROJECT.partition("\ndependencies = [")[2].partition("\n]")[0]
    lines = [line for line in listed.splitlines() if line.strip().startswith('"')]
    assert len(lines) > 15
    assert [line for line in lines if not re.search(r'",\s+# \w', line)] == []


def test_the_readme_has_two_commands_that_do_all_of_their_set_up() -> None:
    demo, tests = commands()
    assert demo.endswith(" && .venv/bin/xpulab demo")
    assert tests.endswith(" && .venv/bin/pytest -n 3")
    for command in (demo, tests):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_the_changelog_has_the_version_with_its_date() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(xpulab.__version__)}\] - 20\d\d-\d\d-\d\d$", changes, re.MULTILINE)


def test_the_readme_is_two_screens_long() -> None:
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("path", [*DOCUMENTS, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_links_to_is_there(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", [*DOCUMENTS, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_other_sites_are_whole(path: Path) -> None:
    links = re.findall(r"https?:[^\s<>`\"]*", path.read_text())
    assert [link for link in links if not re.match(r"https://[\w.-]+\.[a-z]{2,}(/|\)|$)", link)] == []


@pytest.mark.parametrize("text", [README, ESTIMATORS], ids=["README.md", "estimators.md"])
def test_the_tables_list_the_estimators_there_are(text: str) -> None:
    packages = [f"xpulab.{found.name}" for found in pkgutil.iter_modules(xpulab.__path__) if found.ispkg]
    others = ("xpulab.acceleration", "xpulab.widgets")
    public = {name: getattr(import_module(name), "__all__", None) for name in packages if name not in others}
    listed: dict[str, list[str]] = {}
    for module, names, *_ in table(text, "module"):
        listed.setdefault(module.strip("`"), []).extend(re.findall(r"`(\w+)`", names))
    for module in ("xpulab.torch", "xpulab.spmd"):  # without `__all__`: the README has a row for each
        listed.pop(module, None)
    expected = {module: sorted(names) for module, names in public.items() if names is not None}
    assert {module: sorted(names) for module, names in listed.items()} == expected


def test_the_guide_lists_the_subcommands_there_are() -> None:
    rows = [(name.strip("`"), magic, command) for name, magic, command, _ in table(COMMANDS, "subcommand")]
    assert {name for name, magic, _ in rows if magic} == subcommands(magics.XPUMagics(None).parser())
    assert {name for name, _, command in rows if command} == subcommands(cli._parser())


def test_the_sizes_from_which_engines_pay_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "xpulab" / "acceleration" / "sizes.json").read_text())
    assert measured["machine"].startswith("2 cores")
    said = re.sub(
        r"\s+", " ", README.partition("On two cores, engines pay from about ")[2].partition("[benchmarks/]")[0]
    )
    found = re.findall(r"([\d.,]+)( million)?(?: numbers \(rows x columns\) on)? for ((?:`\w+`(?: and )?)+)", said)
    sizes = {
        name: float(number.replace(",", "")) * (1e6 if million else 1)
        for number, million, names in found
        for name in re.findall(r"`(\w+)`", names)
    }
    assert sizes == {name: pytest.approx(measured["sizes"][name]["fit"], rel=0.03) for name in sizes}
    assert len(sizes) == 5
