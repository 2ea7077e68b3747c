# The commands that people type. Everything else is cargo.
.DEFAULT_GOAL := help
DOWNBEAT := target/release/downbeat
# Outside of the checkout: PostgreSQL runs as its own user, who may not be able to read the checkout.
POSTGRES_DIR := $(or $(TMPDIR),/tmp)/downbeat-postgres
# The path of a socket must be short.
CONTAINERS_DIR := $(or $(TMPDIR),/tmp)/downbeat

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

.PHONY: build
build: ## The release binary: target/release/downbeat
	cargo build --release --package downbeat-cli

.PHONY: ui
ui: ## Builds the web UI into crates/ui/dist, which is committed (needs Node)
	scripts/ui build

.PHONY: demo
demo: build ## Server and three nodes on this machine, and an example job on all of them
	scripts/demo $(DOWNBEAT)

.PHONY: test
test: ## Everything: format, lints, tests on SQLite and PostgreSQL, faults. Installs what it needs
	scripts/test

.PHONY: postgres
postgres: ## A private PostgreSQL for tests run by hand; prints its URL
	@scripts/postgres start $(POSTGRES_DIR)

.PHONY: postgres-stop
postgres-stop: ## Ends that PostgreSQL
	@scripts/postgres stop $(POSTGRES_DIR)

.PHONY: root
root: ## A Debian with systemd that tests boot copies of (as root, some 200 MB, once); prints where it is
	@scripts/root make

.PHONY: containers
containers: ## A private Docker and a private Podman for tests run by hand (as root); prints what to set
	@echo "DOWNBEAT_TEST_DOCKER=$$(scripts/containers start $(CONTAINERS_DIR)-docker)"
	@echo "DOWNBEAT_TEST_PODMAN=$$(scripts/containers podman $(CONTAINERS_DIR)-podman)"

.PHONY: containers-stop
containers-stop: ## Ends those, with all of their containers
	@scripts/containers stop $(CONTAINERS_DIR)-docker
	@scripts/containers stop $(CONTAINERS_DIR)-podman

.PHONY: chromium
chromium: ## Installs the browser of the tests that need one (as root, some 400 MB), unless there is one; prints where it is
	@scripts/chromium

.PHONY: grpcio
grpcio: ## A Python with gRPC for tests run by hand (some 60 MB below target/, once); prints where it is
	@scripts/grpcio

.PHONY: aiosmtpd
aiosmtpd: ## A Python with a mail server for tests run by hand (some 20 MB below target/, once); prints where it is
	@scripts/aiosmtpd

.PHONY: bench
bench: build ## The figures of docs/performance.md, on SQLite and on a private PostgreSQL
	scripts/bench $(DOWNBEAT)

.PHONY: bench-cluster
bench-cluster: build ## Standing tasks of clusters of 1,000, 3,000 and 9,000 simulated nodes, for five minutes each
	scripts/bench $(DOWNBEAT) cluster

.PHONY: bench-graph
bench-graph: build ## Graphs of placed tasks: overhead per step, tasks and processes per second, planning
	scripts/bench $(DOWNBEAT) graph

.PHONY: bench-takeover
bench-takeover: build ## kill -9 of servers that own runs: time until another server continues them
	scripts/bench $(DOWNBEAT) takeover

.PHONY: bench-hostile
bench-hostile: build ## Large and awkward requests: what they cost small runs, /healthz and the server's memory
	scripts/bench $(DOWNBEAT) hostile

.PHONY: bench-schedules
bench-schedules: build ## 10,000 stored jobs: 1,000 starts in one second, 100 a second for ten minutes, memory, idling
	scripts/bench $(DOWNBEAT) schedules

.PHONY: bench-claims
bench-claims: build ## Half an hour of claims over a million finished executions, with and without a long open transaction
	scripts/bench $(DOWNBEAT) claims

.PHONY: soak
soak: ## New seeds of the simulation, and kill -9 of server and agents at random moments, for ten minutes each
	DOWNBEAT_TEST_SOAK_SECONDS=600 scripts/test --soak

.PHONY: chaos
chaos: ## Faults of every kind on three servers, four agents and a PostgreSQL, for five minutes
	DOWNBEAT_TEST_CHAOS_SECONDS=$${DOWNBEAT_TEST_CHAOS_SECONDS:-300} \
		cargo test --package downbeat-cli --test chaos -- --test-threads 1 --nocapture random

.PHONY: fuzz
fuzz: ## Fuzzes job files, selectors and expressions, a minute each
	fuzz/run 60

.PHONY: deny
deny: ## Licences, duplicate and forbidden dependencies (installs cargo-deny)
	scripts/deny
