"""The commands by name, in the order in which help lists them."""

from __future__ import annotations

from triforce.cli import chat, doctor, generate, info, pull, version
from triforce.cli.command import Command

COMMANDS: dict[str, Command] = {
    "generate": generate,
    "chat": chat,
    "pull": pull,
    "info": info,
    "doctor": doctor,
    "version": version,
}
