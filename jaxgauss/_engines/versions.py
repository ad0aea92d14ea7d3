"""What XLA on a CPU does best differs between versions of jaxlib: all that was measured of it, in one place.

Measured on two cores of an AMD EPYC, Linux, x86-64, in float32. From 0.12 on, a product takes as long as with channels
added up to a multiple of 16: for 17, from which gradients at D = 16 and C = 1 are made, a quarter longer than before.
"""

import platform
import sys
from typing import NamedTuple

import jaxlib.version


class Measured(NamedTuple):
    """Of one version of jaxlib, and of later ones until the next.

    Attributes:
        fuses: whether a product, a function of its entries and a second product, written as a reduction, become one
            pass of YNNPACK, which neither writes nor reads an array of a tile's size. A test examines the program.
        single_width: D and C up to which a single tile is so fused; beyond, two products are faster.
        wide: rows and columns of a tile for so many channels that values barely stay in the cache.
        few: pairs times dimensions up to which sums, and pulls, of points that lie anywhere take less time from
            differences than by sorting. A branch that sorts costs time even where it is not taken: XLA takes a tenth of
            a microsecond a call for each of its hundreds of buffers.
    """

    fuses: bool
    single_width: int
    wide: tuple[int, int]
    few: tuple[int, int]


VERSIONS = {
    (0, 12): Measured(True, 256, (4096, 256), (2**22, 2**18)),
    (0, 10, 2): Measured(True, 63, (8192, 128), (2**20, 2**18)),
    (): Measured(False, 0, (8192, 128), (2**20, 2**18)),
}


def _measured() -> Measured:
    version = jaxlib.version.__version_info__
    found = next(x for first, x in VERSIONS.items() if version >= first)
    return found._replace(fuses=found.fuses and (sys.platform, platform.machine()) == ("linux", "x86_64"))


MEASURED = _measured()
