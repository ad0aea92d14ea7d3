"""Refuse to sum in a process that was forked after JAX had started its threads."""

import os

from jax._src.xla_bridge import backends_are_initialized  # JAX has no public way to ask

_FORKED_LATE: set[int] = set()  # this process, if it was forked after JAX had made its threads


def is_forked_late() -> bool:
    """Whether this process was forked after JAX had started its threads."""
    return os.getpid() in _FORKED_LATE


def refuse_fork() -> None:
    """Raise RuntimeError in such a process, which would wait forever for threads that it does not have."""
    if is_forked_late():
        raise RuntimeError(
            "`jaxgauss`: a process must not be forked after JAX was used, for the threads of JAX and PyTorch stay"
            f" behind; got process {os.getpid()}, forked late. Use multiprocessing.get_context('spawn')."
        )


def _remember_fork() -> None:
    if backends_are_initialized():
        _FORKED_LATE.add(os.getpid())


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_remember_fork)
