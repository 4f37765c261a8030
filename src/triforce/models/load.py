"""Loads a model from a directory or a GGUF file; `triforce.pull` finds these. Knows nothing of what is inside them."""

from __future__ import annotations

from pathlib import Path

import torch

from triforce.errors import UsageError, shown
from triforce.models.config import RopeScaling
from triforce.models.decoder import Decoder
from triforce.models.weights import Placement

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CACHE_DTYPES = {**DTYPES, "int8": torch.int8}  # of keys and values kept


def load_model(
    path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    rope_scaling: RopeScaling | None = None,
) -> Decoder:
    """The model in a directory or a .gguf file, ready to run.

    `dtype` of the weights is float32, bfloat16, float16 or auto: as they lie in the file where native kernels serve,
    else float32 on a CPU and bfloat16 elsewhere. `device` is auto or a name torch knows. Raises `ModelError` or, for an
    argument that cannot be honoured, `UsageError`.
    """
    placement = Placement(_device(device), parse_dtype(dtype))
    path = Path(path)
    if path.is_dir():
        from triforce.models.huggingface import load_directory

        return load_directory(path, placement, rope_scaling)
    from triforce.models.gguf_file import GgufFile
    from triforce.models.gguf_model import load_gguf

    return load_gguf(GgufFile(path), placement, rope_scaling)


def _device(name: str | torch.device) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UsageError(f"device {shown(name)} is unknown: use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {shown(name)} is not supported: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device {name} is not there ({torch.cuda.device_count()} CUDA devices): use auto or cpu")
    return device


def parse_dtype(name: str | torch.dtype) -> torch.dtype | None:
    """The dtype of weights called `name`, None for "auto"; `UsageError` for an unknown one."""
    return _dtype("dtype", name, DTYPES)


def parse_cache_dtype(name: str | torch.dtype) -> torch.dtype | None:
    """The dtype of keys and values called `name`, None for "auto"; `UsageError` for an unknown one."""
    return _dtype("cache dtype", name, CACHE_DTYPES)


def _dtype(what: str, given: str | torch.dtype, known: dict[str, torch.dtype]) -> torch.dtype | None:
    name = str(given).removeprefix("torch.") if isinstance(given, torch.dtype) else given
    if not isinstance(name, str) or (name != "auto" and name not in known):
        raise UsageError(f"{what} {shown(given)} is unknown: use auto, {', '.join(known)}")
    return known.get(name)
