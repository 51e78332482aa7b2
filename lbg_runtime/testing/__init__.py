"""The public test kit: virtual time, conformance suite, harness."""
