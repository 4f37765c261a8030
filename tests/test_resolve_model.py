"""What a user calls a model becomes a path, or one clear line. No hub is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from triforce.errors import DownloadError, ModelError
from triforce.pull import resolve_model


def no_network(*_: object, **__: object) -> str:
    raise AssertionError("the network was touched")


def test_a_known_model_resolves_to_its_cached_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIFORCE_CACHE", str(tmp_path))
    path = tmp_path / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir()
    path.touch()
    assert resolve_model("smollm2") == path


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "._model.gguf").touch()
    (tmp_path / "folder.gguf").mkdir()
    assert resolve_model(tmp_path) == tmp_path / "model.gguf"
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ModelError, match=r"holds 2 GGUF files: name one of them, as .*model\.gguf"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").touch()
    assert resolve_model(tmp_path) == tmp_path


def test_paths_resolve_to_themselves(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model.gguf").touch()
    for path in (tmp_path / "model", tmp_path / "model.gguf"):
        assert resolve_model(str(path)) == path


@pytest.mark.parametrize("name", ["nope", "a/b/c", "org/missing.gguf", "./org/name", "/no/where", "", "shakespeare"])
def test_anything_else_is_a_model_error_that_says_what_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"a \.gguf file, a hub id such as org/name, or one of these names: smollm2"):
        resolve_model(name)


def test_file_of_another_kind_is_a_model_error(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match="is not a model"):
        resolve_model(str(tmp_path / "model.bin"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[list[str]], None]:
    """A hub whose every repository holds the files given."""

    def offer(files: list[str]) -> None:
        def snapshot(_repo: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
            folder = tmp_path / "snapshot"
            folder.mkdir()
            kept = huggingface_hub.utils.filter_repo_objects(
                files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
            )
            for name in kept:
                (folder / name).touch()
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)

    return offer


def test_hub_snapshot_holds_only_settings_tokeniser_and_safetensors(hub: Callable[[list[str]], None]) -> None:
    wanted = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    wanted |= {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "special_tokens_map.json"}
    unwanted = ["pytorch_model.bin", "model.py", "consolidated.safetensors", "onnx/model.safetensors", "README.md"]
    hub([*wanted, *unwanted, "original/config.json", "training_args.bin"])
    assert {path.name for path in resolve_model("org/name").iterdir()} == wanted


@pytest.mark.parametrize(
    ("files", "message"),
    [(["model.safetensors"], "no config.json"), (["config.json", "pytorch_model.bin"], "no safetensors weights")],
)
def test_hub_repositories_that_cannot_serve_are_model_errors(
    hub: Callable[[list[str]], None], files: list[str], message: str
) -> None:
    hub(files)
    with pytest.raises(ModelError, match=message):
        resolve_model("org/name")


class _Response:
    headers: dict[str, str] = {}  # noqa: RUF012
    request = None
    status_code = 403


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (lambda: errors.GatedRepoError("no", response=_Response()), "gated; accept its terms"),  # type: ignore[arg-type]
        (lambda: errors.RepositoryNotFoundError("no", response=_Response()), "nor a model on the hub"),  # type: ignore[arg-type]
        (lambda: errors.LocalEntryNotFoundError("no"), "cannot reach the hub"),
        (
            lambda: OSError(28, "No space left on device"),
            r"cannot keep org/name in .*hub \(No space left on device\); free space, or set HF_HOME",
        ),
    ],
)
def test_hub_failures_are_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], message: str
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(DownloadError, match=message) as caught:
        resolve_model("org/name")
    assert "\n" not in str(caught.value)
