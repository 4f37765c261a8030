"""What is installed is whole: entry point, licence, declared dependencies, packages that setuptools finds."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import triforce

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "triforce"
EXTRAS = {"llguidance": ("grammar", "controls/guidance.py")}  # module: its extra, and the one file that imports it


def imported_modules(path: Path) -> set[str]:
    """The first names of everything that `path` imports, wherever it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def declared() -> set[str]:
    requirements = distribution("triforce").requires or []
    return {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in requirements if "extra ==" not in line}


def test_everything_imported_is_a_declared_dependency() -> None:
    imported = {name for path in SOURCE.rglob("*.py") for name in imported_modules(path)}
    foreign = imported - set(sys.stdlib_module_names) - {"triforce"}
    assert foreign <= declared() | set(EXTRAS)


@pytest.mark.parametrize("module", EXTRAS)
def test_a_dependency_that_not_everyone_needs_is_an_extra_imported_in_one_file(module: str) -> None:
    extra, file = EXTRAS[module]
    assert [path for path in SOURCE.rglob("*.py") if module in imported_modules(path)] == [SOURCE / file]
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(rf'^{extra} = \["{module}', settings, re.MULTILINE)
    assert re.search(rf'^dev = \[[^]]*"{module}', settings, re.MULTILINE), "the tests need it too"


def test_nothing_is_declared_in_vain() -> None:
    imported = {name for path in SOURCE.rglob("*.py") for name in imported_modules(path)}
    assert declared() <= imported
    assert not declared() & set(EXTRAS)


def test_the_demo_needs_no_development_tool() -> None:
    foreign = imported_modules(ROOT / "examples" / "demo.py") - set(sys.stdlib_module_names)
    assert foreign <= declared() | {"triforce"}


def test_the_command_and_the_licence_are_installed() -> None:
    installed = distribution("triforce")
    (command,) = [entry for entry in installed.entry_points if entry.group == "console_scripts"]
    assert (command.name, command.value) == ("triforce", "triforce.cli:process")
    assert command.load() is triforce.cli.process  # type: ignore[attr-defined]
    assert installed.metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_version_is_stated_once_and_the_changelog_knows_it() -> None:
    assert distribution("triforce").version == triforce.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{triforce.__version__}]" in changelog


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCE.rglob("*.py")}), ids=lambda path: path.name)
def test_every_folder_of_modules_is_a_package(folder: Path) -> None:
    assert (folder / "__init__.py").is_file()
