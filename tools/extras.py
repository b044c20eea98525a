"""Print what the named extras of pyproject.toml ask for, one a line, so that pip can install them without the package.

An extra always brings the package's own dependencies along; the book needs none of them.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print the requirements of each extra named on the command line."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    for extra in sys.argv[1:]:
        print(*project["optional-dependencies"][extra], sep="\n")


if __name__ == "__main__":
    main()
