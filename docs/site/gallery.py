"""The gallery's pages: `python docs/site/gallery.py [names]` runs the examples and writes what they print and draw.

A page `docs/gallery/NAME.md` is written by hand but for the block `<!-- run -->` … `<!-- end -->`, which holds the
command, its output, what it ran on, and the digest of the example's code: the tests say when that has changed since.
Pictures go to `examples/pictures`.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "gallery"
BLOCK = re.compile(r"<!-- run -->\n.*?<!-- end -->", re.S)
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def digest(name: str) -> str:
    """Of the code of an example."""
    return hashlib.sha256((ROOT / "examples" / f"{name}.py").read_bytes()).hexdigest()[:12]


def run(name: str) -> str:
    """The block of a page; the picture is put where the page looks for it."""
    from benchmarks.study import environment

    drawn, picture = (ROOT / folder / f"{name}.png" for folder in ("outputs", "examples/pictures"))
    drawn.unlink(missing_ok=True)
    start = time.perf_counter()
    command = [sys.executable, f"examples/{name}.py"]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    seconds = time.perf_counter() - start
    info = environment("cpu")
    versions = ", ".join(f"{library} {info['versions'][library]}" for library in ("jax", "torch", "numpy"))
    if drawn.exists():
        shutil.copy(drawn, picture)
    return (
        "<!-- run -->\n\n"
        + (f"![What it draws](../../examples/pictures/{name}.png)\n\n" if drawn.exists() else "")
        + f"```console\n$ python examples/{name}.py\n{output.strip()}\n```\n\n"
        + f"{seconds:.0f} seconds on {info['cores']} cores of an {info['device_name']}, {info['date']}; {versions};"
        + f" the code's digest is {digest(name)}.\n\n<!-- end -->"
    )


def main(names: list[str]) -> None:
    """Run them, one after the other."""
    sys.path.insert(0, str(ROOT))
    for name in tqdm(names or NAMES, unit="example"):
        page, block = PAGES / f"{name}.md", run(name)
        page.write_text(BLOCK.sub(lambda _, block=block: block, page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
