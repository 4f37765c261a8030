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
