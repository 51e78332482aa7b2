"""Which topic matches which subscription, and which message which selector."""
