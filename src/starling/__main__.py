"""The command `starling`, also `python -m starling`; from its first line on, signals end it without a traceback."""

import signal
import sys

from starling.process_exit import exit_on_signals
from starling.runtime.current_folder import kept_off_path


def main() -> None:
    exit_on_signals()
    try:
        with kept_off_path():
            from starling.cli.main import main as run  # slow, so only after the signal handlers are set

            run()
    except KeyboardInterrupt:  # there is nothing to save yet
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
