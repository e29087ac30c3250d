"""Desks to work at in the tests of ServiceDesk."""

import json
from contextlib import closing

import pytest

from agentgym_rtmc import Task, load_task_set
from agentgym_rtmc.environments.service_desk.env import ServiceDeskEnv
from agentgym_rtmc.environments.service_desk.policy import Policy, Request
from agentgym_rtmc.environments.service_desk.scenario import Scenario
from agentgym_rtmc.environments.service_desk.shop import make_shop

SHOP = 7
POLICY = Policy()


@pytest.fixture(scope="session")
def shop():
    return make_shop(SHOP)


@pytest.fixture(scope="session")
def tasks():
    return load_task_set("ServiceDesk-v0", tasks=1000, heldout_tasks=200)


@pytest.fixture
def env():
    with closing(ServiceDeskEnv(style="compact")) as made:
        yield made


@pytest.fixture(scope="session")
def make_task(shop):
    """Returns the task of a customer with requests."""

    def make(*requests, customer=None, policy=POLICY, **scenario):
        wishes = tuple(Request(**request) for request in requests)
        if customer is None:
            customer = shop.orders[wishes[0].order].customer
        said = {"customer": customer, "pin": shop.customers[customer].pin, **scenario}
        return Task(
            id="case",
            public={"shop": SHOP, "policy": policy.model_dump()},
            private={"scenario": Scenario(requests=wishes, **said).model_dump(mode="json")},
        )

    return make


@pytest.fixture(scope="session")
def write():
    """Returns a call as an action."""
    return lambda name, /, **arguments: f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def start(env, make_task, write):
    """Begins a task and returns a function that makes calls."""

    def begin(*requests, **scenario):
        env.reset(seed=0, options={"task": make_task(*requests, **scenario)})
        return lambda name, /, **arguments: env.step(write(name, **arguments))

    return begin


@pytest.fixture(scope="session")
def find_order(shop):
    """Returns an order of the shop that fits a condition, its customer's only one of the item."""

    def find(condition):
        return next(order for order in shop.orders.values() if condition(order, shop.items[order.item]))

    return find
