"""Pages of docs/ that are made from the code: `python -m lbg_runtime.cli.reference docs` rewrites them."""
