"""Import optional libraries when they are needed, and name the install command if one is missing."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needed(asked: str, distribution: str) -> Iterator[None]:
    """Wrap the imports that `asked` needs: ImportError with the install command if the `distribution` is missing."""
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
