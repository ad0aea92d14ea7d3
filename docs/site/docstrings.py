"""How docstrings are read: “Example” is a section, as it is for `doctest`, and public names are links."""

import re

import griffe

import jaxgauss

NAMES = "|".join(name for name in vars(jaxgauss) if not name.startswith("_"))


class Docstrings(griffe.Extension):
    """“Example:” is what Google's style calls “Examples:”, and `mmd_squared` leads to that function."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Of every module, class and function."""
        if obj.docstring:
            text = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            if obj.path.startswith("jaxgauss."):
                text = re.sub(rf"(?<!`)`({NAMES})`(?!`)", r"[`\1`][jaxgauss.\1]", text)
            obj.docstring.value = text
