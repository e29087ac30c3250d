"""Environments and ways to act in them, for the tests of DataQuestions."""

import json

import pytest

from agentgym_rtmc.environments.data_questions.env import DataQuestionsEnv
from agentgym_rtmc.environments.data_questions.tasks import load_questions
from agentgym_rtmc.tasks import Task

QUESTIONS = load_questions()


@pytest.fixture(scope="session")
def questions():
    """The whole task set."""
    return QUESTIONS


@pytest.fixture
def env():
    """An environment as models meet it."""
    made = DataQuestionsEnv()
    yield made
    made.close()


@pytest.fixture(scope="session")
def call():
    """Returns a call as an action."""
    return lambda name, **arguments: f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="session")
def make_task():
    """Returns a task about the first shop, with an answer of one's choice."""

    def make(answer=None, question="How many orders are there?", domain="shop", seed=0):
        return Task(
            id="question",
            public={"question": question, "domain": domain, "seed": seed},
            private={"sql": "SELECT COUNT(*) FROM orders", "answer": answer or {"kind": "number", "value": 38}},
        )

    return make
