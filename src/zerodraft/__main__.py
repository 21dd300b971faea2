"""``python -m zerodraft`` and the ``zerodraft`` script: hands over to the command line in ``integrations/commands``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; one clear line instead of a traceback where its packages are not installed."""
    try:
        from zerodraft.integrations.commands.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"zerodraft: the command line needs {error.name}: pip install 'zerodraft[demo]'")
    app()


if __name__ == "__main__":
    main()
