"""Errors keep their facts, also across processes."""

import copy
import inspect
import pickle

import pytest

from lbg_runtime.model import errors
from lbg_runtime.model.errors import (
    BatchCutShort,
    BindFailed,
    BodyRefused,
    BrokerRefusal,
    CheckpointForeign,
    ConductorCutOff,
    ConfigError,
    ConnectFailed,
    GroupInUse,
    GroupMissing,
    GroupRefused,
    GroupReopened,
    HandlerError,
    HandlerMissing,
    InvariantViolated,
    KeyMissing,
    LakeWriteFailed,
    LandingDamaged,
    LandingError,
    LandingRowsPruned,
    LandingVersionUnknown,
    LandingWriteFailed,
    LbgError,
    MembersNotSeen,
    MemberSuperseded,
    MessageUnsendable,
    ParkingNotReady,
    PayloadNotText,
    PlanOutdated,
    ProtocolError,
    PublisherClosed,
    PublishFailed,
    PublishRefused,
    QueueInUse,
    QueueMissing,
    QueueUnfit,
    RequestRefused,
    RestripeRecordRefused,
    SempElsewhere,
    SempError,
    SempExists,
    SempMissing,
    SempRefused,
    SempUnreachable,
    SinkKeySplit,
    SinkRowRefused,
    SparkUnavailable,
    StoreFailed,
    StreamFailed,
    SubscribeFailed,
    TerminalFailure,
    TransportError,
    UserError,
    VpnNotUp,
)

EXAMPLES = [
    LbgError("what"),
    UserError("where", "found", "expected"),
    ConfigError("group.name", "''", "a name"),
    HandlerError("handlers.orders", "not async", "async def"),
    MemberSuperseded("m1"),
    ConductorCutOff("orders"),
    RequestRefused("provision orders/0", "why"),
    TransportError("what"),
    ConnectFailed("tcp://h:1", "refused", permanent=True),
    BindFailed("q", "Unknown Queue", permanent=True),
    SubscribeFailed("t", "Subscription ACL Denied", permanent=True),
    PublishFailed("t", "down"),
    PublishRefused("t", "Spool Over Quota"),
    MessageUnsendable("t", "a property has no name"),
    PublisherClosed("t"),
    ProtocolError("what", 12),
    RestripeRecordRefused(b"{}"),
    BrokerRefusal(503, "Unknown Queue"),
    StoreFailed("broker.db", "database or disk is full"),
    TerminalFailure("what"),
    KeyMissing(),
    BodyRefused("Order", "field price missing"),
    BatchCutShort(),
    HandlerMissing("orders/new", ("bills/>",)),
    SempError("what"),
    SempUnreachable("http://h:1", "refused"),
    SempElsewhere("http://h:1", "lbg-restriper-orders"),
    MembersNotSeen(("orders/0",)),
    GroupReopened("orders/0"),
    PlanOutdated(31.0),
    VpnNotUp("http://h:1", "default", "standby"),
    SempRefused("GET /queues/q", 400, 72, "UNAUTHORIZED", "Access level too low"),
    SempMissing("GET /queues/q", 400, 6, "NOT_FOUND", "Could not find match for q"),
    SempExists("POST /queues", 400, 10, "ALREADY_EXISTS", "Object q already exists"),
    QueueMissing("q"),
    QueueUnfit("q", "maxRedeliveryCount 3", "maxRedeliveryCount 0"),
    QueueInUse("q", 2, 1),
    GroupRefused((UserError("where", "found", "expected"),)),
    GroupInUse({"q": (2, 1)}),
    GroupMissing("g"),
    InvariantViolated("what"),
    ParkingNotReady("lbg-parked/g/0", "its place in the line", was_sent=True),
    SparkUnavailable("no Java", "pip install 'lbg-runtime[spark]'"),
    SinkRowRefused("key", 3),
    SinkKeySplit(2),
    StreamFailed("delta:/lake", "no room"),
    PayloadNotText(3, "1-2-p-k"),
    LakeWriteFailed("/lake", "no room"),
    CheckpointForeign("/landing", "another group"),
    LandingError("/landing", "what", "remedy"),
    LandingDamaged("/landing", "what", "remedy"),
    LandingVersionUnknown("/landing", "what", "remedy"),
    LandingRowsPruned("/landing", "queue=003/lane=a-1", 2, 7),
    LandingWriteFailed("/landing", "no room"),
]


def test_every_class_of_the_tree_has_an_example() -> None:
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LbgError)}
    assert classes == {type(example) for example in EXAMPLES}


def test_a_handler_may_end_its_attempts_without_a_word() -> None:
    # As a `TypeError` it would be tried again.
    with pytest.raises(TerminalFailure):
        raise TerminalFailure


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("travel", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])  # noqa: S301
def test_an_error_arrives_whole_in_another_process(error: LbgError, travel: object) -> None:
    arrived = travel(error)  # type: ignore[operator]  # a function, in a list of two kinds
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    # Errors within errors are equal only to themselves.
    assert repr(vars(arrived)) == repr(vars(error))


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_what_an_error_is_made_of_are_its_facts(error: LbgError) -> None:
    made_of = [
        name
        for name, parameter in inspect.signature(type(error).__init__).parameters.items()
        if name != "self" and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    assert set(made_of) <= vars(error).keys()


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_the_text_of_an_error_names_its_facts(error: LbgError) -> None:
    named = {
        name: fact for name, fact in vars(error).items() if isinstance(fact, str | int) and not isinstance(fact, bool)
    }
    # The code of the refusal says more.
    named.pop("http_status", None)
    assert str(error)
    assert {name: fact for name, fact in named.items() if str(fact) not in str(error)} == {}


def test_a_cause_and_notes_travel_as_far_as_python_lets_them() -> None:
    error = UserError("where", "found", "expected")
    error.add_note("seen by member-1")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen by member-1"]  # noqa: S301


def test_a_refusal_is_final_and_a_failure_is_not() -> None:
    assert PublishFailed.retriable
    assert not PublishRefused.retriable
