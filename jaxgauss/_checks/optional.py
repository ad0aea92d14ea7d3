"""Other libraries: imported where somebody asks for them, and where they are missing, named with the command to run."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needed(asked: str, distribution: str) -> Iterator[None]:
    """Around the imports of what was `asked` for, which are of a `distribution` that may not be installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or str(error)).partition(".")[0]
        if missing == "jaxgauss":
            raise
        raise ImportError(
            f"`{asked}` needs {distribution}, which is not among what jaxgauss installs; got no module named"
            f" {missing!r}. Run: pip install {distribution}",
            name=missing,
        ) from error
