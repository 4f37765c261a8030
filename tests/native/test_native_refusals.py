"""What the native kernels could not read is refused in Python, and where there are none PyTorch serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from native_cases import BUILT, blocks, normal

from triforce.attention.int8 import quantise
from triforce.attention.rope import Rope
from triforce.errors import UsageError
from triforce.native import NARROW, Kernels, kernels, library, serves_attention, serves_means, why_missing

pytestmark = pytest.mark.skipif(not BUILT, reason="native kernels are not built")


def test_misshaped_arguments_are_refused_before_any_memory_is_touched(native: Kernels) -> None:
    weights, _ = blocks("Q4_1", 8, 64)
    y = torch.zeros(1, 8)
    for x, kind, out in (
        (torch.zeros(1, 96), 3, y),  # another width
        (torch.zeros(1, 64), 8, y),  # another format
        (torch.zeros(1, 64), 99, y),  # no format
        (torch.zeros(1, 64), 3, torch.zeros(1, 9)),  # another height
        (torch.zeros(1, 64).double(), 3, y),
        (torch.zeros(NARROW + 1, 64), 3, torch.zeros(NARROW + 1, 8)),
    ):
        with pytest.raises(AssertionError):
            native.linear(x, weights, kind, out)
    with pytest.raises(AssertionError):
        native.attend(torch.zeros(3, 4, 64), torch.zeros(2, 2, 64), torch.zeros(2, 2, 64))
    with pytest.raises(AssertionError):
        native.attend(torch.zeros(1, 4, 60), torch.zeros(2, 2, 60), torch.zeros(2, 2, 60))
    with pytest.raises(AssertionError):
        native.attend(torch.zeros(2, 0, 64), torch.zeros(2, 2, 64), torch.zeros(2, 2, 64))
    means, scales = torch.zeros(1, 2, 5, 64, dtype=torch.int8), torch.zeros(1, 2, 5, 1)
    for n, heads in ((0, 4), (2, 0)):
        with pytest.raises(AssertionError):
            native.score_chunks(torch.zeros(1, n, heads, 64), means, scales)


def test_rows_and_tables_that_c_could_not_read_are_refused(native: Kernels) -> None:
    q, k, rows = normal(2, 4, 32), normal(2, 2, 32), normal(2, 2, 9, 32)
    table = Rope(torch.ones(8, dtype=torch.float64)).table(torch.arange(2), torch.float32, torch.device("cpu"))
    cos, sin = table
    wide = torch.ones(2, 1, 34)
    for bad_table, keys, values, row in (
        (table, rows[0], rows[1], -1),
        (table, rows[0], rows[1], 8),
        (table, rows[0], rows[1].half(), 0),
        (table, rows[0], rows[1, :, :8], 0),
        (table, rows[0].double(), rows[1].double(), 0),
        ((cos, sin.double()), rows[0], rows[1], 0),
        ((cos, sin[..., :8]), rows[0], rows[1], 0),
        ((cos[..., :7], sin[..., :7]), rows[0], rows[1], 0),
        ((torch.cat(table, -1)[..., ::2], sin), rows[0], rows[1], 0),
        ((wide, wide), rows[0], rows[1], 0),
    ):
        with pytest.raises(AssertionError):
            native.rotate_and_store(q, k, k, bad_table, keys, values, row)
    with pytest.raises(AssertionError):
        native.attend(q, rows[0], rows[1], None, torch.ones(2, 2))
    held, scales = quantise(rows)
    good = tuple(scales)
    native.attend(q, held[0], held[1], None, None, good)
    for keys, values, bad_scales in (
        (held[0], held[1], ()),
        (held[0], held[1], good[:1]),
        (rows[0], rows[1], good),
        (held[0], held[1], tuple(side[:, :8] for side in good)),
        (held[0], held[1], tuple(side.double() for side in good)),
        (held[0], held[1], tuple(scales.transpose(0, 1).contiguous().transpose(0, 1))),
        (held[0, :, :8], held[1, :, :8], tuple(side[:, :8].clone() for side in good)),
    ):
        with pytest.raises(AssertionError):
            native.attend(q, keys, values, None, None, bad_scales)
        with pytest.raises(AssertionError):
            native.rotate_and_store(q, k, k, table, keys, values, 0, bad_scales)
    with pytest.raises(AssertionError):
        native.dequantise(torch.zeros(2, 18, dtype=torch.int8), 2, 32)
    with pytest.raises(AssertionError):
        native.rms_norm(normal(2, 4), normal(8)[::2], 1e-5)
    with pytest.raises(AssertionError):
        native.gather_chunks(
            rows, torch.tensor([[[0], [2]], [[0], [0]]]), 4, torch.empty(2, 2, 4, 32)
        )  # 9 rows, no third
    with pytest.raises(AssertionError):
        native.gather_chunks(rows, torch.zeros(2, 2, 2, dtype=torch.int64), 4, torch.empty(2, 2, 7, 32))
    with pytest.raises(AssertionError):
        native.score_chunks(normal(2, 3, 4, 32), held, scales[:, :, :8])
    with pytest.raises(AssertionError):
        native.score_chunks(normal(2, 3, 5, 32), held, scales)
    room = torch.empty(2, 2, 2, 32, dtype=torch.int8), torch.empty(2, 2, 2, 1)
    native.mean_chunks(rows, None, 4, 0, room)
    for keys, key_scales, chunk, begin, out in (
        (rows, None, 5, 0, room),  # 9 rows, no 10
        (rows, None, 4, 3, room),
        (rows, None, 4, -1, room),
        (rows, scales, 4, 0, room),
        (held, None, 4, 0, room),
        (rows[:, :1], None, 4, 0, room),
        (rows.transpose(0, 1), None, 4, 0, room),
        (rows, None, 4, 0, (room[0].float(), room[1])),
        (rows, None, 4, 0, (room[0], room[1].double())),
    ):
        with pytest.raises(AssertionError):
            native.mean_chunks(keys, key_scales, chunk, begin, out)
    for chunk in (0, -4):
        with pytest.raises(AssertionError):
            native.mean_chunks(rows, None, chunk, 0, room)
    shifted = torch.zeros(8000).as_strided((1, 2, 100, 32), (6432, 3216, 32, 1))
    assert not serves_means(shifted), "heads are not whole rows apart"
    with pytest.raises(AssertionError):
        native.gather_chunks(rows, torch.ones(2, 2, 1, dtype=torch.int64), -(10**6), rows.clone())
    for call in (
        lambda: native.mean_chunks(rows, None, 4, 0, (room[0].to("meta"), room[1].to("meta"))),
        lambda: native.rms_norm(normal(2, 8).to("meta"), normal(8), 1e-5),
        lambda: native.silu_mul(normal(2, 8).to("meta")),
        lambda: native.dequantise(torch.zeros(2, 18, dtype=torch.uint8, device="meta"), 2, 32),
        lambda: native.attend(normal(1, 4, 32), normal(0, 9, 32), normal(0, 9, 32)),
        lambda: native.row_bytes(2**32, 256),
    ):
        with pytest.raises(AssertionError):
            call()
    assert not serves_means(rows[..., :16])
    assert not serves_attention(normal(2, 5, 32), rows[0], rows[1])
    assert not serves_attention(normal(2, 4, 16), rows[0], rows[1])
    assert not serves_attention(q, rows[0], rows[1, :, :8])
    assert not serves_attention(q, rows[0].to("meta"), rows[1].to("meta"))


def test_the_environment_turns_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.cache_clear()
    monkeypatch.setenv("TRIFORCE_NATIVE", "0")
    assert kernels() is None
    kernels.cache_clear()
    monkeypatch.setenv("TRIFORCE_NATIVE", "portable")
    found = kernels()
    assert found is not None
    assert found.variant == "portable"
    kernels.cache_clear()
    monkeypatch.setenv("TRIFORCE_NATIVE", "mmx")
    with pytest.raises(UsageError, match="does not run native kernels called 'mmx': unset TRIFORCE_NATIVE"):
        kernels()
    monkeypatch.delenv("TRIFORCE_NATIVE")
    assert kernels() is not None


@pytest.mark.parametrize("what", ["no library", "another version"])
def test_a_library_that_cannot_be_used_leaves_pytorch_and_says_why(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if what == "no library":
        broken = tmp_path / "_kernels.so"
        broken.write_bytes(b"not a library")
        monkeypatch.setattr(library, "_built", lambda: broken)
    else:
        monkeypatch.setattr(library.structs, "SIZES", (*library.structs.SIZES, -1, 0))
    kernels.cache_clear()
    assert kernels() is None
    assert "native kernels cannot be loaded (" in why_missing()
    assert ("another version" in why_missing()) == (what == "another version")
    assert why_missing().endswith("): install triforce again")
    kernels.cache_clear()
