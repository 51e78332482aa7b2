"""What is told of a step has no secret in it."""

import pytest

from lbg_runtime.core.restripe.conductor import Conductor, Subscribe, Unsubscribe
from lbg_runtime.core.restripe.records import StripePlan, record_topic
from lbg_runtime.model.errors import SempRefused
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName
from lbg_runtime.runtime.restripe.reporting import secret_of, without

CONTROL_TOPIC = "lbg-control/orders"
PLAN, OTHER = StripePlan(9, 4, 6, "s3cr3t"), StripePlan(7, 4, 6, "0ther")


@pytest.mark.parametrize(
    ("step", "secret"),
    [
        (Subscribe(0, record_topic(CONTROL_TOPIC, PLAN)), PLAN.secret),
        (Unsubscribe(0, record_topic(CONTROL_TOPIC, OTHER)), OTHER.secret),
        (Subscribe(0, "h/0/>"), PLAN.secret),
    ],
)
def test_the_secret_of_the_plan_that_a_step_is_about_is_hidden_whoever_has_made_it(
    step: Subscribe | Unsubscribe, secret: str
) -> None:
    conductor = Conductor(GroupShape(GroupName("orders"), "h", 16, 4), PLAN, CONTROL_TOPIC)
    error = SempRefused(f"POST {step.topic}", 400, 11, "NOT_ALLOWED", f"no {step.topic}")
    assert secret_of(step, conductor) == secret
    assert secret not in str(without(secret_of(step, conductor), error))
