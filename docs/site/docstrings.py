"""How docstrings are read: “Example” is a section, as it is for `doctest`, and public names are links."""

import re

import griffe

import jaxgauss

NAME = re.compile(rf"(?<![`\[])`({'|'.join(name for name in vars(jaxgauss) if not name.startswith('_'))})`(?!`)")


def linked(text: str) -> str:
    """With public names as links to the API."""
    return NAME.sub(r"[`\1`][jaxgauss.\1]", text)


class Docstrings(griffe.Extension):
    """“Example:” is what Google's style calls “Examples:”, and `mmd_squared` leads to that function."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Of every module, class and function."""
        if obj.docstring:
            text = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = linked(text) if obj.path.startswith("jaxgauss.") else text
