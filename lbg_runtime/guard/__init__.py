"""Effects that happen once for a message, however often and by whomever it is handled."""
