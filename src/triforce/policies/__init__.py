"""Policies by name. A new one is one file here and one line below."""

from __future__ import annotations

from triforce.errors import UsageError, shown
from triforce.policies.attention import Attention
from triforce.policies.base import Policy
from triforce.policies.recent import Recent
from triforce.policies.retrieval import Retrieval

POLICIES: dict[str, type[Policy]] = {"retrieval": Retrieval, "attention": Attention, "recent": Recent}


def create_policy(name: str) -> Policy:
    """The policy called `name`; `UsageError` for an unknown one."""
    if name not in POLICIES:
        raise UsageError(f"unknown policy {shown(name)}: use one of {', '.join(POLICIES)}")
    return POLICIES[name]()
