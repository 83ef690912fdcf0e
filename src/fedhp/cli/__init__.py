"""The command line, the only package that prints.

`fedhp show` is commands/show.py, and so on for every command; app.py lists them. What they share:
parameters.py (arguments and options), logs.py (--log), stopping.py (Ctrl-C), help.py (help texts).
Every command raises FedhpError; main() turns it into a message and an exit code.
"""

from __future__ import annotations

import contextvars
import gc
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from fedhp.errors import FedhpError, Interrupted, as_fedhp_error, install_extra

STOPPED = Interrupted.exit_code
CLOSED_PIPE = 128 + 13  # as if SIGPIPE had ended it: `fedhp show RUN | head` has read enough
# Commands with --log-format, and how they are called in their lines without a --name.
LOGGING_COMMANDS = {"worker": "worker", "coordinator": "coordinator", "cluster up": "launcher"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code; the user never sees a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _begin_json_lines(words)  # not ended: libraries may still say something afterwards
    code = call(words)
    if not _flush() and not code:
        code = CLOSED_PIPE
    gc.freeze()  # the interpreter's end then skips torch's objects, which takes half a second less
    sys.exit(code)


def call(arguments: list[str]) -> int:
    end_json_lines = _begin_json_lines(arguments)
    try:
        # A context of its own: what one command trusts, the next one does not.
        return contextvars.copy_context().run(_call, arguments)
    except (OSError, SystemExit) as error:  # of what is said about another error
        if not _is_closed_pipe(error):
            raise
        return CLOSED_PIPE
    finally:
        end_json_lines()


def _is_closed_pipe(error: BaseException) -> bool:
    """Whether nobody reads the output any more; typer and rich turn this into a SystemExit."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(cause, BrokenPipeError)


def _flush() -> bool:
    """Write what is left of the output, and whether it was read; the interpreter's own attempt at
    its end would print a traceback."""
    read = True
    for descriptor, stream in enumerate((sys.stdout, sys.stderr), start=1):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except BrokenPipeError:
            read = False
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), descriptor)
        except OSError:
            continue  # a full disk: the interpreter says so
    return read


def _begin_json_lines(words: list[str]) -> Callable[[], None]:
    """Make every line JSON if --log-format json is given, before the options are checked."""
    command = " ".join(words[: 2 if words[:1] == ["cluster"] else 1])
    if _option(words, "--log-format") == "json" and command in LOGGING_COMMANDS:
        from fedhp.cluster.ops import logs

        if not isinstance(sys.stderr, logs.JsonLines):  # main() has done it
            return logs.begin_json_lines(_option(words, "--name") or LOGGING_COMMANDS[command])
    return lambda: None


def _option(words: Sequence[str], name: str) -> str:
    """The value of an option that may be written in two ways; the last one counts."""
    value = ""
    for word, following in pairwise([*words, ""]):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _call(arguments: list[str]) -> int:
    import typer

    from fedhp.cli.app import app
    from fedhp.cli.parameters import remove_unused_folders, say

    # The base class of errors in options: click's, or that of the click inside typer.
    kinds: Any = typer.BadParameter.__mro__
    usage_errors = next(kind for kind in kinds if kind.__name__ == "ClickException")
    log = logging.getLogger("fedhp")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    if sys.stderr.isatty():
        log.addHandler(_NoteHandler())
    try:
        result = app(arguments, standalone_mode=False)
        if result == STOPPED:  # how typer reports Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except usage_errors as error:
        usage = io.StringIO()
        error.show(usage)
        say(usage.getvalue().rstrip("\n"), error=True)
        return int(error.exit_code)
    except Interrupted as error:
        say(str(error), error=True)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        say("stopped\n  a run that had started can be resumed with --resume", error=True)
        return STOPPED
    except (Exception, SystemExit) as error:
        if _is_closed_pipe(error):
            return CLOSED_PIPE
        # Anything but a FedhpError is a bug, and is reported as one; sys.exit is the user's code.
        failure = _missing_extra(error) or as_fedhp_error(error)
        say(f"error: {failure}", error=True)
        return failure.exit_code
    finally:
        # The log is left as it was, for those who call commands from Python.
        log.handlers[:], log.propagate = handlers, propagate
        log.setLevel(level)
        remove_unused_folders()


class _NoteHandler(logging.Handler):
    """Prints notes in a terminal, unless there is a log that has them."""

    def emit(self, record: logging.LogRecord) -> None:
        from fedhp.cli.parameters import say

        if not logging.getLogger().handlers:
            say(record.getMessage(), error=True)


CLUSTER_PACKAGES = ("cryptography", "google", "grpc", "prometheus_client")


def _missing_extra(error: BaseException) -> FedhpError | None:
    """The error of a network command in an installation without the packages that it needs."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    package = (missing or "").partition(".")[0]
    if package not in CLUSTER_PACKAGES:
        return None
    return FedhpError(
        f"this command needs the Python package {package!r}, which is not installed",
        allowed="an installation with the extra 'cluster'",
        fix=install_extra("cluster"),
    )
