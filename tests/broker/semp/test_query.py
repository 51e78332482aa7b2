import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.query import Item, Query

QUEUES = "config/msgVpns/default/queues"


def item(name, **row):
    return Item(("queues", name), {"name": name, **row})


def listed(one):
    return one.path, lambda: one


def names(page):
    return [each.row["name"] for each in page.items]


def chosen(query, *items):
    return names(Query.parse(query).page_of(map(listed, items)))


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("name==b", ["b"]),
        ("name!=b", ["a/1", "a/2"]),
        ("name==a/*", ["a/1", "a/2"]),
        ("name!=a/*", ["b"]),
        ("name==*", ["a/1", "a/2", "b"]),
        ("name>a/1", ["a/2", "b"]),
        ("size>=2", ["a/2", "b"]),
        ("size<2", ["a/1"]),
        ("size==2", ["a/2"]),
        ("size!=2", ["a/1", "b"]),
        ("size<=1", ["a/1"]),
        ("on==true", ["a/1", "b"]),
        ("on!=TRUE", ["a/2"]),
        ("name==a/*,size>1", ["a/2"]),
        ("name%3D%3Da%2F1", ["a/1"]),
        ("name==a,size==1", []),
        ("name==c%2Cd", ["c,d"]),
        ("name%3D%3Da%2F%2A%2Csize%3E1", ["a/2"]),
        ("name%3D%3Dc%2Cd%2Csize%3C%3D0%2Con%21%3Dtrue", ["c,d"]),
    ],
)
def test_conditions(where, wanted):
    items = (
        *([item("c,d", size=0, on=False)] if "c%2Cd" in where else []),
        item("b", size=10, on=True),
        item("a/1", size=1, on=True),
        item("a/2", size=2, on=False),
    )
    assert chosen(f"where={where}", *items) == wanted


@pytest.mark.parametrize(
    "query",
    [
        "where=name",
        "where=colour==red",
        "where=size==x",
        "where=on==1",
        "where=size>" + "9" * 5_000,
        "count=0",
        "count=101",
        "count=x",
        "count=" + "9" * 5_000,
        "cursor=???",
        "where=name==a&where=size==1",
        "select=name&count=1&select=size",
        "count=1&count=2",
    ],
)
def test_what_cannot_be_understood_is_refused(query):
    with pytest.raises(SempFault):
        chosen(query, item("a", size=1, on=True))


@pytest.mark.parametrize(
    ("select", "wanted", "counted"),
    [
        ("*", {"name", "size", "on"}, {"msgs", "flows"}),
        ("", set(), set()),
        ("name,size", {"name", "size"}, set()),
        ("name%2Csize", {"name", "size"}, set()),
        ("-size", {"name", "on"}, {"msgs", "flows"}),
        ("*,-na*", {"size", "on"}, {"msgs", "flows"}),
        ("s*", {"size"}, set()),
        ("*m*", {"name"}, {"msgs"}),
        ("msgs,size", {"size"}, {"msgs"}),
        ("msgs.count", set(), {"msgs"}),
        ("-msgs", {"name", "size", "on"}, {"flows"}),
    ],
)
def test_selected_attributes(select, wanted, counted):
    one = Item(("queues", "a"), {"name": "a", "size": 1, "on": True}, counts={"msgs": 7, "flows": 0})
    row, counts = Query.parse(f"select={select}").shown(one)
    assert (set(row), counts) == (wanted, {name: {"count": one.counts[name]} for name in counted})
    assert Query.parse("").shown(one) == Query.parse("select=*").shown(one)


def test_parts_of_an_attribute_are_selected_and_compared():
    one = item("a", limit={"clear": 60, "set": 80}, size=1)
    assert Query.parse("select=limit").shown(one)[0] == {"limit": {"clear": 60, "set": 80}}
    assert Query.parse("select=name,limit.set").shown(one)[0] == {"name": "a", "limit": {"set": 80}}
    assert Query.parse("select=-limit.set,-na*").shown(one)[0] == {"limit": {"clear": 60}, "size": 1}
    assert chosen("where=limit.set>70", one) == ["a"]
    assert chosen("where=limit.set>80", one) == []
    for where in ("limit==x", "limit.low>1", "size.set>1"):
        with pytest.raises(SempFault, match=where.rstrip("=x>1")):
            chosen(f"where={where}", one)


def test_what_an_object_has_not_is_not_shown_and_meets_no_condition():
    one = item("a", size=None)
    assert Query.parse("select=name,size").shown(one)[0] == Query.parse("").shown(one)[0] == {"name": "a"}
    for where in ("size==1", "size!=1", "size>0"):
        assert chosen(f"where={where}", one) == []


def test_an_unknown_attribute_cannot_be_selected():
    for select in ("colour", "col*", "-colour", "name.count"):
        with pytest.raises(SempFault, match=select.strip("-*")):
            Query.parse(f"select={select}").shown(item("a"))
    with pytest.raises(SempFault, match="256"):
        Query.parse("select=" + "a," * 257)


@given(st.sets(st.text(min_size=1), max_size=30), st.integers(1, 12), st.data())
def test_pages_show_everything_that_stays_exactly_once(all_names, count, data):
    coming = sorted(all_names)
    there = set(data.draw(st.lists(st.sampled_from(coming)))) if coming else set()
    stays = set(there)
    seen, cursor = [], None
    while True:
        query = Query.parse(f"count={count}" + (f"&cursor={cursor}" if cursor else ""))
        page = query.page_of(listed(item(name)) for name in there)
        seen += names(page)
        cursor = page.cursor
        if cursor is None:
            break
        for name in data.draw(st.lists(st.sampled_from(coming), max_size=3)):
            if name in there:
                there.remove(name)
                stays.discard(name)
            else:
                there.add(name)
    assert len(seen) == len(set(seen))
    assert stays <= set(seen)


async def test_a_collection_is_walked_by_its_next_page_uris(desk):
    for number in range(25):
        await desk.post(QUEUES, queueName=f"orders/{number:02}")
    await desk.post(QUEUES, queueName="other")
    answer = await desk.ask("GET", QUEUES, query="where=queueName==orders*&select=queueName")
    found = answer["data"]
    assert len(found) == 10
    while paging := answer["meta"].get("paging"):
        assert paging["cursorQuery"] in paging["nextPageUri"]
        answer = (await desk.http.get(paging["nextPageUri"], auth=("admin", "admin"))).json()
        found += answer["data"]
    assert found == [{"queueName": f"orders/{number:02}"} for number in range(25)]
