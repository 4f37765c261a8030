"""What a decoder must know of its architecture, whichever file it came from. Knows nothing of files or of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from triforce.errors import UsageError, shown

CHOSEN_KINDS = ("linear", "dynamic", "yarn")  # what a user can ask for; the others only come with a checkpoint
MOST_STRETCH = 64.0  # that a user can ask for: twice the most in YaRN's paper, past which there is nothing but noise


@dataclass(frozen=True)
class RopeScaling:
    """How RoPE's frequencies are stretched for contexts longer than the original one.

    `kind` is `none`, `linear`, `dynamic`, `yarn`, `llama3` or `divisors`. YaRN (arXiv 2309.00071) reads
    `attention_factor` to `truncate`, llama3 the two frequency factors; `divisors` [head_dim / 2] are GGUF's own form.
    """

    kind: str
    factor: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    divisors: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> RopeScaling:
        """Read the command line's form: `yarn:2`, `linear:2`, `dynamic:2` or `none`. Raises `UsageError`."""
        kind, _, number = text.strip().partition(":") if isinstance(text, str) else ("", "", "")
        if kind == "none" and not number:
            return cls("none")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if kind not in CHOSEN_KINDS or not 1.0 <= factor <= MOST_STRETCH:
            forms = ", ".join(f"{name}:FACTOR" for name in CHOSEN_KINDS)
            raise UsageError(
                f"rope scaling {shown(text)}: use {forms} with a factor from 1 to {MOST_STRETCH:g}, or none"
            )
        return cls(kind, factor)


@dataclass(frozen=True)
class ModelConfig:
    """One architecture. `max_position` is the longest context it serves, `original_max_position` that before scaling.

    `sliding_window` counts the positions that a query sees back, itself included; None: all of them.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position: int
    original_max_position: int
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0, (self.num_heads, self.num_kv_heads)
        assert self.head_dim % 2 == 0, self.head_dim

    def with_rope_scaling(self, scaling: RopeScaling) -> ModelConfig:
        """The same model with its original context stretched by `scaling`; `none` takes its own scaling away.

        Raises `UsageError` when the model was trained with a scaling of another kind, which this would undo.
        """
        if scaling.kind == "none":
            return replace(self, rope_scaling=None, max_position=self.original_max_position)
        own = self.rope_scaling
        if own is not None and own.kind != scaling.kind:
            asked = f"rope scaling {scaling.kind}:{scaling.factor:g}"
            raise UsageError(f"{asked}: the model has a {own.kind} scaling of its own, leave the option out")
        longest = int(self.original_max_position * scaling.factor)
        return replace(self, rope_scaling=scaling, max_position=longest)
