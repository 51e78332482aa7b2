"""The configuration API: create, read, replace, change and delete, the same for every kind of object."""

from collections.abc import Mapping
from functools import partial

import orjson

from lbg_runtime.broker.engine.effects import CarryOut
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.semp import objects, reply
from lbg_runtime.broker.semp.access import AccessLevel, Administrator
from lbg_runtime.broker.semp.accounts import AccountRows
from lbg_runtime.broker.semp.collection import Collection, Kept, Nowhere, Rows
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.query import Item, Query
from lbg_runtime.broker.semp.queues import Queues, Subscriptions
from lbg_runtime.broker.semp.replay_logs import ReplayLogs
from lbg_runtime.broker.semp.reply import Request
from lbg_runtime.broker.semp.schema import Json, Row
from lbg_runtime.broker.semp.target import Key, Target, find_target
from lbg_runtime.broker.semp.vpns import Vpns
from lbg_runtime.model.errors import LbgError, UserError
from lbg_runtime.model.semp_code import SempCode


class Configuration:
    """Called by the HTTP front end, on the loop's thread; a request is carried out entirely before the next one."""

    def __init__(self, engine: Engine, carry_out: CarryOut, kept: Kept | None) -> None:
        """`kept`: where state that the engine does not keep outlives the broker; its contents take effect now, and
        `UserError` is raised if they cannot be what was written."""
        kept = kept or Nowhere()
        accounts = AccountRows(engine.administration, carry_out, kept)
        self._collections: Mapping[str, Collection] = {
            objects.VPN.noun: Vpns(engine.administration, accounts, kept),
            objects.QUEUE.noun: Queues(engine, carry_out),
            objects.SUBSCRIPTION.noun: Subscriptions(engine),
            objects.CLIENT_USERNAME.noun: accounts.usernames,
            objects.CLIENT_PROFILE.noun: accounts.client_profiles,
            objects.ACL_PROFILE.noun: accounts.acl_profiles,
            objects.CONNECT_EXCEPTION.noun: accounts.connect_exceptions,
            objects.PUBLISH_EXCEPTION.noun: accounts.publish_exceptions,
            objects.SUBSCRIBE_EXCEPTION.noun: accounts.subscribe_exceptions,
            objects.JNDI_QUEUE.noun: Rows(objects.JNDI_QUEUE.noun, kept),
            objects.REPLAY_LOG.noun: ReplayLogs(engine),
        }
        self._restore(kept, accounts)

    def handle(self, request: Request, administrator: Administrator) -> Row:
        """Answer a request; raises `SempFault`."""
        target = find_target(objects.VPN, request.segments)
        if target is None:
            raise SempFault(SempCode.PARSE_ERROR, f"there is nothing at {'/'.join(request.segments)}")
        self._check_rights(request.method, target, administrator)
        self._check_above(target)
        match request.method, target.is_collection:
            case "GET", True:
                return self._list(request, target, administrator)
            case "GET", False:
                return self._show(request, target)
            case "POST", True:
                return self._create(request, target, reply.read_body(request.body))
            case "PATCH", False:
                return self._change(request, target, self._found(target))
            case "PUT", False:
                return self._replace(request, target)
            case "DELETE", False:
                return self._delete(request, target)
            case method, _:
                raise SempFault(SempCode.NOT_SUPPORTED, f"{method} is not for {target.type.collection}")

    def _restore(self, kept: Kept, accounts: AccountRows) -> None:
        rows = kept.rows()
        try:
            for noun, encoded_keys, body in rows:
                collection = self._collections[noun]
                if isinstance(collection, Rows | Vpns):
                    collection.restore(tuple(tuple(key) for key in orjson.loads(encoded_keys)), orjson.loads(body))
            accounts.apply_all()
        except (LookupError, TypeError, ValueError, LbgError) as error:
            where = "what administrators configured, in the store"
            raise UserError(where, f"it is damaged: {error!r}", "an undamaged store") from error

    # -- verbs

    def _list(self, request: Request, target: Target, administrator: Administrator) -> Row:
        collection = self._collections[target.type.noun]
        query = Query.parse(request.query)
        members = [target.member(key) for key in collection.keys(target.above)]
        visible = [each for each in members if administrator.level_in(each.keys[0][0]).includes(AccessLevel.READ_ONLY)]
        return reply.many(request, query.page_of((each.path(), partial(self._item, each)) for each in visible), query)

    def _show(self, request: Request, target: Target) -> Row:
        self._found(target)
        return reply.one(request, self._item(target), Query.parse(request.query))

    def _create(self, request: Request, target: Target, body: Row) -> Row:
        if target.type.is_fixed:
            raise SempFault(SempCode.NOT_SUPPORTED, f"a {target.type.noun} cannot be created here")
        query = Query.parse(request.query)
        key = _key_in(body, target)
        created = target.member(key)
        attributes = _attributes_in(body, created)
        collection = self._collections[target.type.noun]
        if collection.read(created.keys) is not None:
            raise SempFault(SempCode.ALREADY_EXISTS, f"{target.type.noun} {','.join(key)} already exists")
        collection.create(created.keys, {**target.type.defaults(), **attributes})
        return reply.one(request, self._item(created), query)

    def _replace(self, request: Request, target: Target) -> Row:
        is_there = self._collections[target.type.noun].read(target.keys) is not None
        if is_there or target.type.is_fixed or not target.type.attributes:
            return self._change(request, target, target.type.defaults())
        attributes = _attributes_in(reply.read_body(request.body), target)
        return self._create(request, Target(target.types, target.above), attributes | target.key_row())

    def _change(self, request: Request, target: Target, kept: Row) -> Row:
        before = self._found(target)
        if not target.type.attributes:
            raise SempFault(SempCode.NOT_SUPPORTED, f"a {target.type.noun} has nothing to change")
        query = Query.parse(request.query)
        attributes = _attributes_in(reply.read_body(request.body), target)
        # Secrets cannot be read, so replacing an object without giving them keeps them.
        secrets = {name: value for name, value in before.items() if name not in target.type.readable(before)}
        self._collections[target.type.noun].change(target.keys, before, {**kept, **secrets, **attributes})
        return reply.one(request, self._item(target), query)

    def _delete(self, request: Request, target: Target) -> Row:
        self._found(target)
        if target.type.is_fixed:
            raise SempFault(SempCode.NOT_SUPPORTED, f"a {target.type.noun} cannot be deleted here")
        self._collections[target.type.noun].delete(target.keys)
        return reply.done(request)

    # -- parts

    def _item(self, target: Target) -> Item:
        # Not looked for if there is nothing to read: a queue may have very many subscriptions, and would be asked for
        # all of them once for each.
        row = target.type.readable(self._found(target)) if target.type.attributes else {}
        below = tuple(child.collection for child in target.type.children)
        return Item(target.path(), {**target.key_row(), **row}, below)

    def _found(self, target: Target) -> Row:
        row = self._collections[target.type.noun].read(target.keys)
        if row is None:
            raise SempFault(SempCode.NOT_FOUND, f"{target.type.noun} {','.join(target.keys[-1])} does not exist")
        return row

    def _check_above(self, target: Target) -> None:
        for depth in range(1, len(target.types)):
            self._found(Target(target.types[:depth], target.keys[:depth]))

    def _check_rights(self, method: str, target: Target, administrator: Administrator) -> None:
        if not target.keys:
            return  # The list of VPNs shows each administrator their own.
        vpn = target.keys[0][0]
        if method == "GET":
            administrator.check_read(vpn)
        else:
            administrator.check_write(vpn, target.type.write_level)


def _key_in(body: Mapping[str, Json], target: Target) -> Key:
    parts: list[str] = []
    for part in target.type.key:
        if part.name not in body:
            raise SempFault(SempCode.MISSING_PARAMETER, f"a {target.type.noun} needs {part.name}")
        part.check(body[part.name])
        parts.append(str(body[part.name]))
    return tuple(parts)


def _attributes_in(body: Mapping[str, Json], target: Target) -> Row:
    """The body's attributes, except the names of the object and those above it, which must match the path."""
    names = target.key_row()
    for name, value in names.items():
        if body.get(name, value) != value:
            raise SempFault(SempCode.INVALID_PARAMETER, f"{name} {body[name]!r} is not the one in the path")
    attributes = {name: value for name, value in body.items() if name not in names}
    target.type.check(attributes)
    return attributes
