"""`triforce chat`: a conversation, line by line. Answers go to standard output, everything else to standard error."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from triforce.cli.control_options import add_control_arguments, with_controls
from triforce.cli.options import (
    add_decoding_arguments,
    add_model_arguments,
    add_sampling_arguments,
    decoding_from,
    load_engine,
    sampling_from,
)
from triforce.cli.progress import Progress
from triforce.cli.prompt import add_file_argument, file_from, read_prompt
from triforce.cli.session import KeptSession, add_session_argument
from triforce.cli.stopping_options import add_stopping_arguments, with_stops
from triforce.cli.telling import tell
from triforce.errors import PromptError, TriForceError, UsageError

if TYPE_CHECKING:
    from triforce.completion import Generation
    from triforce.config import Decoding, SamplingParams
    from triforce.conversation import Conversation

SUMMARY = "talk with a model"
_HELP = """\
/save [FILE]  write the conversation and all that was computed for it to FILE
/load FILE    go on with a saved one
/rewind       take back the last question and its answer
/clear        take back all questions (the document of -f stays)
/stats        times and levels of the last answer
/quit         leave (so does Ctrl-D); Ctrl-C only ends an answer
A question that begins with / is written with two of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, what is read first, and all shared options."""
    parser.add_argument("chosen", nargs="?", metavar="MODEL", help="the model; the same as -m")
    add_file_argument(parser, "a text file that is put before the first question")
    parser.add_argument("--system", metavar="TEXT", help="the system message of a new conversation")
    add_session_argument(parser)
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    add_control_arguments(parser)
    add_stopping_arguments(parser)
    add_decoding_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Answer questions until there are no more."""
    args.model = args.chosen or args.model
    kept = KeptSession(args.session)
    if args.logprobs is not None:
        raise UsageError("--logprobs is not shown in a chat: use triforce generate --json")
    sampling, decoding = with_controls(with_stops(sampling_from(args), args), args), decoding_from(args)
    file = file_from(args)
    if file == "-":
        raise UsageError("-f - reads standard input, which the questions come from: name a file")
    document = read_prompt(None, file) if file else ""
    engine = load_engine(args)

    from triforce.conversation import Conversation
    from triforce.text.chat import render_chat

    render_chat(engine.tokenizer, [{"role": "user", "content": "?"}])  # a model without template is refused here
    session = kept.open(engine)
    kept.keep(session)
    chat = Chat(Conversation(session, args.system), sampling, decoding, document, kept)
    if chat.owes_document:
        engine.check_length(len(session) + len(engine.tokenizer.encode(document)), 1)  # what no question could follow
        kept.tell_of(str(file), session)
    if _at_terminal():
        tell(f"{engine.context_length:,} tokens of context; /help shows the commands")
    kept.saving(lambda: _talk(chat, kept))
    return 0


def _talk(chat: Chat, kept: KeptSession) -> None:
    for line in _lines(kept):
        if not chat.take(line):
            break


class Chat:
    """A conversation that takes lines: questions and commands."""

    def __init__(
        self,
        conversation: Conversation,
        sampling: SamplingParams,
        decoding: Decoding,
        document: str,
        kept: KeptSession,
    ) -> None:
        self.conversation = conversation
        self._kept = kept
        self._file = kept.path  # what /save writes when it is given no name
        self._sampling = sampling
        self._decoding = decoding
        self._document = document.rstrip("\r\n")
        self._last: Generation | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "/save": self._save,
            "/load": self._load,
            "/rewind": self._rewind,
            "/clear": self._clear,
            "/stats": self._stats,
            "/help": lambda _: print(_HELP, file=sys.stderr),
        }

    def take(self, line: str) -> bool:
        """Do what `line` says; whether the chat goes on. Mistakes are told, and nothing is lost by them."""
        try:
            return self._take(line.strip())
        except KeyboardInterrupt:  # before or after an answer: what was under way is as it was
            tell("stopped")
            return True

    def _take(self, line: str) -> bool:
        name, _, argument = line.partition(" ")
        if name == "/quit":
            return False
        try:
            if line.startswith("/") and not line.startswith("//"):
                if name not in self._commands:
                    raise UsageError(f"unknown command {name}: see /help")
                self._commands[name](argument.strip())
            elif line:
                self._answer(line.removeprefix("/") if line.startswith("//") else line)
        except BrokenPipeError:
            raise
        except (TriForceError, OSError) as error:
            tell(error)
        return True

    @property
    def owes_document(self) -> bool:
        """Whether the document goes before the next question: no question so far stands behind it."""
        asked = [message["content"] for message in self.conversation.messages if message["role"] == "user"]
        first = f"{self._document}\n\n"
        has_it = any(text.startswith(first) or text.rstrip("\r\n") == self._document for text in asked)
        return bool(self._document) and not has_it

    def _answer(self, question: str) -> None:
        """Stream the answer; what ends it early keeps what there is of it, or takes the question back."""
        whole = f"{self._document}\n\n{question}" if self.owes_document else question
        with Progress("reading", "tokens") as progress:
            stream = self.conversation.ask(whole, self._sampling, self._decoding, on_prefill=progress.callback)
            try:
                for completion in stream:
                    progress.close()
                    print(completion.text, end="", flush=True)
            except (KeyboardInterrupt, TriForceError) as ended:
                progress.close()
                if stream.generation().token_ids:
                    print(flush=True)
                else:
                    self.conversation.rewind()
                    tell("the question is taken back")
                    self._tell_what_is_left()
                if isinstance(ended, TriForceError):
                    raise
            else:
                print(flush=True)
        self._last = stream.generation()

    def _save(self, name: str) -> None:
        from triforce.session_file import is_session_file

        file = Path(name) if name else self._file
        if file is None:
            raise UsageError("/save needs the name of a file")
        if len(self.conversation.session) == 0:
            raise UsageError(f"there is nothing to save in {file} yet: ask something first")
        if os.path.isfile(file) and os.path.getsize(file) > 0 and not is_session_file(file):
            raise UsageError(f"{file} is no session file, and is not replaced: choose another name")
        self.conversation.session.prefill()
        self._kept.hold()
        self.conversation.session.save(file)
        self._file = file
        if self._kept.is_in(str(file)):
            self._kept.keep(self.conversation.session)
        tell(f"saved {len(self.conversation.session):,} tokens in {file}")

    def _load(self, name: str) -> None:
        from triforce.conversation import Conversation

        if not name:
            raise UsageError("/load needs the name of a file")
        session = self.conversation.session.engine.load_session(name)
        conversation = Conversation(session, self.conversation.system)
        self._kept.hold()
        if self._kept.is_in(name):
            self._kept.keep(session)
            then = "what came after them is let go"
        else:  # which /save saves from here on: it must not replace the one that --session keeps
            self._kept.save()
            self._kept.keep(None)
            then = "/save writes there from here on"
        self.conversation, self._file, self._last = conversation, Path(name), None
        tell(f"loaded {len(session):,} tokens from {name}; {then}")

    def _rewind(self, _: str) -> None:
        self.conversation.rewind()
        self._tell_what_is_left()

    def _clear(self, _: str) -> None:
        self.conversation.clear()
        self._tell_what_is_left()

    def _tell_what_is_left(self) -> None:
        due = "; the document goes before the next question" if self.owes_document else ""
        tell(f"{len(self.conversation.session):,} tokens are left{due}")

    def _stats(self, _: str) -> None:
        from triforce.report import format_generation

        session = self.conversation.session
        if self._last is not None:
            print(format_generation(self._last), file=sys.stderr)
        print(f"session  {len(session):,} of {session.engine.context_length:,} tokens", file=sys.stderr, flush=True)


def _lines(kept: KeptSession) -> Iterator[str]:
    """Lines of standard input; at a terminal with a prompt and editing, where Ctrl-C drops the line."""
    if not _at_terminal():
        try:
            lines = iter(sys.stdin or ())
            kept.arm()
            while (line := next(lines, None)) is not None:
                yield line
                kept.arm()
        except UnicodeDecodeError as error:
            raise PromptError(f"standard input is not UTF-8 at byte {error.start}: convert it, as with iconv") from None
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # its import gives `input` a history
    with contextlib.suppress(EOFError):
        while True:
            kept.arm()
            typed = _prompted()
            if typed is not None:
                yield typed
    print(file=sys.stderr)


def _prompted() -> str | None:
    """A line typed at the prompt, None for one that Ctrl-C dropped."""
    try:
        return input("> ")
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return None


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
