"""Loads a directory in Hugging Face's layout: config.json and safetensors, whole or in shards. Never unpickles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triforce.errors import ModelError
from triforce.models.config import RopeScaling
from triforce.models.config_json import config_from_directory
from triforce.models.decoder import Decoder
from triforce.models.entries import read_json
from triforce.models.family import WeightNames
from triforce.models.matrix import KINDS, Filed
from triforce.models.weights import Placement, filed, gather

AGAIN = "download the model again"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs"
FLOATS = ("F64", "F32", "F16", "BF16")


def load_directory(directory: Path, placement: Placement, rope_scaling: RopeScaling | None = None) -> Decoder:
    """The model in `directory`. Raises `ModelError` when anything in it is missing, damaged or not supported."""
    config, family = config_from_directory(directory)
    if rope_scaling is not None:
        config = config.with_rope_scaling(rope_scaling)
    source = SafetensorsSource(directory, family.weight_names)
    return Decoder(config, gather(config, source, placement))


class SafetensorsSource:
    """The safetensors files of a directory as one checkpoint; shards are opened when first read."""

    def __init__(self, directory: Path, names: WeightNames) -> None:
        self.names = names
        self._directory = directory
        self._shards: dict[Path, tuple[Any, set[str]]] = {}
        self._places = _places(directory)

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Tensor `name` in `dtype`, on the CPU. Raises `ModelError`."""
        return self._read(name, shape).to(dtype)

    def read_filed(self, name: str, shape: tuple[int, ...]) -> Filed:
        """The bytes of matrix `name`; 64-bit weights are narrowed to 32. Raises `ModelError`."""
        tensor = self._read(name, shape)
        return filed(tensor if tensor.dtype in KINDS else tensor.float())

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        from safetensors import SafetensorError

        path = self._directory / WHOLE if self._places is None else self._places.get(name)
        if path is None:
            raise ModelError(f"{self._directory / INDEX}: tensor {name} is missing; {AGAIN}")
        shard, names = self._open(path)
        try:
            if name not in names:
                raise ModelError(f"{path}: tensor {name} is missing; {AGAIN} or use a complete checkpoint")
            view = shard.get_slice(name)
            found, kind = tuple(view.get_shape()), view.get_dtype()
            if found != shape:
                problem = f"tensor {name} has shape {list(found)}, config.json asks for {list(shape)}"
                raise ModelError(f"{path}: {problem}; {AGAIN}")
            if kind not in FLOATS:
                raise ModelError(
                    f"{path}: tensor {name} has type {kind}, which is not supported; use 16 or 32-bit weights"
                )
            tensor: Tensor = shard.get_tensor(name)
        except SafetensorError as error:
            raise _damaged(path, error) from None
        return tensor

    def _open(self, path: Path) -> tuple[Any, set[str]]:
        from safetensors import SafetensorError, safe_open

        if path not in self._shards:
            try:
                shard: Any = safe_open(path, framework="pt")
                self._shards[path] = shard, set(shard.keys())
            except FileNotFoundError:
                raise ModelError(f"{path}: no such file, though {INDEX} names it; {AGAIN}") from None
            except (SafetensorError, OSError) as error:
                raise _damaged(path, error) from None
        return self._shards[path]


def _places(directory: Path) -> dict[str, Path] | None:
    """Which shard holds each tensor; None when one file holds all."""
    if (directory / WHOLE).exists():
        return None
    index = directory / INDEX
    if not index.exists():
        raise _no_weights(directory)
    places = read_json(index).section("weight_map")
    files = {name: places.raw(name) for name in places}
    if not files or not all(isinstance(file, str) and Path(file).name == file for file in files.values()):
        raise ModelError(f"{index}: weight_map does not name files of this directory; {AGAIN}")
    return {name: directory / file for name, file in files.items()}


def _no_weights(directory: Path) -> ModelError:
    pickled = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in directory.glob(kind))
    if pickled:
        remedy = "save the model again as safetensors (save_pretrained in transformers)"
        return ModelError(f"{directory / pickled[0]}: pickled weights are never loaded, they can run code; {remedy}")
    return ModelError(
        f"{directory}: neither {WHOLE} nor {INDEX} in it; give a directory with safetensors or a .gguf file"
    )


def _damaged(path: Path, error: Exception) -> ModelError:
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            return ModelError(f"{path}: a git-lfs pointer in place of the weights; fetch them with `git lfs pull`")
    reason = str(error).splitlines()[0].removeprefix("Error while deserializing header: ")
    return ModelError(f"{path}: damaged or cut short ({reason}); {AGAIN}")
