"""`agentgym_rtmc/ServiceDesk-v0`: serve a customer by the policy, with typed tools on the shop's database.

Invariants:
- Every episode has a fork of the shop's database of its own. `info["database"]` is the digest of all its rows: of the
  shop's records, a dash, and of what was verified, asked, looked up and
  answered in this conversation. `info["records"]` is the first
  half alone.
- Reward: `progress` (0.2) follows, turn by turn, the share of the needed facts that are in the database: the customer
  verified, the order or item looked up, each row that the reference changes; it is taken back where they vanish. `told`
  (0.3) is paid in the turn in which a request gets its right answer, `solved` (0.5) at the end, when every answer was
  right and the records equal the reference's. Where nothing has to be known, `solved` weighs 0.7. Each breach of the
  policy costs `breach_cost`, three at most. A solution without a breach is paid 1, doing nothing 0, a right guess 0.8.
- The episode ends when the customer goes: every request answered, a human has taken over, or patience is at an end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

from pydantic import Field

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.calls.tool_call import ToolCallProtocol
from agentgym_rtmc.calls.tools import Toolbox, render_results
from agentgym_rtmc.calls.word_call import WordCallProtocol
from agentgym_rtmc.environments.base import AgentEnv, Info, Reply
from agentgym_rtmc.environments.databases import state_digest
from agentgym_rtmc.environments.service_desk.customer import Customer, Topic
from agentgym_rtmc.environments.service_desk.desk import Desk, Word
from agentgym_rtmc.environments.service_desk.judgement import Judgement, judge
from agentgym_rtmc.environments.service_desk.lines import Style
from agentgym_rtmc.environments.service_desk.policy import Handover, Policy, Refusal
from agentgym_rtmc.environments.service_desk.scenario import Case
from agentgym_rtmc.environments.service_desk.shop import RECORDS, prepare_shop
from agentgym_rtmc.errors import ConfigError, ToolError, nearest
from agentgym_rtmc.registration import split_loader
from agentgym_rtmc.tasks import Task

ENV_ID = "agentgym_rtmc/ServiceDesk-v0"
PROGRESS, TOLD, SOLVED = 0.2, 0.3, 0.5
MOST_BREACHES = 3
"""Breaches that cost; further ones are only counted."""
Answer = Annotated[int, Field(ge=-99999, le=99999)] | Word
_SESSION = ("contact", "lookups")
_STYLES = ("full", "compact")
_SHORT_COMPLAINT = 60
FULL_OPENING = "Policy numbers"
"""How conversations of the full style begin."""


class ServiceDeskEnv(AgentEnv):
    """Options, beside `render_mode`:

    task_set, split, task_options: where `reset` takes tasks from when none is given. style: `full` sentences and JSON,
    with policy and tools in the prompt and calls as JSON, or `compact`, a few words each and calls as words
    (`get_order 45`), for very small models. max_turns: the agent's budget. turn_cost: subtracted from the reward each
    turn. breach_cost: for each breach of the policy, up to three. output_limit: most characters of an observation.
    """

    def __init__(
        self,
        *,
        task_set: str = "generated",
        split: str = "train",
        task_options: Mapping[str, Any] | None = None,
        style: Style = "full",
        max_turns: int = 20,
        turn_cost: float = 0.0,
        breach_cost: float = 0.2,
        output_limit: int = 2000,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split_loader(ENV_ID, task_set, split, task_options), max_turns, turn_cost, render_mode)
        if style not in _STYLES:
            raise ConfigError(f"style {style!r} is unknown{nearest(style, _STYLES)}")
        if not 0 <= breach_cost < math.inf:
            raise ConfigError(f"breach_cost must be a number from 0 on, not {breach_cost}")
        if output_limit < 100:
            raise ConfigError(f"output_limit must be at least 100 characters, not {output_limit}")
        self._style: Style = style
        self._breach_cost = breach_cost
        self._output_limit = output_limit
        self._desk = Desk(style)
        self.tools = Toolbox(
            [*self._desk.tools(), self.ask_customer, self.tell_customer, self.refuse_request, self.escalate]
        )
        self.protocol: TextProtocol = ToolCallProtocol() if style == "full" else WordCallProtocol.of(self.tools)
        self.system_prompt = _system_prompt(style, max_turns, self.tools, self.protocol)
        self._customer: Customer | None = None
        self._judgement: Judgement | None = None

    # -- the episode --------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> tuple[str, Info]:
        """Fork the shop's database and let the customer speak."""
        case = Case.of(task)
        self._judgement = judge(case)
        self._customer = Customer(case, self._style)
        self._desk.begin(prepare_shop(case.shop).fork(), case.policy)
        if case.scenario.identity == "signed_in":
            self._desk.connection.execute("UPDATE contact SET verified = ?", (case.scenario.customer,))
        self._right: set[int] = set()
        self._told = 0
        self._breaches = 0
        self._changes = -1
        self._progress = 0.0
        self._records = ""
        self._look()
        return f"{_numbers(case.policy, self._style)}\n{self._customer.open()}", self._digests()

    def act(self, calls: tuple[Call, ...]) -> Reply:
        """Run the calls of a turn; wrong arguments come back to the agent as an observation."""
        assert self._customer is not None and self._judgement is not None
        results = self.tools.run(calls)
        before = self._progress
        self._look()
        reward: dict[str, float] = {}
        if self._progress != before:
            reward["progress"] = PROGRESS * (self._progress - before)
        if len(self._right) > self._told:
            reward["told"] = TOLD * (len(self._right) - self._told) / len(self._judgement.decisions)
            self._told = len(self._right)
        info = self._digests()
        new = self._desk.breaches[self._breaches :]
        if new:
            reward["breach"] = -self._breach_cost * max(0, min(len(new), MOST_BREACHES - self._breaches))
            self._breaches += len(new)
            info["breaches"] = list(new)
        observation = render_results(results)
        if len(observation) > self._output_limit:
            left_out = len(observation) - self._output_limit
            observation = f"{observation[: self._output_limit]}\n[... {left_out} characters left out]"
        return Reply(observation, reward, self._customer.gone, info)

    def grade(self) -> Mapping[str, float]:
        """Pay for the whole: every answer right, and the records as the reference leaves them."""
        assert self._judgement is not None
        solved = len(self._right) == len(self._judgement.decisions) and self._records == self._judgement.digest
        weight = SOLVED if self._judgement.steps else SOLVED + PROGRESS
        return {"solved": weight * solved}

    def describe_parse_error(self, complaint: str) -> str:
        """Return the observation for an action that could not be read; a compact one is short."""
        return complaint[:_SHORT_COMPLAINT] if self._style == "compact" else super().describe_parse_error(complaint)

    def close(self) -> None:
        """Let the last database go."""
        self._desk.connection.close()

    def _look(self) -> None:
        """Take in what became of the database."""
        assert self._judgement is not None
        desk = self._desk
        if self._changes != desk.changes:
            self._changes = desk.changes
            self._records = state_digest(desk.connection, RECORDS) if desk.changes else self._judgement.start
        self._progress = self._judgement.progress(desk.connection, changed=desk.changes > 0)

    def _digests(self) -> Info:
        return {
            "database": f"{self._records}-{state_digest(self._desk.connection, _SESSION)}",
            "records": self._records,
        }

    # -- talking ------------------------------------------------------------------------------------------------

    def ask_customer(self, about: Topic) -> str:
        """Ask the customer for something: name, PIN, account number, city of residence, number of the order or the
        booking, the goods it is about, or the wish once more."""
        answer = self._caller().ask(about)
        self._desk.note_question(about)
        return answer

    def tell_customer(self, answer: Answer) -> str:
        """Tell the customer what was asked for, or what was done: the one number or word that says it."""
        return self._finish_request("tell_customer", {"answer": answer})

    def refuse_request(self, reason: Refusal) -> str:
        """Refuse the request, and say why."""
        return self._finish_request("refuse_request", {"reason": reason})

    def escalate(self, reason: Handover) -> str:
        """Hand the conversation over to a human, which ends it."""
        return self._finish_request("escalate", {"reason": reason})

    def _caller(self) -> Customer:
        assert self._customer is not None
        if self._customer.gone:
            raise ToolError("the customer is gone")
        return self._customer

    def _finish_request(
        self, name: Literal["tell_customer", "refuse_request", "escalate"], said: dict[str, Any]
    ) -> str:
        customer, judgement = self._caller(), self._judgement
        assert judgement is not None
        number = customer.current
        discloses = name == "tell_customer" or said["reason"] not in ("identity", "injury", "legal")
        if discloses and judgement.personal[number] and self._desk.verified is None:
            self._desk.breaches.append("disclosure")
        if name == "escalate":
            customer.gone = True
            reply = "handed over"
        else:
            reply = customer.hear_refusal() if name == "refuse_request" else customer.hear_answer()
        # A refusal that the customer insists against does not end the request.
        ended = customer.gone or customer.current > number
        self._desk.note_answers(customer.current)
        if ended and judgement.is_right(number, Call(name=name, arguments=said)):
            self._right.add(number)
        return reply


def _numbers(policy: Policy, style: Style) -> str:
    """Write the numbers of the policy as the first line of a conversation."""
    numbers = policy.model_dump()
    if style == "compact":
        return " ".join(f"{name[0].upper()} {value}" for name, value in zip(_SHORT, numbers.values(), strict=True))
    return f"{FULL_OPENING}: " + ", ".join(f"{name.upper()} = {value}" for name, value in numbers.items()) + "\n"


_SHORT = ("return", "human", "late", "credit", "notice", "final")


def _system_prompt(style: Style, turns: int, tools: Toolbox, protocol: TextProtocol) -> str:
    folder = Path(__file__).parent / "prompts"
    if style == "compact":
        return (folder / "compact.txt").read_text(encoding="utf-8").strip()
    parts = {
        "turns": str(turns),
        "policy": (folder / "policy.txt").read_text(encoding="utf-8").strip(),
        "tools": tools.instructions(),
        "protocol": protocol.instructions(),
    }
    return Template((folder / "v1.txt").read_text(encoding="utf-8")).substitute(parts).strip()
