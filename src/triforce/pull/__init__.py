"""Models and documents by name: fetched once, checked against recorded hashes, kept in the user's cache directory.

Imports nothing heavy, and prints nothing: whoever wants progress passes a callback.
"""

from triforce.pull.cache import Progress, cached, document_path, pull
from triforce.pull.registry import Download, known
from triforce.pull.resolve import resolve_model

__all__ = ["Download", "Progress", "cached", "document_path", "known", "pull", "resolve_model"]
