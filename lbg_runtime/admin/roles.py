"""Who works on a group, and what each of them may do on the broker: what its work needs, and nothing else. Pure."""

from dataclasses import dataclass, field
from enum import Enum

from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.core.restripe.records import record_prefix
from lbg_runtime.model.failure import ERROR_TOPIC_PREFIX
from lbg_runtime.model.group import GroupShape


class Role(Enum):
    """One account each. The work of a role without an account of its own is done with the members'."""

    MEMBER = "member"
    PUBLISHER = "publisher"
    CONDUCTOR = "conductor"
    """Re-stripes, and listens to what members and their journals say."""


@dataclass(frozen=True, slots=True)
class Login:
    """A client username and its password, which no representation shows."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one role may do."""

    publish: tuple[str, ...]
    """Each may publish persistently."""
    subscribe: tuple[str, ...] = ()
    may_receive: bool = False
    """Bind to queues; their owner says to which."""
    may_create_queues: bool = False


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics of a group's work besides those of its shards."""

    control: str = ""
    """On which members talk to each other."""
    notes: str | None = None
    """On which members report what they have handled, for whoever validates it live."""
    more: tuple[str, ...] = ()
    """Others that members publish to: for their handlers, and to the dead message queue."""


NO_TOPICS = Topics()


def grant_of(role: Role, given: frozenset[Role], shape: GroupShape, topics: Topics, *, creates_queues: bool) -> Grant:
    """What a role needs in a group in which these roles have accounts."""
    shards = f"{shape.hash_prefix}/>"
    notes = () if topics.notes is None else (topics.notes,)
    # A plan of a re-striping tells every member to look elsewhere; whoever may publish one can stop the group.
    conducting = Grant(
        publish=(topics.control, f"{record_prefix(topics.control)}>"), subscribe=(topics.control, *notes)
    )
    match role:
        case Role.PUBLISHER:
            return Grant(publish=(shards,))
        case Role.CONDUCTOR:
            return conducting
        case Role.MEMBER:
            set_aside = (f"{ERROR_TOPIC_PREFIX}{shape.name}", f"{PARKING_PREFIX}{shape.name}/>")
            publish = [topics.control, *set_aside, *notes, *topics.more]
            subscribe = [topics.control]
            if Role.PUBLISHER not in given:
                publish.append(shards)
            if Role.CONDUCTOR not in given:
                publish += conducting.publish
                subscribe += conducting.subscribe
            if creates_queues:
                # The queues that it makes subscribe in its name.
                subscribe += (shards, *set_aside)
            return Grant(
                publish=tuple(dict.fromkeys(publish)),
                subscribe=tuple(dict.fromkeys(subscribe)),
                may_receive=True,
                may_create_queues=creates_queues,
            )
