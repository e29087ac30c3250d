"""The environment: tools, rewards, what info says, and that it is a proper Gymnasium environment."""

import os
import subprocess
import sys
from contextlib import closing

import gymnasium
import pytest

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.checks import check_agent_env
from agentgym_rtmc.environments.data_questions.domains import prepare_database
from agentgym_rtmc.environments.data_questions.env import DataQuestionsEnv
from agentgym_rtmc.environments.databases import state_digest
from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.errors import ConfigError, TaskError
from agentgym_rtmc.signatures import make_signature
from agentgym_rtmc.tasks import Task

ENV_ID = "agentgym_rtmc/DataQuestions-v0"
ORDERS = len(list(prepare_database("shop", 0).fork().execute("SELECT * FROM orders")))


@pytest.fixture
def start(env, make_task, call):
    """Begins a task and returns a function that calls tools."""
    env.reset(seed=0, options={"task": make_task({"kind": "number", "value": ORDERS})})
    return lambda name, **arguments: env.step(call(name, **arguments))


def test_a_question_is_answered(start):
    assert start("list_tables")[0] == "customers\nproducts\norders"
    observation, reward, *_ = start("describe", table="orders")
    assert observation.startswith("id INTEGER PRIMARY KEY\ncustomer_id INTEGER REFERENCES") and reward == 0
    observation, reward, *_, info = start("query", sql="SELECT COUNT(*) AS n FROM orders")
    assert observation == f"n\n{ORDERS}\n(1 row)" and info["reward"] == {"found": pytest.approx(0.2)}
    assert start("query", sql="SELECT COUNT(*) FROM orders")[1] == 0
    observation, reward, terminated, truncated, info = start("answer", value=ORDERS)
    assert (observation, reward, terminated, truncated) == ("answered", pytest.approx(0.8), True, False)
    assert info["reward"] == {"correct": pytest.approx(0.8)}


def test_an_answer_may_be_the_last_result(start):
    assert start("answer")[0].startswith("error: there is no result")
    start("query", sql="SELECT COUNT(*) FROM orders")
    start("query", sql="SELECT nothing")
    assert start("answer")[1:3] == (pytest.approx(0.8), True)


def test_right_without_a_query_is_paid_in_full(start):
    assert start("answer", value=str(ORDERS))[1:3] == (1.0, True)


def test_wrong_answers_leave_what_was_found(start):
    assert start("query", sql="SELECT COUNT(*) FROM orders")[1] == pytest.approx(0.2)
    assert start("answer", value=ORDERS + 1)[1:3] == (0.0, True)


def test_out_of_turns_pays_no_answer(make_task, call):
    env = DataQuestionsEnv(max_turns=2, turn_cost=0.1)
    env.reset(options={"task": make_task()})
    assert env.step(call("list_tables"))[1] == pytest.approx(-0.1)
    assert env.step(call("list_tables"))[1:4] == (pytest.approx(-0.1), False, True)
    env.close()


def test_several_calls_a_turn_and_nothing_after_the_answer(env, make_task, call):
    env.reset(options={"task": make_task({"kind": "number", "value": ORDERS})})
    observation, reward, terminated, *_ = env.step(
        call("list_tables") + call("answer", value=1) + call("answer", value=ORDERS)
    )
    assert observation.startswith("[1 list_tables]\n") and (reward, terminated) == (0.0, True)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("query", {"sql": "SELECT * FROM order"}, 'error: near "order": syntax error'),
        ("query", {"sql": "SELECT * FROM ordres"}, "error: no such table: ordres"),
        ("query", {"sql": "SELECT status FROM orders, customers"}, "error: ambiguous column name: status"),
        ("query", {"sql": "DELETE FROM orders"}, "error: DELETE is not allowed"),
        ("query", {"sql": "PRAGMA query_only = OFF"}, "error: PRAGMA is not allowed"),
        ("query", {"sql": "ATTACH 'x' AS y"}, "error: ATTACH is not allowed"),
        ("query", {}, "[not understood: query: argument 'sql' is missing"),
        ("describe", {"table": "ordres"}, "error: there is no table 'ordres'; did you mean 'orders'?"),
        ("answer", {"value": {"a": 1}}, "[not understood: answer: argument 'value"),
        ("answers", {"value": 1}, "[not understood: there is no tool 'answers'; did you mean 'answer'?"),
    ],
)
def test_errors_are_observations(start, name, arguments, said):
    observation, reward, terminated, _, info = start(name, **arguments)
    assert observation.startswith(said) and (reward, terminated) == (0.0, False)
    assert info.get("database", "nothing") == "nothing"


ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c"


def test_endless_queries_and_huge_results_end(start):
    assert "more than 200000 steps" in start("query", sql=f"{ENDLESS} ORDER BY -n")[0]
    observation = start("query", sql=ENDLESS)[0]
    assert observation.endswith("(only the first 30 rows were read)")
    wide = ", ".join("printf('%.500c', 'x')" for _ in range(30))
    for sql in (f"SELECT {wide} FROM orders", f"{ENDLESS} LIMIT 10000000", "SELECT printf('%.9000c', 'x')"):
        assert len(start("query", sql=sql)[0]) < 3000


def test_the_database_stays_as_it_is_and_is_an_episodes_own(env, make_task, call):
    env.reset(options={"task": make_task()})
    with closing(prepare_database("shop", 0).fork()) as fresh:
        before = state_digest(fresh)
    for sql in ("DELETE FROM orders", "DROP TABLE orders", "UPDATE orders SET quantity = 0", "CREATE TABLE t(a)"):
        env.step(call("query", sql=sql))
    with closing(prepare_database("shop", 0).fork()) as fresh:
        assert state_digest(fresh) == before
    observation, *_ = env.step(call("query", sql="SELECT COUNT(*) FROM orders"))
    assert observation.split("\n")[1] == str(ORDERS)


def test_states_are_what_was_learnt(start):
    def state(name, **arguments):
        return start(name, **arguments)[4]["database"]

    nothing = state("query", sql="SELECT * FROM nowhere")
    count = state("query", sql="SELECT COUNT(*) FROM orders")
    assert nothing == "nothing" != count
    assert state("query", sql="select count(id) AS all_of_them from orders") == count
    both = state("query", sql="SELECT MAX(quantity) FROM orders")
    assert both != count and state("query", sql="SELECT COUNT(*) FROM orders") == both


def test_equal_knowledge_is_one_state_of_the_signature(env, make_task, call):
    """Two queries in either order, in other words, meet in the signature that the environment names."""
    signature = make_signature("tool_state")
    count, most = "SELECT COUNT(*) FROM orders", "SELECT MAX(quantity) FROM orders"
    keys = []
    for queries in ((count, most), (most, "SELECT  COUNT(id)  FROM orders"), (count, count)):
        observation, info = env.reset(seed=0, options={"task": make_task()})
        opening = Opening(task=make_task().disclosed(), observation=observation, info=info)
        state = signature.start(opening)
        for sql in queries:
            observation, reward, _, _, info = env.step(call("query", sql=sql))
            made = Call(name="query", arguments={"sql": sql})
            turn = Turn(text="", calls=(made,), observation=observation, reward=reward, info=info)
            state = signature.advance(state, turn)
        keys.append(signature.state_key(state))
    assert keys[0] == keys[1] != keys[2]


def test_compact_texts_are_short(make_task, call):
    env = DataQuestionsEnv(style="compact", output_limit=60)
    observation, _ = env.reset(options={"task": make_task()})
    assert observation.split("\n") == [
        "How many orders are there?",
        "customers(id, name, city, status, joined)",
        "products(id, name, kind, price_cents)",
        "orders(id, customer_id, product_id, quantity, discount, status, day)",
    ]
    assert len(env.system_prompt) < 30
    assert env.step('query "SELECT COUNT(*), NULL FROM orders"')[0] == f"{ORDERS}|NULL"
    assert "more rows left out" in env.step(call("query", sql="SELECT name, id FROM customers"))[0]
    assert env.step("answer")[2]
    env.close()


@pytest.mark.parametrize(
    "options",
    [
        {"found": 1.0},
        {"found": -0.1},
        {"row_limit": 0},
        {"output_limit": 3},
        {"steps": 0},
        {"style": "short"},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        DataQuestionsEnv(**options)


def test_unusable_tasks_are_refused(env, make_task, call):
    for public in ({}, {"question": "x", "domain": "shop"}, {"question": "x", "domain": "shopp", "seed": 1}):
        with pytest.raises(TaskError):
            env.reset(options={"task": Task(id="bad", public=public)})
    env.reset(options={"task": Task(id="ungraded", public=make_task().public)})
    with pytest.raises(TaskError, match="'answer'"):
        env.step(call("answer", value=1))


def test_the_environment_keeps_its_contract(call):
    actions = [
        call("list_tables"),
        call("describe", table="customers"),
        call("query", sql="SELECT id FROM sqlite_master"),
        call("query", sql="SELECT 1 + 1"),
        call("answer", value=-1),
    ]
    check_agent_env(ENV_ID, actions=actions, task_options={"databases": 1})


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_many_at_once(call, mode):
    extra = {} if mode == "sync" else {"vector_kwargs": {"shared_memory": False}}
    envs = gymnasium.make_vec(ENV_ID, num_envs=3, vectorization_mode=mode, task_options={"databases": 1}, **extra)
    try:
        observations, _ = envs.reset(seed=[3, 4, 5])
        assert len(observations) == 3 and all(text.endswith("?") for text in observations)
        observations, rewards, terminated, *_ = envs.step([call("list_tables"), "nonsense", call("answer", value=-1)])
        assert "\n" in observations[0] and "not understood" in observations[1] and observations[2] == "answered"
        assert list(rewards) == [0, 0, 0] and list(terminated) == [False, False, True]
    finally:
        envs.close()


SCRIPT = """
import hashlib, json
import numpy as np
from agentgym_rtmc.environments.data_questions.env import DataQuestionsEnv
from agentgym_rtmc.environments.data_questions.players import demonstrator
from agentgym_rtmc.environments.data_questions.tasks import load_questions
env, total = DataQuestionsEnv(), hashlib.sha256()
for seed, task in enumerate(load_questions(limit=40, databases=1)):
    observation, info = env.reset(seed=seed, options={"task": task})
    acting = demonstrator(task, observation, np.random.default_rng(seed))
    total.update(json.dumps([observation, info], sort_keys=True).encode())
    action, over = next(acting), False
    while not over:
        seen = env.step(action)
        total.update(json.dumps([action, *seen], sort_keys=True).encode())
        over = seen[2] or seen[3]
        action = "" if over else acting.send(seen[0])
print(total.hexdigest())
"""


def test_equal_actions_give_equal_bytes_in_every_process():
    seen = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(seen[0]) == 65 and seen[0] == seen[1]
