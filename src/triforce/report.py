"""A generation's books as a few lines of text, for people. Command line, demo and benchmarks print them."""

from __future__ import annotations

from collections.abc import Sequence

from triforce.completion import Generation
from triforce.statistics import LevelStats


def format_generation(generation: Generation) -> str:
    """Times, rates and the table of levels, without a newline at the end."""
    times = generation.timings
    kept = f", {times.reused_tokens:,} kept from before" if times.reused_tokens else ""
    unread = generation.prompt_tokens - times.prefill_tokens - times.reused_tokens - 1
    left = f", {unread:,} not read" if unread > 0 and not generation.completion_tokens else ""
    rate = f" ({times.prefill_tokens_per_second:.1f}/s)" if times.prefill_tokens else ""
    read = f"{times.prefill_tokens:,} read in {times.prefill_seconds:.2f} s{rate}{kept}{left}"
    decoded = f"{times.decode_tokens:,} decoded in {times.decode_seconds:.2f} s"
    stopped = "" if generation.stop_reason is None else f" at {generation.stop_reason!r}"
    return "\n".join(
        (
            f"load     {times.load_seconds:.2f} s",
            f"prompt   {generation.prompt_tokens:,} tokens, {read}",
            f"new      {generation.completion_tokens:,} tokens, {decoded} ({times.decode_tokens_per_second:.2f}/s)",
            f"ended    {generation.finish_reason}{stopped}",
            format_levels(generation.levels),
        )
    )


def format_levels(levels: Sequence[LevelStats]) -> str:
    """One row per level: passes, tokens drafted for the level above, how many of them it accepted, seconds."""
    rows = [f"{'level':8} {'passes':>7} {'drafted':>8} {'accepted':>9} {'share':>6} {'seconds':>8}"]
    for level in levels:
        drafted = f"{level.drafted:8,} {level.accepted:9,}" if level.drafted else f"{'-':>8} {'-':>9}"
        share = f"{level.accepted / level.drafted:6.1%}" if level.drafted else f"{'-':>6}"
        rows.append(f"{level.name:8} {level.passes:7,} {drafted} {share} {level.seconds:8.2f}")
    return "\n".join(rows)
