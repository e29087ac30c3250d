"""The task set `generated`: calls to the desk, drawn by seed at five difficulties.

Levels, by how many tool calls the reference makes: 1 has one or two (a question, a hand-over), 2 two to four (a
decision about a verified customer's order), 3 four to six (identity first; impostors, with fewer calls; customers who
insist), 4 six to eight (what is missing has to be asked for or found), 5 eight to twelve (two requests). Refusals,
hand-overs and other people's orders occur on every level.

Splits; every shop belongs to one of them, and no two tasks are equal:
- `train`, `validation`, `test`: different shops, the same policies and families.
- `policies`: shops whose policies have numbers that were never trained on.
- `combinations`: calls of level 5 with pairs of requests that no other split has.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import get_args

from agentgym_rtmc.environments.service_desk.plan import reference_calls
from agentgym_rtmc.environments.service_desk.policy import (
    PUBLIC_KINDS,
    URGENT_KINDS,
    Decision,
    Kind,
    Policy,
    Request,
    decide,
)
from agentgym_rtmc.environments.service_desk.scenario import Case, Identity, Manner, Scenario
from agentgym_rtmc.environments.service_desk.shop import CATEGORIES, CITIES, DAYS, Shop, make_shop
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.tasks import Task, TaskSet

LEVELS = (1, 2, 3, 4, 5)
LENGTHS = {1: (1, 2), 2: (2, 4), 3: (4, 6), 4: (6, 8), 5: (8, 12)}
"""Level -> fewest and most calls of the reference."""
SPLITS = ("train", "validation", "test", "policies", "combinations")
PER_SHOP = 50
_KINDS: tuple[Kind, ...] = get_args(Kind)
_PERSONAL: tuple[Kind, ...] = tuple(kind for kind in _KINDS if kind not in (*PUBLIC_KINDS, *URGENT_KINDS))
_FIRST: dict[int, tuple[Kind, ...]] = {
    1: ("price", "stock", "status", "injury", "legal"),
    2: tuple(kind for kind in _PERSONAL if kind != "status"),
    3: _PERSONAL,
    4: tuple(kind for kind in _PERSONAL if kind != "status"),
    5: _PERSONAL,
}
_IDENTITIES: dict[int, tuple[Identity, ...]] = {
    1: ("signed_in",),
    2: ("signed_in",),
    3: ("numbers", "numbers", "name"),
    4: ("name", "nothing"),
    5: ("numbers", "name", "nothing"),
}
_MANNERS: dict[int, tuple[Manner, ...]] = {
    1: ("plain", "talkative", "impatient"),
    2: ("plain", "talkative", "impatient"),
    3: ("plain", "talkative", "impatient", "pushy"),
    4: ("plain", "terse", "forgetful", "pushy", "impatient"),
    5: ("plain", "terse", "forgetful", "pushy", "talkative"),
}
_KNOWN_NUMBERS: dict[str, tuple[int | str, ...]] = {
    "return_days": (14, 30),
    "human_above": (50, 80),
    "late_days": (2, 5),
    "late_credit": (5, 10),
    "notice_days": (2, 3),
    "final_sale": ("food", "care"),
}
_NEW_NUMBERS: dict[str, tuple[int | str, ...]] = {
    "return_days": (7, 21, 45),
    "human_above": (30, 60, 100),
    "late_days": (1, 3, 4),
    "late_credit": (8, 15),
    "notice_days": (1, 4),
    "final_sale": tuple(one for one in CATEGORIES if one not in ("food", "care")),
}
_STRANGERS = 0.08
"""Share of callers who ask for what is somebody else's."""
_IMPOSTORS = 0.05
"""Share of draws of level 3 in which the PIN is wrong; these are shorter and so kept more often."""
_TRIES = 400


def load_generated(
    *,
    tasks: int = 3000,
    heldout_tasks: int = 400,
    levels: Sequence[int] = LEVELS,
    limit: int | None = None,
    seed: int = 0,
) -> TaskSet:
    """Draw the set. `tasks` is the size of `train`, `heldout_tasks` of each other split; `levels` are drawn equally
    often (`combinations` has level 5 alone); `limit` is the most tasks of a split. Same options, same tasks.
    """
    for name, number in (("tasks", tasks), ("heldout_tasks", heldout_tasks), ("limit", limit)):
        if number is not None and not 1 <= number <= 100_000:
            raise ConfigError(f"{name} must lie between 1 and 100000, not {number}")
    if not levels or not set(levels) <= set(LEVELS):
        raise ConfigError(f"levels are some of 1 to 5, not {list(levels)}")
    if seed < 0:
        raise ConfigError(f"seed must be at least 0, not {seed}")
    sizes = {split: tasks if split == "train" else heldout_tasks for split in SPLITS}
    return _load(tuple(min(size, limit or size) for size in sizes.values()), tuple(sorted(set(levels))), seed)


@lru_cache(maxsize=8)
def _load(sizes: tuple[int, ...], levels: tuple[int, ...], seed: int) -> TaskSet:
    splits = {}
    for number, (split, size) in enumerate(zip(SPLITS, sizes, strict=True)):
        first_shop = (seed * len(SPLITS) + number) * 10_000
        drawn = generate(first_shop, (5,) if split == "combinations" else levels, split)
        splits[split] = list(itertools.islice(drawn, size))
    return TaskSet("generated", splits)


def generate(first_shop: int, levels: Sequence[int] = LEVELS, split: str = "train") -> Iterator[Task]:
    """Yield tasks without end, from one shop after the other."""
    for number in itertools.count(first_shop):
        rng = random.Random(f"tasks of shop {number}")
        shop, policy = make_shop(number), draw_policy(rng, new=split == "policies")
        pool = _Pool(rng, shop, policy)
        known: set[Scenario] = set()
        for index in range(PER_SHOP):
            level = levels[index % len(levels)]
            scenario = _draw_scenario(rng, shop, policy, pool, level, combinations=split == "combinations")
            if scenario is None or scenario in known:
                continue
            known.add(scenario)
            yield _task(f"{split}/{number}/{index}", level, Case(shop=number, policy=policy, scenario=scenario))


def draw_policy(rng: random.Random, new: bool = False) -> Policy:
    """Draw the numbers of a policy: the ones that are trained on, or others."""
    numbers = _NEW_NUMBERS if new else _KNOWN_NUMBERS
    return Policy.model_validate({name: rng.choice(values) for name, values in numbers.items()})


def family_of(requests: Iterable[Request]) -> str:
    """Name the kinds of requests, in order."""
    return "+".join(request.kind for request in requests)


def is_kept_out(family: str) -> bool:
    """Whether a pair of kinds, in either order, is kept for the split `combinations`: one in four."""
    pair = "+".join(sorted(family.split("+")))
    return "+" in pair and hashlib.sha256(pair.encode()).digest()[0] % 4 == 0


def _task(name: str, level: int, case: Case) -> Task:
    return Task(
        id=name,
        public={
            "shop": case.shop,
            "policy": case.policy.model_dump(mode="json"),
            "level": level,
            "family": family_of(case.scenario.requests),
        },
        private={"scenario": case.scenario.model_dump(mode="json", exclude_none=True)},
    )


class _Pool:
    """All requests that a shop's customers may make of their own orders and bookings, by kind and outcome."""

    def __init__(self, rng: random.Random, shop: Shop, policy: Policy) -> None:
        self._rng, self._shop = rng, shop
        self._requests: dict[Kind, dict[str, list[Request]]] = {}
        for kind in _KINDS:
            outcomes: dict[str, list[Request]] = defaultdict(list)
            for request in _candidates(rng, shop, kind):
                outcomes[_outcome(decide(policy, shop, self.owner(request), True, request))].append(request)
            self._requests[kind] = outcomes

    def owner(self, request: Request) -> int:
        """Return whose order or booking a request is about; anybody, for public ones."""
        if request.order is not None:
            return self._shop.orders[request.order].customer
        if request.booking is not None:
            return self._shop.bookings[request.booking].customer
        return self._rng.choice(list(self._shop.customers))

    def draw(self, kind: Kind, customer: int | None = None) -> Request | None:
        """Draw an outcome, then a request that has it; what can be done is drawn as often as all else together.

        `customer` asks for one of this customer's own; None where there is none.
        """
        outcomes = self._requests[kind]
        if customer is not None and kind not in PUBLIC_KINDS:
            own = {name: [one for one in found if self.owner(one) == customer] for name, found in outcomes.items()}
            outcomes = {name: found for name, found in own.items() if found}
        done = [name for name in outcomes if name == "tell_customer"]
        others = [name for name in outcomes if name != "tell_customer"]
        names = done if done and (not others or self._rng.random() < 0.5) else others
        return self._rng.choice(outcomes[self._rng.choice(names)]) if names else None


def _draw_scenario(
    rng: random.Random, shop: Shop, policy: Policy, pool: _Pool, level: int, *, combinations: bool
) -> Scenario | None:
    """Draw until the reference has the right length; None where the shop has nothing that fits."""
    fewest, most = LENGTHS[level]
    for _ in range(_TRIES):
        request = pool.draw(rng.choice(_FIRST[level]))
        if request is None:
            continue
        requests = [request]
        customer = pool.owner(request)
        if rng.random() < _STRANGERS:
            customer = rng.choice(list(shop.customers))
        if level == 5:
            second = pool.draw(rng.choice(_KINDS), customer)
            if second is None or is_kept_out(family_of([request, second])) != combinations:
                continue
            requests.append(second)
        identity = rng.choice(_IDENTITIES[level])
        impostor = level == 3 and rng.random() < _IMPOSTORS
        pin = shop.customers[customer].pin
        scenario = Scenario(
            customer=customer,
            pin=(pin + rng.randrange(1, 90) - 10) % 90 + 10 if impostor else pin,
            identity=identity,
            manner=rng.choice(_MANNERS[level]),
            requests=tuple(requests),
        )
        case = Case(shop=shop.number, policy=policy, scenario=scenario)
        if _is_plain(shop, scenario) and (impostor or fewest <= len(reference_calls(case)) <= most):
            return scenario
    return None


def _candidates(rng: random.Random, shop: Shop, kind: Kind) -> Iterator[Request]:
    if kind in PUBLIC_KINDS:
        yield from (Request(kind=kind, item=item) for item in shop.items)
    elif kind in ("move", "unbook"):
        for booking in shop.bookings.values():
            day = rng.choice([day for day in DAYS if day != booking.ahead]) if kind == "move" else None
            yield Request(kind=kind, booking=booking.id, day=day)
    else:
        for order in shop.orders.values():
            if kind == "address":
                city = rng.choice([city for city in CITIES if city != order.city])
                yield Request(kind=kind, order=order.id, city=city)
            elif kind == "exchange" and order.status != "placed":
                name = shop.items[order.item].name
                others = [item.id for item in shop.items.values() if item.name == name and item.id != order.item]
                yield Request(kind=kind, order=order.id, item=rng.choice(others))
            # A return of what has not come yet is a cancellation, and asked for as one.
            elif kind != "exchange" and (kind != "return" or order.status != "placed"):
                yield Request(kind=kind, order=order.id)


def _outcome(decision: Decision) -> str:
    last = decision.last
    return f"{last.name} {last.arguments.get('reason', '')}".strip()


def _is_plain(shop: Shop, scenario: Scenario) -> bool:
    """Whether the requests do not touch each other, and what a forgetful customer says leads to one order."""
    orders = [request.order for request in scenario.requests if request.order]
    bookings = [request.booking for request in scenario.requests if request.booking]
    # One booking may free the day that another is moved to.
    if len(set(orders)) < len(orders) or len(bookings) > 1:
        return False
    items = [shop.orders[order].item for order in orders] + [r.item for r in scenario.requests if r.item]
    if len(set(items)) < len(items):
        return False
    own = [order for order in shop.orders.values() if order.customer == scenario.customer]
    for request in scenario.requests:
        if scenario.manner == "forgetful" and request.order and request.kind not in URGENT_KINDS:
            goods = [order.item for order in own].count(shop.orders[request.order].item)
            if goods != 1 or shop.orders[request.order].customer != scenario.customer:
                return False
        if scenario.manner == "forgetful" and request.booking:
            mine = [one for one in shop.bookings.values() if one.customer == scenario.customer]
            if len(mine) != 1 or mine[0].id != request.booking:
                return False
    last = len(scenario.requests) - 1
    # Who has hung up or was handed over has no second request; a human takes over at the end only.
    return not any(request.kind in URGENT_KINDS for request in scenario.requests[:last])
