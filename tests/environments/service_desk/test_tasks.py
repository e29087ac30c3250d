"""Tasks, policy and players: solvable by the reference, splits apart, decisions as the written policy says."""

from collections import Counter, defaultdict
from contextlib import closing

import numpy as np
import pytest

from agentgym_rtmc import load_task_set
from agentgym_rtmc.environments.service_desk import players
from agentgym_rtmc.environments.service_desk.breaches import find_breach
from agentgym_rtmc.environments.service_desk.desk import Desk
from agentgym_rtmc.environments.service_desk.env import ServiceDeskEnv
from agentgym_rtmc.environments.service_desk.plan import reference_calls
from agentgym_rtmc.environments.service_desk.policy import Policy, Request, decide
from agentgym_rtmc.environments.service_desk.scenario import Case
from agentgym_rtmc.environments.service_desk.shop import RECORDS, SCHEMA, make_shop, prepare_shop
from agentgym_rtmc.environments.service_desk.tasks import LENGTHS, SPLITS, family_of, is_kept_out
from agentgym_rtmc.errors import ConfigError, ToolError


def play(player, tasks, style="compact", seed=0):
    """Total rewards, by task."""
    env = ServiceDeskEnv(style=style)
    totals = []
    for number, task in enumerate(tasks):
        observation, _ = env.reset(seed=seed, options={"task": task})
        acting = player(task, observation, np.random.default_rng([seed, number]))
        total, over, action = 0.0, False, next(acting)
        while not over:
            observation, reward, terminated, truncated, _ = env.step(action)
            total += reward
            over = terminated or truncated
            try:
                action = acting.send(observation)
            except StopIteration:
                total += 0 if over else env.finish("stopped")[1]
                over = True
        totals.append(total)
    return totals


@pytest.mark.parametrize("split", SPLITS)
def test_the_reference_is_paid_one(tasks, split):
    for style in ("compact", "full"):
        assert play(players.reference, tasks.split(split)[:200], style) == pytest.approx(
            [1.0] * len(tasks.split(split)[:200])
        )


def test_sizes_levels_and_lengths(tasks):
    assert tasks.splits == {"train": 1000, **dict.fromkeys(SPLITS[1:], 200)}
    levels = Counter(task.public["level"] for task in tasks.split("train"))
    assert max(levels.values()) - min(levels.values()) < 30 and set(levels) == {1, 2, 3, 4, 5}
    for task in tasks:
        case, level = Case.of(task), task.public["level"]
        fewest, most = LENGTHS[level]
        impostor = not case.verifiable
        assert (impostor and level == 3) or fewest <= len(reference_calls(case)) <= most


def test_no_two_tasks_are_equal_and_splits_share_no_shop(tasks):
    shops = defaultdict(set)
    seen = set()
    for split in SPLITS:
        for task in tasks.split(split):
            shops[split].add(task.public["shop"])
            seen.add((task.public["shop"], Case.of(task).scenario))
    assert len(seen) == len(tasks)
    assert sum(map(len, shops.values())) == len(set().union(*shops.values()))


def test_held_out_policies_and_combinations_are_not_trained_on(tasks):
    known = defaultdict(set)
    for split in ("train", "validation", "test", "combinations"):
        for task in tasks.split(split):
            for name, value in task.public["policy"].items():
                known[name].add(value)
    for task in tasks.split("policies"):
        assert all(value not in known[name] for name, value in task.public["policy"].items())
    pairs = {split: {"+".join(sorted(t.public["family"].split("+"))) for t in tasks.split(split)} for split in SPLITS}
    assert not pairs["combinations"] & (pairs["train"] | pairs["validation"] | pairs["test"])
    assert all(pair.count("+") == 1 for pair in pairs["combinations"]) and len(pairs["combinations"]) > 8
    assert is_kept_out("return+price") == is_kept_out("price+return") and not is_kept_out("price")


def test_all_kinds_refusals_and_manners_occur(tasks):
    kinds, ends, manners = Counter(), Counter(), Counter()
    for task in tasks.split("train"):
        case = Case.of(task)
        manners[case.scenario.manner] += 1
        kinds.update(request.kind for request in case.scenario.requests)
        ends.update(d.last.arguments.get("reason", d.last.name) for d in case.decisions())
    assert len(kinds) == 12 and len(manners) == 6 and len(ends) == 12
    assert min(kinds.values()) > 15 and min(manners.values()) > 30
    assert 0.35 < ends["tell_customer"] / ends.total() < 0.65


def test_loading_is_a_function_of_its_options():
    options = {"tasks": 30, "heldout_tasks": 5}
    one, again = (load_task_set("ServiceDesk-v0", **options) for _ in range(2))
    assert [task.model_dump() for task in one] == [task.model_dump() for task in again]
    other = load_task_set("ServiceDesk-v0", **options, seed=1)
    assert not {task.public["shop"] for task in one} & {task.public["shop"] for task in other}
    assert {t.public["level"] for t in load_task_set("ServiceDesk-v0", **options, levels=[2, 3]).split("train")} == {
        2,
        3,
    }
    assert load_task_set("ServiceDesk-v0", limit=7).splits == dict.fromkeys(SPLITS, 7)


@pytest.mark.parametrize("options", [{"tasks": 0}, {"limit": -1}, {"levels": [6]}, {"levels": []}, {"seed": -1}])
def test_impossible_options_of_the_set_are_refused(options):
    with pytest.raises(ConfigError):
        load_task_set("ServiceDesk-v0", **options)


@pytest.mark.full
def test_all_tasks_of_the_full_set():
    for task_set in (load_task_set("ServiceDesk-v0"), load_task_set("ServiceDesk-v0", seed=3)):
        assert play(players.reference, list(task_set)) == pytest.approx([1.0] * len(task_set))


def test_players_rank_as_they_should(tasks):
    chosen = tasks.split("validation")
    success = {
        player.__name__: np.mean(np.array(play(player, chosen)) >= 1 - 1e-9)
        for player in (players.random_player, players.demonstrator, players.reference)
    }
    assert success["random_player"] < 0.06 < 0.3 < success["demonstrator"] < 0.7 < success["reference"] == 1


def test_schema_is_all_told_apart():
    tables = {line.split("(")[0].removeprefix("CREATE TABLE ") for line in SCHEMA.splitlines() if "CREATE" in line}
    assert tables == {*RECORDS, "contact", "lookups"}


def test_shops_hold_what_the_policy_is_about():
    for number in range(40):
        shop = make_shop(number)
        assert len(shop.customers) == 24 and len(shop.orders) == 80 and len(shop.items) == 39
        names = Counter((c.name, c.city) for c in shop.customers.values())
        assert max(names.values()) == 1
        with closing(prepare_shop(number).fork()) as connection:
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            assert connection.execute("SELECT count(*) FROM orders").fetchone() == (80,)


# The written policy, case by case. `want` is the answer or the reason.
POLICY = Policy(return_days=14, human_above=50, late_days=2, late_credit=5, notice_days=2, final_sale="food")


def first(shop, condition):
    return next(order for order in shop.orders.values() if condition(order, shop.items[order.item]))


def delivered(order, item):
    return order.status == "delivered" and item.category != "food"


@pytest.mark.parametrize(
    ("kind", "condition", "want"),
    [
        ("cancel", lambda o, i: o.status == "placed" and o.method == "card", ["cancel_order", "refund_payment"]),
        ("cancel", lambda o, i: o.status == "placed" and o.method == "gift", ["cancel_order", "give_credit"]),
        ("cancel", lambda o, i: o.status == "placed" and o.method is None, ["cancel_order"]),
        ("cancel", lambda o, i: o.status == "shipped", "shipped"),
        ("cancel", lambda o, i: delivered(o, i) and o.days <= 14 and o.total <= 50, ["return_order", None]),
        ("cancel", lambda o, i: o.status == "placed" and o.total > 50 and o.method, ["cancel_order", None]),
        ("return", lambda o, i: delivered(o, i) and o.days > 14, "too_late"),
        ("return", lambda o, i: delivered(o, i) and o.days <= 14 and o.total > 50, "large_amount"),
        ("return", lambda o, i: o.status == "delivered" and i.category == "food" and o.days > 14, "final_sale"),
        ("return", lambda o, i: o.status == "shipped", "shipped"),
        ("late", lambda o, i: o.late > 2, ["give_credit"]),
        ("late", lambda o, i: o.status == "delivered" and o.late <= 2, "not_late"),
        ("late", lambda o, i: o.status == "placed", "not_late"),
        ("address", lambda o, i: o.status == "placed", ["set_city"]),
        ("address", lambda o, i: o.status == "delivered", "shipped"),
        ("status", lambda o, i: True, []),
        ("injury", lambda o, i: True, "injury"),
        ("legal", lambda o, i: True, "legal"),
    ],
)
def test_the_policy_decides_orders(kind, condition, want):
    shop = next(
        shop
        for shop in map(make_shop, range(50))
        if any(condition(o, shop.items[o.item]) for o in shop.orders.values())
    )
    order = first(shop, condition)
    decision = decide(POLICY, shop, order.customer, True, Request(kind=kind, order=order.id, city="Oslo"))
    if isinstance(want, str):
        assert decision.last.arguments == {"reason": want} and not decision.changes
        return
    names = [call.name for call in decision.changes]
    assert len(names) == len(want) and all(w in (None, n) for n, w in zip(names, want, strict=True))
    assert decision.last.name == "tell_customer"


def test_the_policy_decides_exchanges_and_bookings():
    seen = Counter()
    for shop in map(make_shop, range(30)):
        for order in shop.orders.values():
            if not (delivered(order, shop.items[order.item]) and order.days <= 14):
                continue
            new = next(i for i in shop.items.values() if i.id != order.item)
            decision = decide(POLICY, shop, order.customer, True, Request(kind="exchange", order=order.id, item=new.id))
            enough = new.stock >= order.count
            assert decision.last.arguments == ({"answer": new.id} if enough else {"reason": "out_of_stock"})
            seen["exchange", enough] += 1
        for booking in shop.bookings.values():
            request = Request(kind="move", booking=booking.id, day=9)
            last = decide(POLICY, shop, booking.customer, True, request).last
            right = {"reason": "too_late"} if booking.ahead < 2 else {"reason": "no_slot"}
            right = {"answer": 9} if booking.ahead >= 2 and shop.free[9] else right
            assert last.arguments == right
            seen["move", str(right)] += 1
            stranger = next(c for c in shop.customers if c != booking.customer)
            assert decide(POLICY, shop, stranger, True, request).last.arguments == {"reason": "not_yours"}
            assert decide(POLICY, shop, stranger, False, request).last.arguments == {"reason": "identity"}
    assert len(seen) == 5


def test_what_is_decided_is_no_breach_and_what_is_forbidden_is():
    """`decide` and `find_breach` are written apart: on every order of some shops they agree."""
    desk = Desk("compact")
    tools = {tool.__name__: tool for tool in desk.tools()}
    forbidden = {
        "cancel": "cancel_order",
        "return": "return_order",
        "exchange": "exchange_order",
        "address": "set_city",
    }
    agreed = Counter()
    for number in range(4):
        shop = make_shop(number)
        for order in shop.orders.values():
            others = [i for i in shop.items.values() if i.name == shop.items[order.item].name and i.id != order.item]
            for kind in ("cancel", "return", "exchange", "late", "address"):
                request = Request(kind=kind, order=order.id, item=others[0].id, city="Oslo")
                decision = decide(POLICY, shop, order.customer, True, request)
                with closing(prepare_shop(number).fork()) as connection:
                    connection.execute("UPDATE contact SET verified = ?", (order.customer,))
                    desk.begin(connection, POLICY)
                    for call in decision.changes:
                        tools[call.name](**call.arguments)
                    assert desk.breaches == []
                    reason = decision.last.arguments.get("reason")
                    if not decision.changes and kind in forbidden and reason != "out_of_stock":
                        assert find_breach(connection, POLICY, forbidden[kind], {"order": order.id}), (kind, order)
                    if reason == "not_late":
                        amounts = {"customer": order.customer, "amount": 5}
                        others_late = any(
                            o.customer == order.customer and o.late > POLICY.late_days for o in shop.orders.values()
                        )
                        assert (find_breach(connection, POLICY, "give_credit", amounts) is None) == others_late
                    agreed[kind, reason] += 1
    assert len(agreed) > 10


def test_tools_refuse_what_the_database_cannot_hold():
    shop = make_shop(3)
    desk = Desk("full")
    with closing(prepare_shop(3).fork()) as connection:
        desk.begin(connection, POLICY)
        gone = next(i for i in shop.items.values() if i.stock == 0)
        order = first(shop, lambda o, i: o.status == "delivered" and o.method == "card" and i.id != gone.id)
        gift = first(shop, lambda o, i: o.method == "gift")
        unpaid = first(shop, lambda o, i: o.method is None)
        before = connection.execute("SELECT * FROM stock").fetchall()
        for refused in (
            lambda: desk.exchange_order(order.id, gone.id),
            lambda: desk.exchange_order(order.id, order.item),
            lambda: desk.exchange_order(order.id, 99999),
            lambda: desk.refund_payment(order.id, order.total + 1),
            lambda: desk.refund_payment(gift.id, 1),
            lambda: desk.refund_payment(unpaid.id, 1),
            lambda: desk.set_city(order.id, "Atlantis'; DROP TABLE orders; --"),
            lambda: desk.cancel_order(99999),
            lambda: desk.give_credit(99999, 1),
            lambda: desk.cancel_booking(99999),
            lambda: desk.get_customer(99999),
        ):
            with pytest.raises(ToolError):
                refused()
        assert connection.execute("SELECT * FROM stock").fetchall() == before and desk.breaches == []
        desk.return_order(order.id)
        with pytest.raises(ToolError, match="returned already"):
            desk.return_order(order.id)
        booking = next(iter(shop.bookings))
        desk.cancel_booking(booking)
        with pytest.raises(ToolError, match="cancelled already"):
            desk.move_booking(booking, 3)


def test_families_are_named_in_order():
    assert family_of([Request(kind="price", item=1), Request(kind="late", order=2)]) == "price+late"
