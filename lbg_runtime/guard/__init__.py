"""Effects that happen once per message, no matter how often and by which member it is handled."""
