"""What C takes, in Python's words: the structs of drivers.h and kernels.h field by field, and its functions' types.

`Kernels` compares sizes and limits with those of the library that it loads.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any

from torch import Tensor

MAX_DIM = 256  # of a head
MOST_QUERIES = 512  # query rows of one KV head
MOST_PARTS = 3  # formats in one matrix


class Attend(ctypes.Structure):
    """attend_args"""

    _fields_ = [
        *((name, c_void_p) for name in ("q", "keys", "values", "key_scales", "value_scales", "ancestors", "out")),
        *((name, c_int64) for name in ("rows", "head_stride", "window")),
        *((name, c_int32) for name in ("n", "heads", "kv_heads", "dim", "type")),
    ]


class Rotate(ctypes.Structure):
    """rotate_args"""

    _fields_ = [
        *(
            (name, c_void_p)
            for name in ("q", "k", "v", "cos", "sin", "rotated", "keys", "values", "key_scales", "value_scales")
        ),
        *((name, c_int64) for name in ("q_stride", "k_stride", "v_stride", "row", "head_stride")),
        *((name, c_int32) for name in ("n", "heads", "kv_heads", "dim", "width", "type")),
    ]


class Linear(ctypes.Structure):
    """linear_job; `in_` is its `in`"""

    _fields_ = [
        *((name, c_void_p) for name in ("x", "weights", "bias", "y")),
        *((name, c_int32) for name in ("type", "n", "accumulate")),
        *((name, c_int64) for name in ("in_", "out", "row_bytes", "y_stride")),
    ]


class Part(ctypes.Structure):
    """matrix_part"""

    _fields_ = [("weights", c_void_p), ("out", c_int64), ("row_bytes", c_int64), ("type", c_int32)]


class Matrix(ctypes.Structure):
    """matrix"""

    _fields_ = [
        ("parts", Part * MOST_PARTS),
        ("bias", c_void_p),
        ("in_", c_int64),
        ("out", c_int64),
        ("num_parts", c_int32),
    ]


class Layer(ctypes.Structure):
    """layer_weights"""

    _fields_ = [
        *((name, c_void_p) for name in ("attention_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
    ]


class Model(ctypes.Structure):
    """model_weights"""

    _fields_ = [
        ("layers", POINTER(Layer)),
        ("norm", c_void_p),
        *((name, c_int64) for name in ("hidden", "inner")),
        *((name, c_int32) for name in ("num_layers", "heads", "kv_heads", "dim")),
        ("eps", c_float),
    ]


class CacheRows(ctypes.Structure):
    """cache_rows"""

    _fields_ = [
        *((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales", "queries", "cos", "sin")),
        *((name, c_int64) for name in ("layer_stride", "head_stride", "row", "window")),
        *((name, c_int32) for name in ("width", "type")),
    ]


class Score(ctypes.Structure):
    """score_args"""

    _fields_ = [
        *((name, c_void_p) for name in ("q", "means", "scales", "scores")),
        *((name, c_int64) for name in ("mean_stride", "chunks")),
        *((name, c_int32) for name in ("layers", "n", "heads", "kv_heads", "dim")),
    ]


class Gather(ctypes.Structure):
    """gather_args; `from_` is its `from`"""

    _fields_ = [
        *((name, c_void_p) for name in ("from_", "to", "chunks")),
        *((name, c_int64) for name in ("from_stride", "to_stride", "chunk_bytes", "count")),
        ("heads", c_int32),
    ]


class Mean(ctypes.Structure):
    """mean_args"""

    _fields_ = [
        *((name, c_void_p) for name in ("keys", "key_scales", "means", "scales")),
        *((name, c_int64) for name in ("head_stride", "mean_stride", "begin", "end")),
        *((name, c_int32) for name in ("heads", "dim", "chunk", "type")),
    ]


# What triforce_size_of answers to 0, 1, 2, ...
STRUCTS = (Attend, Rotate, Linear, Part, Matrix, Layer, Model, CacheRows, Score, Gather, Mean)
SIZES = (*(ctypes.sizeof(struct) for struct in STRUCTS), MAX_DIM, MOST_QUERIES, -1)

# Results and arguments.
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "triforce_use": (c_char_p, (c_char_p,)),
    "triforce_threads": (c_int, ()),
    "triforce_size_of": (c_int64, (c_int,)),
    "triforce_attend": (c_int, (POINTER(Attend),)),
    "triforce_rotate_and_store": (None, (POINTER(Rotate),)),
    "triforce_linear": (None, (POINTER(Linear),)),
    "triforce_row_bytes": (c_int64, (c_int, c_int64)),
    "triforce_rms_norm": (None, (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float)),
    "triforce_silu_mul": (None, (c_void_p, c_void_p, c_int64, c_int64)),
    "triforce_dequantise": (None, (c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64)),
    "triforce_forward": (c_int, (POINTER(Model), POINTER(CacheRows), c_void_p, c_void_p, c_int)),
    "triforce_score_chunks": (c_int, (POINTER(Score),)),
    "triforce_gather_chunks": (None, (POINTER(Gather),)),
    "triforce_mean_chunks": (None, (POINTER(Mean),)),
}


def at(tensor: Tensor | None) -> int | None:
    """Where the tensor's first element lies, which C can read; null for None."""
    assert tensor is None or tensor.device.type == "cpu", tensor.device
    return None if tensor is None else tensor.data_ptr()
