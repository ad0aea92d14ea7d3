"""How docstrings are read: “Example” is a section of examples, as in `doctest`, and not a box of text."""

import re

import griffe


class Examples(griffe.Extension):
    """A docstring's “Example:” is what Google's style calls “Examples:”."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Of every module, class and function."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
