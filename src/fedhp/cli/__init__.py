"""The command line. Every command raises FedhpError; main() turns it into a message."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedhp.errors import Interrupted, unexpected


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
    except Interrupted as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("stopped before any work was saved", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141
    except Exception as error:  # what is no FedhpError is a bug: say so, keep the details
        told = unexpected(error)
        print(f"error: {told}", file=sys.stderr)
        return told.exit_code
