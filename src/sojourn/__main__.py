"""The `sojourn` program: ``sojourn`` and ``python -m sojourn``.

Nothing but this is imported before Ctrl-C is heeded, so that it ends a command with one line while it still starts.
"""

import sys


def main() -> None:
    """Run the command line; the entry point of the installed script."""
    try:
        from sojourn.cli.main import main as run
    except KeyboardInterrupt:
        print("sojourn: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
