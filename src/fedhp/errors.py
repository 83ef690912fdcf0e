"""Every error a user can meet, with its exit code.

FedhpError (exit 2)
├── ConfigError         wrong setting in an experiment file, an override or an option
│   └── AddressUnavailable  an address to listen on cannot be used now (exit 75)
├── DataError           a data set is corrupt or does not fit
│   └── DataMissing     its files were not found
├── BadPlan             an algorithm's plan cannot be carried out
├── RunError            a run folder cannot be written, read or resumed
│   ├── TryAgain        the cause may pass: the same command may succeed later (exit 75)
│   ├── FolderInUse     another process works on the run folder (in a service exit 75)
│   └── LedgerDamaged   a ledger is not what was committed (cluster/ledger/base)
├── IdentityError       a key, a certificate or the identity in it is invalid
│   └── NotYetValid     a certificate becomes valid later, by this clock (exit 75)
├── StorageFull         the disk is full (in a service exit 75)
├── NotLeader           another coordinator leads now (cluster/ledger/base)
├── Unreachable         it is not known whether a commit was made (cluster/ledger/base)
├── EtcdRefused         etcd refused a request (cluster/ledger/etcd_client)
├── NotVerified         a check of a finished run failed (cli/commands/verify, exit 1)
├── Diverged            a model became NaN or infinite (exit 3)
├── Unexpected          a bug in fedhp or in the user's own code (exit 70)
└── Interrupted         Ctrl-C or SIGTERM; the run is saved (exit 130)

A service is a coordinator, a standby or a worker: something restarts it unless restart_helps()
says that this is useless. docs/cluster.md has the same table for operators.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sysconfig
from collections.abc import Iterator, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """What the end of a process means."""

    OVER = 0  # the run is over, or the command did what it was asked to do
    NEVER = 2  # an error that stays until somebody corrects it
    DIVERGED = 3
    BUG = 70
    TRY_AGAIN = 75  # EX_TEMPFAIL: the cause may pass
    STOPPED = 130


# After these a service is not restarted: the next process would end in the same way, or the end
# is wanted. After any other code, or a signal, it is. The systemd units have the same list.
NO_RESTART = (ExitCode.NEVER, ExitCode.DIVERGED, ExitCode.STOPPED)


def restart_helps(code: int) -> bool:
    """Whether a service that ended with this code should be restarted; negative: by a signal."""
    return code not in (ExitCode.OVER, *NO_RESTART)


class FedhpError(Exception):
    """An error for the user: what is wrong and the value, what is allowed, the fix."""

    exit_code: int = ExitCode.NEVER

    def __init__(self, problem: str, *, allowed: str = "", fix: str = "") -> None:
        self.problem, self.allowed, self.fix = problem, allowed, fix
        super().__init__(problem)

    def __str__(self) -> str:
        allowed = f"\n  allowed: {self.allowed}" if self.allowed else ""
        return self.problem + allowed + (f"\n  fix: {self.fix}" if self.fix else "")


class ConfigError(FedhpError):
    """A wrong setting: its key and its value; the source (file or command line) is added where
    that is known. others: keys of settings with which the value would be right.
    idle: the key without which the experiment is the same."""

    def __init__(
        self,
        problem: str,
        *,
        key: str,
        source: str = "",
        allowed: str = "",
        fix: str = "",
        others: Sequence[str] = (),
        idle: str = "",
    ) -> None:
        self.key, self.detail, self.others, self.idle = key, problem, tuple(others), idle
        super().__init__(problem, allowed=allowed, fix=fix)
        self.name_source(source)

    def name_source(self, source: str) -> None:
        self.source = source
        where = ": ".join(part for part in (source, self.key) if part)
        self.problem = f"{where}: {self.detail}"


class AddressUnavailable(ConfigError):
    """An address to listen on that another process uses, or that this machine does not have yet."""

    exit_code = ExitCode.TRY_AGAIN


class DataError(FedhpError):
    """A data set that is missing, corrupt, or does not fit the experiment.

    keys: the settings that name it. The source is the file or command line that has them.
    """

    def __init__(
        self, problem: str, *, allowed: str = "", fix: str = "", keys: Sequence[str] = ()
    ) -> None:
        self.detail, self.keys, self.source = problem, tuple(keys), ""
        super().__init__(problem, allowed=allowed, fix=fix)

    def name_source(self, source: str) -> None:
        self.source = source
        self.problem = f"{source}: {self.detail}" if source else self.detail


@contextlib.contextmanager
def about(*keys: str) -> Iterator[None]:
    """Errors about data inside are due to these settings, unless they name others."""
    try:
        yield
    except DataError as error:
        error.keys = error.keys or keys
        raise


class DataMissing(DataError):
    """The files of a data set were not found."""


class BadPlan(FedhpError):
    """An algorithm's plan or action that cannot be carried out; nothing acted on it."""


class RunError(FedhpError):
    """A run folder that cannot be written, read or resumed."""


class TryAgain(RunError):
    """What is needed is not there now: another machine, the network or etcd."""

    exit_code = ExitCode.TRY_AGAIN


class FolderInUse(RunError):
    """Another process works on this run folder."""


class IdentityError(FedhpError):
    """A key, a certificate or the identity in it is invalid."""


class NotYetValid(IdentityError):
    """A certificate that becomes valid later: after a power cut a clock may be far behind."""

    exit_code = ExitCode.TRY_AGAIN


class StorageFull(FedhpError):
    """The disk is full; everything committed before remains readable."""


class Diverged(FedhpError):
    """A model became NaN or infinite; all earlier rounds are kept."""

    exit_code = ExitCode.DIVERGED


class Unexpected(FedhpError):
    """An error that fedhp did not foresee; its traceback is kept in a file for a bug report."""

    exit_code = ExitCode.BUG


class Interrupted(FedhpError):
    """The user asked to stop; the run is saved and can be resumed."""

    exit_code = ExitCode.STOPPED


@contextlib.contextmanager
def service_exit_codes() -> Iterator[None]:
    """Inside, errors that pass without anybody changing a setting say so by their exit code: a
    disk gets space again, and the process that has the folder ends."""
    try:
        yield
    except (StorageFull, FolderInUse) as error:
        error.exit_code = ExitCode.TRY_AGAIN
        raise


def combine_errors(errors: Sequence[FedhpError], *, outcome: str = "failed") -> FedhpError:
    """One error for several failed runs; its text names each of them."""
    count = "1 run" if len(errors) == 1 else f"{len(errors)} runs"
    text = "\n".join(str(error) for error in errors)
    combined = FedhpError(f"{count} {outcome}:\n{text}")
    combined.exit_code = max(error.exit_code for error in errors)
    return combined


def as_fedhp_error(error: BaseException) -> FedhpError:
    """The error itself, or for any other exception one whose traceback is kept in a file."""
    if isinstance(error, FedhpError):
        return error
    message = " ".join(str(error).split()) or "no details"
    if isinstance(error, MemoryError) or "can't allocate memory" in message:  # torch's words
        return RunError(
            "not enough memory for this experiment",
            fix="use fewer workers, a smaller model (model.width) or less data (data.train_images)",
        )
    details, where = _keep_traceback(error), "this is a bug in fedhp or in your own code"
    what = "report the bug with that file"
    if place := user_place(error):
        where, what = f"in your own code, at {place}", "correct that line"
    return Unexpected(
        f"an unexpected {type(error).__name__}: {message}\n  {where}; details: {details}",
        fix=f"{what}; an interrupted run can be resumed",
    )


def user_place(error: BaseException) -> str:
    """Where the user's own code failed, as "file, line N"; empty if it took no part.

    The last frame outside fedhp, Python and the installed packages; of a syntax error its line.
    """
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return f"{error.filename}, line {error.lineno}"
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if _is_users(code.co_filename):
            place = f"{code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def at_user_place(error: BaseException) -> str:
    """The place in the user's own code in brackets, to follow a message; may be empty."""
    place = user_place(error)
    return f" (at {place})" if place else ""


def definition_place(function: object) -> str:
    """Where a function of the user's own is defined, as "file, line N"; empty for others."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None or not _is_users(code.co_filename):
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}"


def _is_users(file: str) -> bool:
    """Whether a file is neither part of fedhp nor of Python nor of an installed package."""
    if file.startswith("<"):
        return False
    path = os.path.realpath(file)
    folders = (os.path.dirname(__file__), *map(sysconfig.get_path, ("stdlib", "platstdlib")))
    library = any(path.startswith(os.path.realpath(folder) + os.sep) for folder in folders)
    return not library and not {"site-packages", "dist-packages"} & set(path.split(os.sep))


def _keep_traceback(error: BaseException) -> str:
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fedhp-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
        return str(file.name)
    except OSError:
        return "not saved (the temporary folder cannot be written)"


def install_extra(name: str) -> str:
    """How to install what an extra needs: fedhp is on no index, only in a checkout or a wheel."""
    return (
        f"pip install '.[{name}]' in the checkout of fedhp, or, with its wheel, "
        f"pip install 'FILE.whl[{name}]'"
    )
