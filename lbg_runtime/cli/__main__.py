"""`python -m lbg_runtime.cli` is `lbg`, for places where the script is not on the path."""

from lbg_runtime.cli.main import main

if __name__ == "__main__":
    main()
