"""What each step of `first_light` measures: on a GPU, and in small on a CPU."""

from types import SimpleNamespace

from .. import grids, inside

GPU = SimpleNamespace(  # what is measured, and where PyTorch's tensors are
    device="cuda",
    nums=(16384, 65536),
    pairs=tuple(grids.HEADLINE),  # D, C
    logarithms=(3, 16, 32, 64),  # D
    splits=((16384, 4096, 32768), (3, 16, 32), (1, 2, 4, 8, 16)),  # N, D, heads
    widths=(65536, (32, 64, 96, 128, 136, 192, 256)),  # N, widths
    matrices=4096,  # rows of what a conditional stands between
    first=(1024, 64),  # N, D of a first call
    paper=((2**10, 2**12, 2**14, 2**16), (3, 8, 16, 32, 64, 128), 64, 16384),  # N; D of so many problems of so large N
    loops=((256, 1024, 4096, 16384), 16),  # N, D
    few=(1024, 4096, 256),
    mmd=(1024, 4096, 16384, 256, 65536),
    memory=tuple(2**i for i in range(14, 19)),
    samples=2**20,  # of densities, and points of the plane
    queries=2**17,
    costs=inside.calibrate.CUDA_PROBLEMS,  # N, D, C
    every=1,  # cell of the longer steps
)
EMULATED = SimpleNamespace(
    device="cpu",
    nums=(64, 128),
    pairs=((3, 1), (16, 16)),
    logarithms=(3,),
    splits=((128,), (3,), (1, 2)),
    widths=(128, (32, 136)),
    matrices=16,
    first=(32, 3),
    paper=((32, 64), (3, 8), 2, 64),
    loops=((64,), 3),
    few=(64,),
    mmd=(64,),
    memory=(64, 128),
    samples=256,
    queries=128,
    costs=((8, 3, 1), (64, 16, 16), (2**15, 2, 1)),
    every=11,
)
