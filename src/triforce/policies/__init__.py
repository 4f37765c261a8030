"""Policies by name. A new one is one file here and one line below: where it is found, so that names need no PyTorch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from triforce.checks import one_of

if TYPE_CHECKING:
    from triforce.policies.base import Policy

POLICIES = {"retrieval": "retrieval:Retrieval", "attention": "attention:Attention", "recent": "recent:Recent"}


def create_policy(name: str) -> Policy:
    """The policy called `name`; `UsageError` for an unknown one."""
    module, _, kind = POLICIES[one_of("policy", name, POLICIES)].partition(":")
    policy: Policy = getattr(import_module(f"{__name__}.{module}"), kind)()
    return policy
