"""What pip installs to test the oldest, the default or the newest versions: from the bounds in pyproject.toml.

Usage: `python .ci/requirements.py oldest|default|newest`. “default” is what README's test command installs; “oldest”
turns every lower bound into that version; “newest” leaves out the bound on torch that keeps README's commands at a
small wheel.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def requirements(versions: str) -> list[str]:
    """One for each package: dependencies, those of the tests, of the examples and of the optional libraries."""
    extras = [PROJECT["optional-dependencies"][name] for name in ("examples", "libraries", "test")]
    every = [x for x in dict.fromkeys(sum(extras, PROJECT["dependencies"])) if not x.startswith("jaxgauss[")]
    if versions == "default":
        return every
    bounded = [x for x in every if ">=" in x]
    return [re.sub(r">=([\w.]+).*", r"==\1", x) for x in bounded] if versions == "oldest" else bounded


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
