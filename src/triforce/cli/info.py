"""`triforce info`: what a model is, from its header alone."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from triforce.cli.options import fetch_model

if TYPE_CHECKING:
    import torch

    from triforce.models import ModelConfig
    from triforce.models.family import WeightNames
    from triforce.models.matrix import Filed

SUMMARY = "show what a model is, without loading its weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model."""
    parser.add_argument("model", metavar="MODEL", help="a known name, a model directory, a .gguf file or a hub id")


def run(args: argparse.Namespace) -> int:
    """Print one line per property."""
    path = Path(fetch_model(args.model))
    for name, value in _properties(path, _read_config(path)):
        print(f"{name:14} {value}")
    return 0


def _read_config(path: Path) -> ModelConfig:
    from triforce.models.config_json import config_from_directory
    from triforce.models.gguf_file import GgufFile
    from triforce.models.gguf_model import config_from_gguf

    config, _ = config_from_directory(path) if path.is_dir() else config_from_gguf(GgufFile(path))
    return config


def _properties(path: Path, config: ModelConfig) -> list[tuple[str, str]]:
    values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    window = f"{config.sliding_window:,} tokens" if config.sliding_window else "none"
    scaling = config.rope_scaling
    scaled = f" ({scaling.kind} from {config.original_max_position:,})" if scaling and scaling.factor > 1 else ""
    return [
        ("architecture", config.family),
        ("parameters", f"{_num_parameters(config):,}"),
        ("layers", f"{config.num_layers}, hidden size {config.hidden_size:,}, inner size {config.intermediate_size:,}"),
        ("heads", f"{config.num_heads}, {config.num_kv_heads} of keys and values, dimension {config.head_dim}"),
        ("context", f"{config.max_position:,} tokens{scaled}"),
        ("window", window),
        ("KV cache", f"{2 * values:,} bytes per token in 16 bits, {4 * values:,} in float32"),
        ("vocabulary", f"{config.vocab_size:,} tokens"),
        ("file", f"{path} ({_num_bytes(path) / 1e6:,.1f} MB)"),
    ]


def _num_parameters(config: ModelConfig) -> int:
    """Counted on tensors without memory, gathered as the loader gathers the real ones."""
    import torch

    from triforce.models.weights import Placement, gather

    shapes = _Shapes()
    gather(config, shapes, Placement(torch.device("meta"), torch.float32))
    return shapes.num_parameters


class _Shapes:
    """A checkpoint of the right shapes and no values, which counts what is read."""

    def __init__(self) -> None:
        from triforce.models.family import HUGGINGFACE_NAMES

        self.names: WeightNames = HUGGINGFACE_NAMES
        self.num_parameters = 0

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An empty tensor of `shape`."""
        import torch

        del name
        self.num_parameters += math.prod(shape)
        return torch.empty(shape, dtype=dtype, device="meta")

    def read_filed(self, name: str, shape: tuple[int, ...]) -> Filed:
        """Never asked for: there is no file."""
        raise AssertionError(name, shape)


def _num_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
