# `make train` trains the default agent, `make quick` runs the quick tests, `make test` every check; each first makes .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install train test quick lint format clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Starling needs Python 3.11 or newer; name one with: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@if command -v g++ > /dev/null; then $(BIN)/pip install --quiet -c constraints.txt -e '.[mario]'; \
	else echo "No g++ here, so Super Mario Bros. is left out (see docs/environments.md)."; fi
	@touch $@

train: install
	$(BIN)/starling train ppo-cartpole

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2

# Every module, without what takes long or starts a Ray.
quick: install
	$(BIN)/pytest -n 2 -m "not slow and not ray"

# Every algorithm and variant under every topology, every example under every runtime; `make test` covers every pair of
# choices, over Ray with one agent of each kind.
.PHONY: matrix
matrix: install
	STARLING_MATRIX=whole $(BIN)/pytest -n 2 tests/matrix tests/test_examples.py

# Agents that learn what one feature lets them learn, each beside a control without it; three seeds, under an hour on two
# cores. Results go to build/learn.jsonl, with RECORD=1 to tests/learn/results.jsonl.
.PHONY: learn
learn: install
	$(BIN)/pytest -n 2 --dist worksteal $(if $(RECORD),--record) tests/learn

# Decoders of files, configurations, and messages under random changes; `make test` has the same with few examples.
FUZZ_EXAMPLES ?= 5000
.PHONY: fuzz
fuzz: install
	STARLING_FUZZ=$(FUZZ_EXAMPLES) $(BIN)/pytest -n 2 --timeout 3600 -k fuzz tests

# All that was only run on a mock of a GPU (docs/gpu.md), on a real one: about ten minutes, and build/gpu-report.json to send.
.PHONY: gpu-check
gpu-check: install
	$(BIN)/python benchmarks/gpu_check.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .hypothesis

# Peers live in an environment of their own, so that they cannot change what is tested.
.PHONY: bench-install bench bench-halfcheetah
bench-install: .venv-bench/installed

.venv-bench/installed: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet -c constraints.txt -e '.[dev]' -r benchmarks/requirements.txt
	@touch $@

# These peers want older gymnasium and numpy than ours, so each has an environment of its own.
.PHONY: bench-pong-install bench-pong
bench-pong-install: bench-install .venv-sf/installed .venv-rllib/installed

.venv-sf/installed: benchmarks/requirements-sample-factory.txt
.venv-rllib/installed: benchmarks/requirements-rllib.txt
.venv-sf/installed .venv-rllib/installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet -r $<
	@touch $@

bench-pong: bench-pong-install
	.venv-bench/bin/python benchmarks/pong.py --json

.PHONY: bench-envpool test-envpool
bench-envpool: .venv-envpool/installed
	.venv-envpool/bin/python benchmarks/env_backends.py --json

test-envpool: .venv-envpool/installed
	.venv-envpool/bin/python -m pytest tests/envs/test_envpool.py

.venv-envpool/installed: pyproject.toml constraints.txt benchmarks/requirements-envpool.txt
	$(PYTHON) -m venv .venv-envpool
	.venv-envpool/bin/pip install --quiet -c constraints.txt -e '.[dev]' -r benchmarks/requirements-envpool.txt
	@touch $@

bench: bench-install
	.venv-bench/bin/python benchmarks/cartpole.py --json
	.venv-bench/bin/python benchmarks/solve.py --json
	.venv-bench/bin/python benchmarks/sum_tree.py --json
	.venv-bench/bin/python benchmarks/cnn_cpu.py --json
	.venv-bench/bin/python benchmarks/sac_updates.py --json
	.venv-bench/bin/python benchmarks/sac_lockstep.py --json
	.venv-bench/bin/python benchmarks/halfcheetah_steps.py --json

# Hours; stop it at any time and start it again.
bench-halfcheetah: bench-install
	.venv-bench/bin/python benchmarks/halfcheetah.py --json
