"""What a member and a publisher tell of their work: figures for Prometheus, spans for OpenTelemetry."""
