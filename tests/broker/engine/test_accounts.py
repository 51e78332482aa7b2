import pytest

from lbg_runtime.broker.engine.accounts import Account, Accounts, AclProfile, AddressRule, TopicRule
from lbg_runtime.model.errors import BrokerRefusal


@pytest.mark.parametrize(
    ("rule", "topic", "allowed"),
    [
        (TopicRule(), "a/b", True),
        (TopicRule(False), "a/b", False),
        (TopicRule(True, ("a/>",)), "a/b", False),
        (TopicRule(True, ("a/>",)), "b", True),
        (TopicRule(False, ("a/*", "c")), "a/b", True),
        (TopicRule(False, ("a/*", "c")), "a/b/c", False),
        # As a subscription: an exception speaks for it where it covers all of it.
        (TopicRule(False, ("a/*",)), "a/>", False),
        (TopicRule(False, ("*",)), ">", False),
        (TopicRule(False, ("a/>",)), "a/>", True),
        (TopicRule(False, ("a/>",)), "a/b/>", True),
        # A client's own inboxes, without which it could not even log in.
        (TopicRule(False), "#P2P/v:broker/1/ann/>", True),
        (TopicRule(False, ("a",)), "#P2P/v:broker/1/ann/>", True),
    ],
)
def test_a_topic_rule_allows_by_default_or_by_exception(rule, topic, allowed):
    assert rule.allows(topic) is allowed


@pytest.mark.parametrize(
    ("rule", "address", "allowed"),
    [
        (AddressRule(), "10.1.2.3", True),
        (AddressRule(False), "10.1.2.3", False),
        (AddressRule(True, ("10.0.0.0/8",)), "10.1.2.3", False),
        (AddressRule(False, ("10.0.0.0/8", "::1/128")), "10.1.2.3", True),
        (AddressRule(False, ("10.0.0.0/8", "::1/128")), "::1", True),
        (AddressRule(False, ("10.0.0.0/8",)), "11.1.2.3", False),
        (AddressRule(False, ("10.0.0.0/8",)), "", False),
    ],
)
def test_an_address_rule_is_of_networks(rule, address, allowed):
    assert rule.allows(address) is allowed


def log_in(accounts, username, password="", address=""):
    try:
        return accounts.log_in(username, password, address).name
    except BrokerRefusal as refusal:
        return str(refusal)


def test_an_unknown_username_has_the_default_account_until_the_accounts_are_closed():
    accounts = Accounts()
    assert log_in(accounts, "anybody") == "default"
    accounts.is_closed = True
    assert log_in(accounts, "anybody") == "401 Unauthorized"
    assert log_in(accounts, "default") == "default"


def test_a_disabled_account_lets_nobody_in_and_the_default_one_no_unknown_either():
    accounts = Accounts()
    accounts.put(Account("ann", is_enabled=False))
    accounts.put(Account("default", is_enabled=False))
    assert log_in(accounts, "ann") == "403 Client Username Is Shutdown"
    assert log_in(accounts, "bob") == "403 Client Username Is Shutdown"


def test_a_password_counts_where_there_is_one():
    accounts = Accounts()
    accounts.put(Account("ann", password="right"))
    accounts.put(Account("bob"))
    assert log_in(accounts, "ann", "right") == "ann"
    assert log_in(accounts, "ann", "wrong") == "401 Unauthorized"
    assert log_in(accounts, "bob", "whatever") == "bob"


def test_an_acl_profile_says_where_from():
    accounts = Accounts()
    accounts.put(Account("ann", acl=AclProfile(AddressRule(False, ("127.0.0.0/8",)))))
    assert log_in(accounts, "ann", address="127.0.0.1") == "ann"
    assert log_in(accounts, "ann", address="10.0.0.1") == "403 Forbidden"


def test_a_change_is_seen_by_those_who_have_the_account():
    accounts = Accounts()
    accounts.put(Account("ann"))
    held = accounts.log_in("ann", "", "")
    accounts.put(Account("ann", acl=AclProfile(publish=TopicRule(False))))
    assert not held.acl.publish.allows("a")


def test_a_username_that_is_removed_is_unknown_again():
    accounts = Accounts()
    accounts.put(Account("ann", is_enabled=False))
    accounts.remove("ann")
    accounts.remove("nobody")
    assert log_in(accounts, "ann") == "default"
    assert [account.name for account in accounts.all()] == ["default"]


def test_passwords_can_be_switched_off_and_who_has_shown_who_it_is_needs_none():
    accounts = Accounts()
    accounts.put(Account("ann", password="secret"))
    assert accounts.log_in("ann", None, "").name == "ann"
    accounts.takes_passwords = False
    for username, password in (("ann", "secret"), ("anybody", "")):
        with pytest.raises(BrokerRefusal, match="403 Basic Authentication Is Shutdown"):
            accounts.log_in(username, password, "")
    assert accounts.log_in("ann", None, "").name == "ann"
    accounts.is_closed = True
    with pytest.raises(BrokerRefusal, match="401 Unauthorized"):
        accounts.log_in("nobody", None, "")
