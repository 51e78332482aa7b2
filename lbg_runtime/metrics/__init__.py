"""What a member and a publisher report about their work: metrics for Prometheus, spans for OpenTelemetry."""
