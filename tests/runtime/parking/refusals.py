"""What a broker that refuses a message answers."""

import asyncio

from lbg_runtime.model.errors import PublishRefused


def refused(topic: str, reason: str) -> "asyncio.Future[None]":
    answer = asyncio.get_running_loop().create_future()
    answer.set_exception(PublishRefused(topic, reason))
    return answer
