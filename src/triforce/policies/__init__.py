"""Policies by name. A new one is one file here and one line below."""

from __future__ import annotations

from triforce.names import check_name
from triforce.policies.attention import Attention
from triforce.policies.base import Policy
from triforce.policies.recent import Recent
from triforce.policies.retrieval import Retrieval

POLICIES: dict[str, type[Policy]] = {"retrieval": Retrieval, "attention": Attention, "recent": Recent}


def create_policy(name: str) -> Policy:
    """The policy called `name`; `UsageError` for an unknown one."""
    check_name("policy", name, POLICIES)
    return POLICIES[name]()
