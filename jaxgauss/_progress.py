"""Bars for what takes long."""

from typing import Any

import jax
import jax.core


def progress_bar(function: str, total: int | None, unit: str, **options: Any) -> Any:
    """A bar of tqdm's; ImportError, with what to install, where that is not there."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(f"`jaxgauss.{function}`: a progress bar needs tqdm: pip install tqdm.") from error
    return tqdm(total=total, desc=function, unit=unit, **options)


def refuse_progress_in_a_trace(function: str, *arrays: Any) -> None:
    """Raise ValueError under a transformation: there is nothing to show while it is traced."""
    if any(isinstance(x, jax.core.Tracer) for x in arrays):
        raise ValueError(
            f"`jaxgauss.{function}`: `progress` must be False under a transformation such as jit; got True."
        )
