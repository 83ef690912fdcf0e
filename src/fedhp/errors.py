"""Every error a user can meet, with its exit code.

FedhpError (exit 2)
├── ConfigError         an experiment file, override or option is wrong
├── DataError           a data set is corrupt or does not fit
│   └── DataMissing     its files are nowhere to be found
├── RunError            a run folder cannot be written, read or resumed
│   ├── JournalBusy     another process has the journal open (cluster/journal)
│   └── JournalDamaged  its damage is more than a torn write (cluster/journal_format)
├── IdentityError       a key, a certificate or who is behind it is not as it must be
├── StorageFull         the disk is full
├── NotLeader           another coordinator leads now (cluster/ledger)
├── Unreachable         whether a commit was made cannot be known now (cluster/ledger)
├── EtcdRefused         etcd does not do what is asked (cluster/etcd_forms)
├── NotVerified         a run was not as it should have been (cli/verify, exit 1)
├── Diverged            a model became NaN or infinite (exit 3)
├── Unexpected          a bug of ours, or in a part of one's own (exit 70)
└── Interrupted         Ctrl-C or SIGTERM; the run is saved (exit 130)
"""

from __future__ import annotations

from collections.abc import Sequence


class FedhpError(Exception):
    """An error with a message for a person: what, where, what is allowed, how to mend it."""

    exit_code = 2

    def __init__(self, problem: str, *, allowed: str = "", fix: str = "") -> None:
        self.problem = problem
        self.allowed = allowed
        self.fix = fix
        super().__init__(problem)

    def __str__(self) -> str:
        lines = [self.problem]
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class ConfigError(FedhpError):
    """A wrong setting. Names the source (file or command line), the key and the value."""

    def __init__(
        self,
        problem: str,
        *,
        key: str,
        source: str = "",
        allowed: str = "",
        fix: str = "",
    ) -> None:
        self.key = key
        self.source = source
        self.complaint = problem
        where = ": ".join(part for part in (source, key) if part)
        super().__init__(f"{where}: {problem}", allowed=allowed, fix=fix)

    def said_of(self, source: str) -> ConfigError:
        """The same error, blamed on another file or on the command line."""
        return ConfigError(
            self.complaint, key=self.key, source=source, allowed=self.allowed, fix=self.fix
        )


class DataError(FedhpError):
    """A data set that is missing, corrupt, or does not fit the experiment."""


class DataMissing(DataError):
    """The files of a data set are nowhere to be found."""


class RunError(FedhpError):
    """A run folder that cannot be written, read or resumed."""


class IdentityError(FedhpError):
    """A key, a certificate, or who is behind it is not as it must be."""


class StorageFull(FedhpError):
    """The disk is full; everything committed before stays readable."""


class Diverged(FedhpError):
    """A model stopped being finite; all earlier rounds are kept."""

    exit_code = 3


class Unexpected(FedhpError):
    """What should not happen; the details are kept in a file for a bug report."""

    exit_code = 70


class Interrupted(FedhpError):
    """The user asked to stop; the run is saved and can be resumed."""

    exit_code = 130


def joined(errors: Sequence[FedhpError]) -> FedhpError:
    """One error for all of several runs: its text names every failed run."""
    count = "1 run" if len(errors) == 1 else f"{len(errors)} runs"
    text = "\n".join(str(error) for error in errors)
    combined = FedhpError(f"{count} failed:\n{text}")
    combined.exit_code = max(error.exit_code for error in errors)
    return combined


def unexpected(error: Exception) -> FedhpError:
    """Any other exception as a message for a person; its traceback goes to a file."""
    if isinstance(error, FedhpError):
        return error
    words = " ".join(str(error).split()) or "no details"
    if isinstance(error, MemoryError) or "can't allocate memory" in words:  # torch's words
        return RunError(
            "there is not enough memory for this experiment",
            fix="fewer workers, a smaller model (model.width), or less data (data.train_images)",
        )
    return Unexpected(
        f"an unexpected {type(error).__name__}: {words}\n"
        f"  this is a bug in fedhp, or in a part of your own; details: {_keep_traceback(error)}",
        fix="report it with that file; a run that was going on can be resumed",
    )


def _keep_traceback(error: Exception) -> str:
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fedhp-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
        return str(file.name)
    except OSError:
        return "nowhere (the temporary folder cannot be written)"
