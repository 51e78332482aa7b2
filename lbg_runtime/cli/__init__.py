"""The `lbg` command, one file per subcommand."""
