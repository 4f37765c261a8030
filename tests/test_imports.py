"""Who may import whom, read from the sources: the layers of docs/structure.md, and what loads without PyTorch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import triforce

ROOT = Path(triforce.__file__).parent
STRUCTURE = Path(__file__).parent.parent / "docs" / "structure.md"

# Each module or package of ours up to the drafters, from below, and which others of ours it may import.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "statistics": set(),
    "tokens": set(),
    "atomic": set(),
    "checks": {"errors"},
    "config": {"checks", "errors", "tokens"},
    "dtypes": {"checks"},
    "completion": {"statistics"},
    "report": {"completion", "statistics"},
    "controls": {"config", "errors", "tokens"},
    "sampling": {"config", "controls.base", "errors", "tokens"},
    "speculative": {"sampling", "statistics", "tokens"},
    "native": {"errors"},
    "attention": {"native"},
    "machine": {"attention", "native"},
    "policies": {"attention", "checks"},
    "caches": {"attention", "config", "policies", "tokens"},
    "models": {"config", "dtypes", "errors", "caches.base", "attention.rope", "native"},
    "text": {"errors", "models.gguf_file"},
    "session_file": {"atomic", "caches", "errors", "tokens"},
    "pull": {"errors"},
    "generation_config": {"checks", "config", "errors"},
    "logprobs": {"completion", "text"},
    "stopping": {"config", "errors", "text", "tokens"},
    "runner": {"models", "caches", "statistics", "tokens"},
    "drafters": {"speculative", "sampling", "statistics", "tokens"},
}
# Those that bring them together: each may import all layers, and those of these that come before it.
ABOVE = ("parts", "methods", "stream", "engine", "session", "conversation", "model", "cli")
MAKES = {"engine": {"session"}}  # what a module makes of itself on request, and names in functions only
TORCH_FREE = (
    *(
        "errors",
        "statistics",
        "tokens",
        "checks",
        "dtypes",
        "config",
        "methods",
        "completion",
        "report",
        "pull",
        "atomic",
    ),
    "generation_config",
)
TORCH_ONLY = ("native", "attention", "policies")  # besides what is ours and the standard library


def files_of(layer: str) -> list[Path]:
    package = ROOT / layer
    return sorted(package.rglob("*.py")) if package.is_dir() else [ROOT / f"{layer}.py"]


def imports_of(file: Path) -> Iterator[str]:
    """The modules that `file` names, in functions and for type checking too."""
    return modules_in(ast.parse(file.read_text(encoding="utf-8")), file)


def modules_in(tree: ast.AST, file: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            assert node.module is not None
            own = ROOT.joinpath(*node.module.split(".")[1:])
            for alias in node.names:  # `from triforce.pull import index` names a module
                found = (own / f"{alias.name}.py").exists() or (own / alias.name).is_dir()
                is_module = node.module.split(".")[0] == "triforce" and found
                yield f"{node.module}.{alias.name}" if is_module else node.module


def allowed(layer: str) -> set[str]:
    """What `layer` may import of ours, itself included."""
    if layer in LAYERS:
        return {layer, *LAYERS[layer]}
    return {layer, *LAYERS, *ABOVE[: ABOVE.index(layer)], *MAKES.get(layer, ())}


def is_allowed(module: str, layer: str) -> bool:
    name = module.removeprefix("triforce.")
    return any(name == other or name.startswith(f"{other}.") for other in allowed(layer))


@pytest.mark.parametrize("layer", [*LAYERS, *(layer for layer in ABOVE if layer != "cli")])
def test_a_layer_imports_only_those_below_it(layer: str) -> None:
    files = files_of(layer)
    assert files
    for file in files:
        ours = [name for name in imports_of(file) if name.split(".")[0] == "triforce"]
        assert [name for name in ours if not is_allowed(name, layer)] == [], file


def test_layers_are_listed_from_below() -> None:
    seen: set[str] = set()
    for layer, others in LAYERS.items():
        assert {other.split(".")[0] for other in others} <= seen, layer
        seen.add(layer)


def test_every_module_and_package_has_one_layer_and_a_line_in_the_docs() -> None:
    ours = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    ours -= {"__init__", "__main__"}
    assert sorted([*LAYERS, *ABOVE]) == sorted(ours), "give it a line in LAYERS, or its place in ABOVE"
    table = re.findall(r"^\| (`.*?) \|", STRUCTURE.read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for cell in table for name in re.findall(r"`(\w+)/?`", cell)]
    assert sorted(named) == sorted(ours), "give it its sentence in the table of docs/structure.md"


def test_what_a_module_makes_is_imported_in_functions_only() -> None:
    for layer, made in MAKES.items():
        for file in files_of(layer):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            top = ast.Module([node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
            assert not {f"triforce.{name}" for name in made} & set(modules_in(top, file)), file


@pytest.mark.parametrize("layer", TORCH_ONLY)
def test_kernels_and_policies_need_only_torch(layer: str) -> None:
    for file in files_of(layer):
        outside = {name.split(".")[0] for name in imports_of(file)} - {"triforce"} - sys.stdlib_module_names
        assert outside <= {"torch"}, file


@pytest.mark.parametrize("layer", TORCH_FREE)
def test_settings_and_records_know_no_tensor(layer: str) -> None:
    for file in files_of(layer):
        assert "torch" not in {name.split(".")[0] for name in imports_of(file)}, file


@pytest.mark.parametrize("module", ["triforce", "triforce.cli", "triforce.config", "triforce.pull"])
def test_importing_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_every_public_name_is_there_and_is_found_by_its_name() -> None:
    from triforce import Conversation, Session

    assert (Session.__module__, Conversation.__module__) == ("triforce.session", "triforce.conversation")
    assert all(getattr(triforce, name) is not None for name in triforce.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Sesion'"):
        triforce.Sesion  # noqa: B018


def test_a_forbidden_import_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "peeking.py"
    file.write_text("def f():\n    from triforce.models.decoder import Decoder\n    import triforce.engine\n")
    seen = set(imports_of(file))
    assert seen == {"triforce.models.decoder", "triforce.engine"}
    assert not any(is_allowed(name, "drafters") for name in seen)
    assert not is_allowed("triforce.session", "stream")
    assert not is_allowed("triforce", "engine")
