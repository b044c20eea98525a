"""Write the versions that are installed here into requirements.lock, which pip reads as constraints."""

import sys
from importlib.metadata import distributions
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
# What is not the course's own choice: pip comes with the environment, and the course itself is not on any index.
LEFT_OUT = {"pip", "mha-course"}
HEADER = """\
# The versions that the course was tested with. pip reads them as constraints (--constraint): what is not named here, because
# another system or Python needs it, is still found. To renew: change what pyproject.toml asks for, remove .venv, empty this
# file, run `make check`, then `.venv/bin/python tools/lock.py`, then `make test`.
"""


def main() -> None:
    """Write the lock; a local version such as 2.13.0+cpu names a build that other systems do not have, so it is cut."""
    pins = {
        found.metadata["Name"].lower().replace("_", "-"): found.version.partition("+")[0] for found in distributions()
    }
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items()) if name not in LEFT_OUT]
    LOCK.write_text(HEADER + "".join(lines), "utf-8")
    sys.stdout.write(f"{LOCK.name}: {len(lines)} versions\n")


if __name__ == "__main__":
    main()
