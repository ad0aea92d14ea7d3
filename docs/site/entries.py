"""The API's pages as the repository has them: a line a name, which leads to its docstring; the site shows that instead.

`python docs/site/entries.py` writes the lines anew: where a name is defined, and the first line of its docstring.
"""

import inspect
import os
import pkgutil
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/api/*.md"))
ENTRY = re.compile(r"^- \[`((?:jaxgauss|torch_backend)\.[\w.]+)`\].*$", re.M)


def entry(path: str) -> str:
    """The line of a public name."""
    thing = inspect.unwrap(pkgutil.resolve_name(path))
    described = thing if inspect.isroutine(thing) or inspect.isclass(thing) else None  # a constant has no docstring
    file = inspect.getsourcefile(described or pkgutil.resolve_name(path.rpartition(".")[0]))
    place = os.path.relpath(str(file), ROOT / "docs" / "api")
    first = f": {inspect.getdoc(described).splitlines()[0]}" if described else ""
    return f"- [`{path}`]({place}){first}"


def written(text: str) -> str:
    """A page with its lines made anew."""
    return ENTRY.sub(lambda match: entry(match[1]), text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
