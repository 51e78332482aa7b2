"""The conformance suite lives in the package; its assertions explain themselves as those of a test module do."""

import pytest

pytest.register_assert_rewrite(
    "lbg_runtime.testing.conformance_flows",
    "lbg_runtime.testing.conformance_sessions",
    "lbg_runtime.testing.conformance_steps",
)
