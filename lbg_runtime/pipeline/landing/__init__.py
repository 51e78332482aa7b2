"""The landing log: messages at rest, durable before they are acknowledged, read again from any offset."""
