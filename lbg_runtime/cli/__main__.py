"""`python -m lbg_runtime.cli` is `lbg`, for places where the script is not on the path. The script calls this too."""

import sys


def main() -> None:
    """Run the command line, as `cli.main` does, and print nothing if it is interrupted before that."""
    try:
        # Not above, where an interrupt would be a traceback.
        from lbg_runtime.cli.importing import end_when_asked, importing

        end_when_asked()
        with importing():
            from lbg_runtime.cli.main import main as run_command_line
        run_command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
