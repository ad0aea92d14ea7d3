"""What MkDocs does beyond its plugins: files of the repository that a page links to, and formulas, come into the site.

Pages in `docs/` link to files outside as a reader of the files needs it, `../tests/oracle.py`. In the site such a file
is a page of its own, code as code, or a copy for pictures and data. A line of the pages of the API becomes the
docstring that it leads to, and a page of the gallery gets its code. `mmd_squared` becomes a link to that function, and
formulas become MathML, which browsers draw.
"""

import html
import posixpath
import re
from pathlib import Path

from docstrings import linked
from entries import ENTRY
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"^\[`(examples/\w+\.py)`\]\(\S+\)$", re.M)
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
FENCE = re.compile(r"^```.*?^```$", re.S | re.M)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".cff": "yaml", "": "text"}
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside `docs/`, and every file there that a page links to."""
    for path, place in PAGES.items():
        text = re.sub(r"(\]\()(?![a-z]+:|#)", r"\1../", (ROOT / path).read_text())  # links as from within docs/
        files.append(File.generated(config, place, content=text))
    linked = {_path(file.src_uri, link) for file in files.documentation_pages() for _, link in _links(file)}
    for path in sorted(linked - PAGES.keys()):
        if not (ROOT / path).is_file():
            raise PluginError(f"a page links to {path}, which is no file")
        if path.startswith("docs/"):
            continue
        place, language = _place(path), LANGUAGES.get(Path(path).suffix)
        if place.endswith(".md"):
            code = (ROOT / path).read_text()
            text = f"---\nsearch: {{exclude: true}}\n---\n\n# `{path}`\n\n````{language}\n{code}````\n"
            files.append(File.generated(config, place, content=text))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where the site has their files, and public names to the API."""
    here = page.file.src_uri

    def inside(match: re.Match) -> str:
        return match[1] + posixpath.relpath(_place(_path(here, match[2])), posixpath.dirname(here))

    if here.startswith("source/"):
        return markdown
    if here.startswith("api/"):
        markdown = ENTRY.sub(r"::: \1\n", markdown)
    if here.startswith("gallery/"):
        markdown = EXAMPLE.sub(lambda match: f"```python\n{(ROOT / match[1]).read_text()}```", markdown)
    markdown = LINK.sub(inside, markdown)
    texts = [linked(text) for text in FENCE.split(markdown)]
    return "".join(text + code for text, code in zip(texts, [*FENCE.findall(markdown), ""], strict=True))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML."""

    def formula(match: re.Match) -> str:
        latex = html.unescape(match[2]).strip()
        drawn = convert(latex, display="block" if match[1] == "div" else "inline")
        return drawn.replace("<mo>&#x02016;", '<mo stretchy="false">&#x02016;')  # ‖ on both sides alike

    return MATH.sub(formula, content)


def _links(file: File) -> list[tuple[str, str]]:
    text = ENTRY.sub("", file.content_string) if file.src_uri.startswith("api/") else file.content_string
    return LINK.findall(text)


def _path(page: str, link: str) -> str:
    """The path from the root of the repository that a page's link leads to."""
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))


def _place(path: str) -> str:
    """Where the site has it."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    is_code = Path(path).suffix in LANGUAGES and not path.startswith("benchmarks/results/")
    return f"source/{path}.md" if is_code else f"source/{path}"
