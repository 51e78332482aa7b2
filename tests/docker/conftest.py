"""Leaves out what this machine cannot do."""

import subprocess


def _can_make_namespaces() -> bool:
    try:
        command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


# Not skipped but not there: at the gate a skip is a failure, and a machine may forbid namespaces.
collect_ignore = [] if _can_make_namespaces() else ["test_first_process.py"]
