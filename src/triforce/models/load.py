"""Loads a model from a directory or a GGUF file; `triforce.pull` finds these. Knows nothing of what is inside them."""

from __future__ import annotations

from pathlib import Path

import torch

from triforce.dtypes import CACHE_DTYPE_NAMES, DTYPE_NAMES, check_cache_dtype, check_dtype
from triforce.errors import UsageError, shown
from triforce.models.config import RopeScaling
from triforce.models.decoder import Decoder
from triforce.models.weights import Placement

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
CACHE_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in CACHE_DTYPE_NAMES}


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
    check_dtype(_name(name))
    return DTYPES.get(_name(name))


def parse_cache_dtype(name: str | torch.dtype) -> torch.dtype | None:
    """The dtype of keys and values called `name`, None for "auto"; `UsageError` for an unknown one."""
    check_cache_dtype(_name(name))
    return CACHE_DTYPES.get(_name(name))


def _name(dtype: str | torch.dtype) -> str:
    return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
