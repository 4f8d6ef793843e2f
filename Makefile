# walstorm: everything that a person or CI does here. `make help` lists the targets; each has one line after `##`.
#
# Two of them need no reading at all: `make run` shows what walstorm does, `make test` proves it. Both set up what they need
# (see integration-tests/tools/install.sh) below .tools/, and touch nothing else of the machine but Debian packages.

SHELL := /bin/bash
.DEFAULT_GOAL := help
TOOLS := $(CURDIR)/.tools
export PATH := $(TOOLS)/venv/bin:$(HOME)/.cargo/bin:$(PATH)
export WALSTORM_PG18_BIN ?= $(TOOLS)/pg18/bin
INSTALL := integration-tests/tools/install.sh
OUT ?= walstorm-report
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## Build walstorm, play a real WAL and the seed scenarios through the three nodes, print the tables, write the report
	@$(INSTALL) build
	cargo build --release --locked -p walstorm-cli
	target/release/walstorm run --out $(OUT) $(ARGS)

.PHONY: test
test: ## Set up what the tests need, then pass all of them
	@$(INSTALL) build test
	cargo nextest run --workspace --locked --profile $(if $(CI),ci,default)
	cargo test --workspace --locked --doc --quiet
	$(MAKE) --no-print-directory loom

.PHONY: loom
loom: ## Model-check the standby's readers against its writer
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --locked --release -p standby-core --test loom

.PHONY: lint
lint: ## Formatting, clippy, docs, dependency rules, the gRPC contract
	@$(INSTALL) build test
	cargo fmt --all --check
	cargo clippy --workspace --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --locked --no-deps --document-private-items --quiet
	cargo deny --locked check bans licenses sources
	cd proto && buf lint

.PHONY: advisories
advisories: ## Check the dependencies against the RustSec advisories (fetches their database)
	@$(INSTALL) build test
	cargo deny --locked check advisories

.PHONY: check
check: ## What CI runs: lints, tests, and a run of the main job
	.ci/run

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: bench
bench: ## Run the benchmarks; the figures to compare stand side by side in one run
	@$(INSTALL) build
	cargo bench --workspace --locked --benches

.PHONY: fuzz
fuzz: ## Fuzz the WAL reader with libFuzzer (needs a nightly toolchain and cargo-fuzz; the tests run the same targets briefly)
	cd services/shared/pg-wal && cargo +nightly fuzz run records -- -max_total_time=$(or $(SECONDS_MAX),60)

.PHONY: doc
doc: ## Build the documentation of all crates
	cargo doc --workspace --locked --no-deps --document-private-items

.PHONY: clean
clean: ## Remove what was built and installed here
	rm -rf target .tools $(OUT)
