"""The command `starling`, also as `python -m starling`: signals end it without a traceback from its first line on."""

import signal
import sys

from starling.current_folder import kept_off_path
from starling.process_exit import exit_on_signals


def main() -> None:
    exit_on_signals()
    try:
        with kept_off_path():
            from starling.cli.main import main as run  # takes a while

            run()
    except KeyboardInterrupt:  # nothing had begun that could be saved
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
