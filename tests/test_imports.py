"""Who may import whom, read from the sources: the layers of docs/structure.md, and what loads without PyTorch."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import triforce

ROOT = Path(triforce.__file__).parent

# A module or package of ours, and which others of ours it may import. Below engine and methods none is left out.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "statistics": set(),
    "tokens": set(),
    "atomic": set(),
    "checks": {"errors"},
    "config": {"checks", "errors", "tokens"},
    "completion": {"statistics"},
    "report": {"completion", "statistics"},
    "controls": {"config", "errors", "tokens"},
    "sampling": {"config", "controls.base", "errors", "tokens"},
    "speculative": {"sampling", "statistics", "tokens"},
    "native": {"errors"},
    "attention": {"native"},
    "machine": {"attention", "native"},
    "policies": {"attention", "errors"},
    "caches": {"attention", "policies", "tokens"},
    "models": {"config", "errors", "caches.base", "attention.rope", "native"},
    "text": {"errors", "models.gguf_file"},
    "session_file": {"atomic", "caches", "errors", "tokens"},
    "pull": {"errors"},
    "generation_config": {"checks", "config", "errors"},
    "logprobs": {"completion", "text"},
    "stopping": {"config", "errors", "text", "tokens"},
    "runner": {"models", "caches", "statistics", "tokens"},
    "drafters": {"speculative", "sampling", "statistics", "tokens"},
}
TORCH_FREE = ("errors", "statistics", "tokens", "checks", "config", "completion", "report", "pull", "atomic")
TORCH_ONLY = ("native", "attention", "policies")  # besides what is ours and the standard library


def files_of(layer: str) -> list[Path]:
    package = ROOT / layer
    return sorted(package.rglob("*.py")) if package.is_dir() else [ROOT / f"{layer}.py"]


def imports_of(file: Path) -> Iterator[str]:
    """The modules that `file` names, in functions and for type checking too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            assert node.module is not None
            own = ROOT.joinpath(*node.module.split(".")[1:])
            for alias in node.names:  # `from triforce.pull import index` names a module
                is_module = node.module.startswith("triforce") and (own / f"{alias.name}.py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module


def is_allowed(module: str, layer: str) -> bool:
    name = module.removeprefix("triforce.")
    return any(name == other or name.startswith(f"{other}.") for other in {layer, *LAYERS[layer]})


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_those_below_it(layer: str) -> None:
    files = files_of(layer)
    assert files
    for file in files:
        ours = [name for name in imports_of(file) if name.split(".")[0] == "triforce"]
        assert [name for name in ours if not is_allowed(name, layer)] == [], file


def test_every_module_below_the_engine_has_a_layer() -> None:
    above = {
        "engine",
        "methods",
        "stream",
        "cli",
        "server",
        "bench",
        "controller",
        "tuning",
        "model",
        "session",
        "conversation",
        "transformers_settings",
    }
    names = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert names - {"__init__", "__main__"} - above <= set(LAYERS), "give it a line in LAYERS, or place it above"


def test_nothing_below_the_engine_imports_it() -> None:
    above = {"triforce", "triforce.engine", "triforce.stream", "triforce.methods", "triforce.cli"}
    for layer in LAYERS:
        for file in files_of(layer):
            assert not above & set(imports_of(file)), file


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
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist yet")
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_forbidden_import_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "peeking.py"
    file.write_text("def f():\n    from triforce.models.decoder import Decoder\n    import triforce.engine\n")
    seen = set(imports_of(file))
    assert seen == {"triforce.models.decoder", "triforce.engine"}
    assert not any(is_allowed(name, "drafters") for name in seen)
