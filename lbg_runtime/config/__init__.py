"""The shape of config.yaml, its loading, and the messages for a setting that is wrong."""
