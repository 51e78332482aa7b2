"""`python -m lbg_runtime.status.probe [URL]`: exit 0 if a status API says yes, else 1. For health checks.

Standard library only, and quick: a container engine starts it every few seconds.
"""

import sys
import urllib.error
import urllib.request
from http.client import HTTPException

DEFAULT_URL = "http://127.0.0.1:9280/livez"
ANSWER_WITHIN_S = 2.0
"""How long to wait for an answer: longer than a member takes to find out that its loop is blocked."""


def probe(url: str) -> tuple[bool, str]:
    """Whether the address answers with 200, and the text of the answer, or why there is none."""
    # Without the proxies that the environment names: the address is this machine or near.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_WITHIN_S) as response:
            return response.status == 200, response.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return False, error.read().decode(errors="replace")
    except (OSError, ValueError, HTTPException) as error:
        # The last exception: something listens there that is not a web server.
        return False, f"{url}: {error}"


if __name__ == "__main__":
    # An engine calls it with one address or none.
    is_well, said = probe(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URL)
    # A container engine keeps this text, for those who ask why.
    sys.stdout.write(said + "\n")
    sys.exit(0 if is_well else 1)
