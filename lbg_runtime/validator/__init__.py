"""From journals to a verdict: the laws, written once, on Arrow tables."""
