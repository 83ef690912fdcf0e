"""The command line. Every command raises FedhpError; main() turns it into a message."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from fedhp.errors import FedhpError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code; no traceback reaches the user."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run a command; the exit code."""
    import click

    from fedhp.cli.app import app

    try:
        result = app(arguments, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except FedhpError as error:
        if str(error):
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("stopped before any work was saved", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141
    except MemoryError:
        print(
            "error: there is not enough memory for this experiment\n"
            "  fix: fewer workers, a smaller model (model.width), or less data "
            "(data.train_images)",
            file=sys.stderr,
        )
        return 5
    except Exception as error:  # a bug of ours: say so, keep the details for the report
        place = _keep_traceback()
        print(
            f"error: an unexpected {type(error).__name__}: {error}\n"
            f"  this is a bug in fedhp, or in a part of your own; details are in {place}\n"
            "  fix: report it with that file; a run that was going on can be resumed",
            file=sys.stderr,
        )
        return 70


def _keep_traceback() -> str:
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fedhp-error-", suffix=".txt", delete=False
        ) as file:
            traceback.print_exc(file=file)
        return str(Path(file.name))
    except OSError:
        return "nowhere (the temporary folder cannot be written)"
