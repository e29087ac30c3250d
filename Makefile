# Two commands do everything: `make train` and `make test`. Each makes its own environment in .venv first.
#
# PYTHON  the interpreter to start from (3.11 or newer)
# TORCH   what pip is asked for: a requirement, with options if need be. For another build of torch, for example:
#           make train TORCH="torch==2.13.0 --index-url <the index that has it>"
# CONFIG  the configuration of `make train`; ARGS are dotted overrides, e.g. ARGS="credit.estimator=grpo run.seed=1"
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
CONFIG ?= examples/code_repair.toml
ARGS ?=
BIN := $(VENV)/bin
KIND := develop

.PHONY: help train test test-full lint bench evidence-small evidence-tool-use setup setup-train lock clean
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

train: setup-train ## train the embedded agent on code repair and show the result (minutes, no GPU)
	@$(BIN)/agentgym-rtmc train $(CONFIG) $(ARGS)

test: setup ## run the tests (some 20 minutes on two cores with a container engine; what needs one, or a GPU, skips with the reason)
	@$(BIN)/python -m pytest -q -m "not full" $(ARGS)

test-full: setup ## run all tests, the long ones too
	@HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -q $(ARGS)

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python .ci/typecheck.py

bench: setup ## measure speed: ratios inside one run, printed as tables
	@for file in $(filter-out benchmarks/evidence_small.py benchmarks/evidence_tool_use.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

evidence-tool-use: setup-train ## what learning makes of tool use: two environments, three seeds, four estimators (continues where it stopped)
	@$(BIN)/python benchmarks/evidence_tool_use.py $(ARGS)

evidence-small: setup-train ## the learning result: three seeds, four methods, three test splits (hours; continues where it stopped)
	@$(BIN)/python benchmarks/evidence_small.py --images docs/images $(ARGS)

setup:
	@command -v $(PYTHON) >/dev/null || { echo "setup: $(PYTHON) is missing (Debian/Ubuntu: apt install python3 python3-venv)"; exit 1; }
	@$(PYTHON) .ci/setup.py --venv $(VENV) --torch "$(TORCH)" --for $(KIND)

setup-train: KIND = train
setup-train: setup

lock: ## resolve the dependencies anew into .ci/requirements.lock
	@$(BIN)/python .ci/lock.py

clean: ## remove the environment and build products (runs/ stays)
	@rm -rf $(VENV) $(VENV).lock build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
