"""Reports a re-striping's steps without its secret, which is part of the topic of the records."""

from collections.abc import Mapping
from typing import assert_never

from lbg_runtime.core.restripe.conductor import (
    Conductor,
    CreateQueue,
    DeleteQueue,
    Done,
    Publish,
    Step,
    Subscribe,
    Unsubscribe,
    Wait,
)
from lbg_runtime.core.restripe.records import plan_of_topic, without_secret
from lbg_runtime.model.errors import LbgError, PublishFailed, SempRefused, SempUnreachable


def facts_of(step: Step, control_topic: str) -> Mapping[str, object]:
    """What the log says about a step, without the secret of the re-striping."""
    match step:
        case Subscribe(index, topic) | Unsubscribe(index, topic):
            return {"queue_index": index, "topic": without_secret(control_topic, topic)}
        case CreateQueue(index) | DeleteQueue(index):
            return {"queue_index": index}
        case Publish(record):
            return {"record": str(record)}
        case Wait() | Done():
            return {}
        case _:
            assert_never(step)


def without(secret: str, error: SempRefused | SempUnreachable | PublishFailed) -> LbgError:
    """The same error, with the secret hidden where it quotes the topic of the records or a request that names it."""

    def hide(text: str) -> str:
        return text.replace(secret, "***")

    match error:
        case SempRefused(request=request, http_status=status, code=code, is_repeated=again):
            return type(error)(hide(request), status, code, error.status, hide(error.description), is_repeated=again)
        case SempUnreachable():
            return SempUnreachable(error.url, hide(error.reason), error.expected)
        case PublishFailed():
            return type(error)(hide(error.topic), hide(error.reason))


def secret_of(step: Step, conductor: Conductor) -> str:
    """The secret of the plan that the step is about; that may be an older plan than the one being conducted."""
    topic = step.topic if isinstance(step, Subscribe | Unsubscribe) else conductor.topic
    return (plan_of_topic(conductor.control_topic, topic) or conductor.plan).secret
