"""What MkDocs does beyond its plugins: files of the repository that a page links to, and formulas, come into the site.

Pages in `docs/` link to files outside as a reader of the files needs it, `../tests/oracle.py`. In the site such a file
is a page of its own, code as code, or a copy for pictures and data. Formulas become MathML, which browsers draw.
"""

import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".json": "json", ".yml": "yaml", "": "bash"}
WHOLE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def _outside(page: str, target: str) -> str | None:
    """The path from the root of the repository that a page's link leads to, if that is outside `docs/`."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith("docs/") else path


def _place(path: str) -> str:
    """Where the site has it."""
    if path in WHOLE:
        return WHOLE[path]
    is_code = Path(path).suffix in LANGUAGES and not path.startswith("benchmarks/results/")
    return f"source/{path}.md" if is_code else f"source/{path}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside `docs/` that a page links to."""
    linked = {
        path
        for file in files.documentation_pages()
        for _, target in LINK.findall(file.content_string)
        if (path := _outside(file.src_uri, target)) and path not in WHOLE
    }
    for path in sorted(linked):
        source, place = ROOT / path, _place(path)
        if not source.is_file():
            raise PluginError(f"a page links to {path}, which is no file")
        if place.endswith(".md") and source.suffix != ".md":
            code = f"---\nhide: [toc]\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n"
            code += f'```{LANGUAGES[source.suffix]} linenums="1"\n{source.read_text()}\n```\n'
            files.append(File.generated(config, place, content=code))
        else:
            files.append(File.generated(config, place, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that lead outside `docs/` lead to where the site has their files."""

    def inside(match: re.Match) -> str:
        path = _outside(page.file.src_uri, match[2])
        there = match[2] if path is None else posixpath.relpath(_place(path), posixpath.dirname(page.file.src_uri))
        return match[1] + there

    return LINK.sub(inside, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML."""
    unescaped = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}

    def formula(match: re.Match) -> str:
        latex = re.sub("|".join(unescaped), lambda x: unescaped[x[0]], match[2])
        return convert(latex.strip(), display="block" if match[1] == "div" else "inline")

    return MATH.sub(formula, html)
