"""What a user can get wrong: one line each, naming the remedy. The command line prints it without traceback."""


class TriForceError(Exception):
    """Base of everything this package raises for a user's mistake."""


class UsageError(TriForceError):
    """An argument or setting that cannot be honoured."""


class PromptError(TriForceError):
    """A prompt that is empty, unreadable or longer than the model allows."""


class ModelError(TriForceError):
    """A checkpoint that is missing, damaged or not supported."""


class DownloadError(TriForceError):
    """A model or document that could not be fetched whole."""


class SessionError(TriForceError):
    """A session file that cannot be written or read, is damaged, or belongs to another model or setting."""


def shown(value: object) -> str:
    """`value` as it stands in a message: on one line, and short."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a repr of the caller's own, or a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
