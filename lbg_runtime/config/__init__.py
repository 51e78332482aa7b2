"""The shape of config.yaml, how it is loaded, and what is said when it is wrong."""
