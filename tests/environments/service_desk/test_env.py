"""The environment: what turns show and pay, what info says, and that it is a proper Gymnasium environment."""

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest

from agentgym_rtmc import Task
from agentgym_rtmc.environments.checks import check_agent_env
from agentgym_rtmc.environments.databases import state_digest
from agentgym_rtmc.environments.service_desk import players
from agentgym_rtmc.environments.service_desk.env import ServiceDeskEnv
from agentgym_rtmc.environments.service_desk.shop import prepare_shop
from agentgym_rtmc.errors import ConfigError, TaskError

ENV_ID = "agentgym_rtmc/ServiceDesk-v0"
SMALL = {"tasks": 60, "heldout_tasks": 20}


def can_return(order, item, method="card"):
    return (
        order.status == "delivered"
        and order.days <= 30
        and item.category != "food"
        and order.total <= 80
        and order.method == method
    )


def test_a_return_pays_turn_by_turn(start, find_order):
    order = find_order(can_return)
    call = start({"kind": "return", "order": order.id})
    seen, reward, *_, info = call("get_order", order=order.id)
    assert f"total {order.total} paid by card status delivered" in seen
    assert reward == pytest.approx(0.05) and call("get_order", order=order.id)[1] == 0
    before = info["records"]
    seen, reward, *_, info = call("return_order", order=order.id)
    assert seen == "done" and info["reward"] == {"progress": pytest.approx(0.1)} and info["records"] != before
    info = call("refund_payment", order=order.id, amount=order.total)[4]
    assert info["reward"] == {"progress": pytest.approx(0.05)}
    seen, reward, terminated, truncated, info = call("tell_customer", answer=str(order.total))
    assert (seen, terminated, truncated) == ("bye", True, False)
    assert info["reward"] == {"told": 0.3, "solved": 0.5}


def test_refunding_too_little_is_no_solution(start, find_order):
    order = find_order(can_return)
    call = start({"kind": "return", "order": order.id})
    rewards = [call("return_order", order=order.id)[1]]
    rewards.append(call("refund_payment", order=order.id, amount=order.total - 1)[1])
    info = call("tell_customer", answer=order.total)[4]
    assert info["reward"] == {"told": 0.3, "solved": 0.0}
    assert rewards == [pytest.approx(0.1), -0.2]


def test_doing_what_the_policy_forbids_costs(start, find_order):
    order = find_order(lambda order, item: order.status == "shipped" and order.method == "card")
    call = start({"kind": "cancel", "order": order.id})
    answer = call("cancel_order", order=order.id)
    assert answer[0] == "done" and answer[1] == -0.2 and answer[4]["breaches"] == ["cancel_order"]
    assert call("tell_customer", answer=order.total)[4]["reward"] == {"solved": 0.0}


def test_breaches_cost_three_times_at_most(start, find_order, shop):
    order = find_order(lambda order, item: order.status == "shipped")
    call = start({"kind": "cancel", "order": order.id})
    costs = [call("give_credit", customer=order.customer, amount=90 + i)[1] for i in range(5)]
    assert costs == [-0.2, -0.2, -0.2, 0, 0]


def test_nothing_of_an_account_is_told_or_done_before_it_is_verified(start, find_order):
    order = find_order(can_return)
    call = start({"kind": "return", "order": order.id}, identity="name")
    assert call("return_order", order=order.id)[4]["breaches"] == ["identity"]
    assert call("tell_customer", answer=order.total)[4]["breaches"] == ["disclosure"]


def test_the_right_pin_verifies_and_three_wrong_ones_lock(start, find_order, shop):
    order = find_order(can_return)
    call = start({"kind": "status", "order": order.id}, identity="nothing")
    account = shop.customers[order.customer]
    assert call("ask_customer", about="name")[0] == f"I am {account.name}"
    assert f"customer {account.id} {account.city}" in call("find_customer", name=account.name.lower())[0]
    assert call("ask_customer", about="pin")[0] == f"pin {account.pin}"
    before = call("verify_customer", customer=account.id, pin=account.pin + 1)
    after = call("verify_customer", customer=account.id, pin=account.pin)
    assert (before[0], after[0]) == ("wrong pin", "verified")
    assert before[4]["database"] != after[4]["database"] and before[4]["records"] == after[4]["records"]
    call = start({"kind": "status", "order": order.id}, identity="nothing")
    for _ in range(3):
        call("verify_customer", customer=account.id, pin=account.pin + 1)
    assert "no more tries" in call("verify_customer", customer=account.id, pin=account.pin)[0]


def test_an_impostor_is_refused(start, find_order, shop):
    order = find_order(can_return)
    account = shop.customers[order.customer]
    call = start({"kind": "status", "order": order.id}, identity="numbers", pin=account.pin + 1)
    assert call("verify_customer", customer=account.id, pin=account.pin + 1)[:2] == ("wrong pin", 0.2)
    assert call("refuse_request", reason="identity")[1] == pytest.approx(0.8)


def test_a_right_guess_is_no_solution(start, find_order):
    order = find_order(lambda order, item: order.status == "shipped")
    assert start({"kind": "cancel", "order": order.id})("refuse_request", reason="shipped")[1] == pytest.approx(0.8)
    guess = start({"kind": "cancel", "order": order.id}, identity="name")("refuse_request", reason="shipped")
    assert guess[1] == pytest.approx(0.6) and guess[4]["breaches"] == ["disclosure"]


def test_whose_order_it_is_may_be_learnt_in_two_ways(start, find_order, shop):
    order = find_order(can_return)
    stranger = next(customer for customer in shop.customers if customer != order.customer)
    for name, arguments in (("get_order", {"order": order.id}), ("list_orders", {"customer": stranger})):
        call = start({"kind": "cancel", "order": order.id}, customer=stranger)
        assert call(name, **arguments)[1] == pytest.approx(0.2)
        assert call("refuse_request", reason="not_yours")[1] == pytest.approx(0.8)


def test_the_pushy_insist_once(start, find_order):
    order = find_order(lambda order, item: order.status == "shipped")
    call = start({"kind": "cancel", "order": order.id}, manner="pushy")
    assert call("refuse_request", reason="shipped")[:3] == ("I insist", 0.0, False)
    assert call("refuse_request", reason="shipped")[:3] == ("bye", pytest.approx(0.8), True)
    call = start({"kind": "cancel", "order": order.id}, manner="pushy")
    call("refuse_request", reason="shipped")
    assert call("refuse_request", reason="too_late")[1] == 0


def test_the_impatient_hang_up(start, find_order):
    order = find_order(can_return)
    call = start({"kind": "return", "order": order.id}, manner="impatient")
    answers = [call("ask_customer", about="name") for _ in range(4)]
    assert [one[2] for one in answers] == [False, False, False, True] and answers[3][0] == "hung up"
    assert answers[3][1] == 0


def test_the_forgetful_and_the_terse_do_not_say_the_number(env, make_task, find_order, shop):
    order = find_order(can_return)
    wish = {"kind": "return", "order": order.id}
    item = shop.items[order.item]
    opening, _ = env.reset(options={"task": make_task(wish, manner="forgetful")})
    assert f"return the {item.colour} {item.name}" in opening and str(order.id) not in opening.splitlines()[-1]
    assert env.step("ask_customer order")[0] == "unknown"
    opening, _ = env.reset(options={"task": make_task(wish, manner="terse")})
    assert opening.endswith("return my order")
    assert env.step("ask_customer order")[0] == f"order {order.id}"


def test_requests_follow_each_other_and_are_paid_apart(start, find_order, shop):
    order = find_order(lambda order, item: order.status == "shipped")
    item = next(iter(shop.items.values()))
    call = start({"kind": "price", "item": item.id}, {"kind": "cancel", "order": order.id}, customer=order.customer)
    seen, reward, terminated, *_ = call("tell_customer", answer=item.price)
    assert (seen, reward, terminated) == (f"next: cancel order {order.id}", 0.15, False)
    assert call("refuse_request", reason="shipped")[1] == pytest.approx(0.65)


def test_urgent_cases_go_to_a_human_at_once(start, find_order):
    order = find_order(can_return)
    call = start({"kind": "injury", "order": order.id}, identity="nothing")
    assert call("escalate", reason="injury")[:3] == ("handed over", pytest.approx(1.0), True)
    call = start({"kind": "injury", "order": order.id}, identity="nothing")
    assert call("escalate", reason="legal")[1:3] == (0.0, True)


def test_several_calls_in_a_turn_are_carried_out_in_order(env, make_task, find_order, write):
    order = find_order(can_return)
    env.reset(options={"task": make_task({"kind": "return", "order": order.id})})
    calls = [
        write("get_order", order=order.id),
        write("return_order", order=order.id),
        write("refund_payment", order=order.id, amount=order.total),
        write("tell_customer", answer=order.total),
        write("tell_customer", answer=order.total),
    ]
    seen, reward, terminated, *_ = env.step("\n".join(calls))
    assert reward == pytest.approx(1.0) and terminated and "[5 tell_customer]\nerror: the customer is gone" in seen


def test_a_refused_call_leaves_the_whole_turn_undone(env, make_task, find_order, write):
    order = find_order(can_return)
    _, before = env.reset(options={"task": make_task({"kind": "return", "order": order.id})})
    seen, reward, *_ = env.step(write("return_order", order=order.id) + write("return_order", order="many"))
    assert "argument 'order' should be a valid integer" in seen and reward == 0
    assert env.step(write("get_order", order=999))[4]["records"] == before["records"]


def test_out_of_turns_is_graded_as_it_stands(make_task, find_order, write):
    env = ServiceDeskEnv(style="compact", max_turns=2, turn_cost=0.01)
    order = find_order(can_return)
    env.reset(options={"task": make_task({"kind": "return", "order": order.id})})
    assert env.step(write("return_order", order=order.id))[3] is False
    _, reward, terminated, truncated, info = env.step(write("refund_payment", order=order.id, amount=order.total))
    assert (terminated, truncated, info["truncation"]) == (False, True, "turns")
    assert info["reward"] == {"progress": pytest.approx(0.05), "turns": -0.01, "solved": 0.0}
    assert reward == pytest.approx(0.04)


def test_progress_is_taken_back_where_it_vanishes(start, find_order, shop):
    booking = next(b for b in shop.bookings.values() if b.ahead >= 3)
    days = [day for day, free in shop.free.items() if free and day > 2 and day != booking.ahead]
    call = start({"kind": "move", "booking": booking.id, "day": days[0]}, customer=booking.customer)
    gained = call("move_booking", booking=booking.id, day=days[0])[1]
    assert gained == pytest.approx(0.15)
    lost = call("move_booking", booking=booking.id, day=days[1])[1]
    assert -0.2 <= lost < 0
    assert call("move_booking", booking=booking.id, day=days[0])[1] == pytest.approx(-lost)
    assert call("get_booking", booking=booking.id)[1] == pytest.approx(0.05)
    assert call("tell_customer", answer=days[0])[1] == pytest.approx(0.8)


def test_databases_are_not_shared(make_task, find_order, write):
    order = find_order(can_return)
    task = make_task({"kind": "return", "order": order.id})
    one, other = ServiceDeskEnv(), ServiceDeskEnv()
    first = [env.reset(options={"task": task})[1] for env in (one, other)]
    one.step(write("return_order", order=order.id))
    assert other.step(write("get_item", item=order.item))[4]["records"] == first[1]["records"] == first[0]["records"]
    assert one.reset(options={"task": task})[1] == first[0]
    assert first[0]["database"].partition("-")[0] == first[0]["records"]


def test_the_digest_in_info_is_the_databases(env, make_task, find_order, write):
    order = find_order(can_return)
    env.reset(options={"task": make_task({"kind": "return", "order": order.id})})
    forks = prepare_shop(7).fork()
    info = env.step(write("give_credit", customer=order.customer, amount=3))[4]
    assert info["records"] != state_digest(forks, ["credits"])
    forks.execute("INSERT INTO credits VALUES (1, ?, 3)", (order.customer,))
    from agentgym_rtmc.environments.service_desk.shop import RECORDS

    assert info["records"] == state_digest(forks, RECORDS)


def test_full_style_has_policy_tools_and_form_in_its_prompt(make_task, find_order, write):
    env = ServiceDeskEnv()
    order = find_order(can_return)
    for text in ("RETURN_DAYS", '"name":"refund_payment"', "<tool_call>", "20 turns", "final_sale"):
        assert text in env.system_prompt
    assert "$" not in env.system_prompt
    opening, _ = env.reset(options={"task": make_task({"kind": "return", "order": order.id}, manner="talkative")})
    assert (
        opening.startswith("Policy numbers: RETURN_DAYS = 30, HUMAN_ABOVE = 80") and "I want to return order" in opening
    )
    shown = json.loads(env.step(write("get_order", order=order.id))[0])
    assert shown["total"] == order.total and shown["days_since_delivery"] == order.days


def test_every_tool_describes_itself():
    tools = ServiceDeskEnv().tools.tools
    assert len(tools) == 22
    for tool in tools.values():
        assert len(tool.description) > 20 and tool.schema["type"] == "function"


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_environment_keeps_its_contract(write, style):
    actions = [
        write("find_customer", name="Ada"),
        write("get_order", order=12),
        write("ask_customer", about="wish"),
        write("give_credit", customer=12, amount=5),
        write("tell_customer", answer=5),
    ]
    for seed in range(3):
        check_agent_env(ENV_ID, actions=actions, seed=seed, style=style, task_options=SMALL)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_many_at_once(write, mode):
    extra = {} if mode == "sync" else {"vector_kwargs": {"shared_memory": False}}
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, vectorization_mode=mode, task_options=SMALL, **extra)
    try:
        observations, infos = envs.reset(seed=[3, 4])
        assert all("Policy numbers" in text for text in observations) and len(set(infos["task"])) == 2
        observations, rewards, terminated, truncated, _ = envs.step([write("list_free_days"), "nonsense"])
        assert "[" in observations[0] and "not understood" in observations[1]
        assert list(rewards) == [0, 0] and not any(terminated) and not any(truncated)
        assert list(envs.step([write("escalate", reason="legal")] * 2)[2]) == [True, True]
    finally:
        envs.close()


PLAY = """
import hashlib, json
import numpy as np
from agentgym_rtmc import load_task_set
from agentgym_rtmc.environments.service_desk import players
from agentgym_rtmc.environments.service_desk.env import ServiceDeskEnv

def play(tasks):
    digest = hashlib.sha256()
    for style in ("full", "compact"):
        env = ServiceDeskEnv(style=style)
        for number, task in enumerate(tasks):
            for player in (players.demonstrator, players.random_player):
                observation, info = env.reset(seed=number, options={"task": task})
                acting = player(task, observation, np.random.default_rng(number))
                action, over = next(acting), False
                while not over:
                    answer = env.step(action)
                    digest.update(json.dumps([action, *answer], sort_keys=True).encode())
                    over = answer[2] or answer[3]
                    try:
                        action = acting.send(answer[0])
                    except StopIteration:
                        over = True
    return digest.hexdigest()
"""


def test_same_seed_and_actions_same_bytes_across_processes():
    script = PLAY + "print(play(load_task_set('ServiceDesk-v0', tasks=80, heldout_tasks=1).split('train')))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1 and len(printed.pop()) == 65


def test_threads_do_not_disturb_each_other(tasks):
    chosen = tasks.split("validation")[:40]

    def play(task):
        env = ServiceDeskEnv(style="compact")
        observation, _ = env.reset(seed=0, options={"task": task})
        total = 0.0
        for action in players.reference(task, observation, np.random.default_rng(0)):
            total += env.step(action)[1]
        return total

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, chosen * 2)) == [pytest.approx(1.0)] * 80


@pytest.mark.parametrize(
    "options",
    [{"style": "short"}, {"max_turns": 0}, {"turn_cost": -1}, {"breach_cost": -1}, {"output_limit": 5}],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        ServiceDeskEnv(**options)


def test_unusable_tasks_are_refused(env, make_task, shop):
    with pytest.raises(TaskError, match="shop"):
        env.reset(options={"task": Task(id="empty")})
    for wish, what in (
        ({"kind": "price", "item": 100_000}, "no item"),
        ({"kind": "price"}, "lacks"),
        ({"kind": "move", "booking": 3}, "no booking"),
    ):
        with pytest.raises(TaskError, match=what):
            env.reset(options={"task": make_task(wish, customer=next(iter(shop.customers)))})


@pytest.mark.parametrize(
    "action",
    [
        "",
        "get_order",
        "get_order x",
        "get_order 1e3",
        "get_order -1",
        "get_order 99999999999999999999999",
        "get_order [12]",
        'get_order {"order": 12}',
        "get_order 12 13",
        "get_order order=12 order=13",
        "get_ordr 12",
        "GET_ORDER 12",
        "find_customer '; DROP TABLE customers; --",
        'find_customer "\' OR 1=1 --"',
        'find_customer "never closed',
        "find_customer Ada\nfind_customer Ada\nnonsense",
        "find_customer " + "x" * 3000,
        "find_customer " + "x" * 30_000,
        "set_city 12 \u202eOslo",
        "refuse_request because",
        "escalate now",
        "ask_customer reward",
        "tell_customer",
        "tell_customer " + "9" * 400,
        "tell_customer null",
        "tell_customer [1,2]",
        "tell_customer true true",
        "begin\ngrade\nclose",
        "<think>tell_customer 1",
        "verify_customer 12 0x10",
        "list_free_days now",
        "give_credit 12 0",
        "give_credit 12 5.5",
        "move_booking 12 0",
        "tool_call get_order 12",
    ],
)
def test_hostile_words_are_refused_and_change_nothing(env, make_task, find_order, action):
    order = find_order(can_return)
    _, before = env.reset(options={"task": make_task({"kind": "return", "order": order.id})})
    seen, reward, terminated, truncated, info = env.step(action)
    assert 0 < len(seen) <= 60 + 20 and (reward, terminated, truncated) == (0, False, False)
    assert {name: info[name] for name in ("database", "records") if name in info}.items() <= before.items()
    env.step(f"return_order {order.id}\nrefund_payment {order.id} {order.total}")
    assert env.step(f"tell_customer {order.total}")[1] == pytest.approx(0.8)


def test_long_answers_are_cut_and_it_is_said(make_task, find_order, write):
    env = ServiceDeskEnv(output_limit=150)
    env.reset(options={"task": make_task({"kind": "status", "order": find_order(can_return).id})})
    seen = env.step("\n".join([write("list_free_days")] * 16))[0]
    assert "characters left out" in seen and len(seen) < 200


def test_hashes_do_not_depend_on_the_order_of_calls(start, find_order, shop):
    order = find_order(can_return)
    looks = [("get_order", {"order": order.id}), ("get_item", {"item": order.item})]
    found = []
    for calls in (looks, looks[::-1], [*looks, *looks]):
        call = start({"kind": "return", "order": order.id})
        found.append([call(name, **arguments) for name, arguments in calls][-1][4]["database"])
    assert len(set(found)) == 1
    assert hashlib.blake2b(b"").hexdigest() not in found
