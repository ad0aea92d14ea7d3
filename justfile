# The commands that people need; `just` lists them.

python := ".venv/bin/python"

_default:
    @just --list

# The tests; `just test -k mmd` for some of them.
test *arguments:
    {{python}} -m pytest -q -n auto -m "not slow" {{arguments}}

# Their second part: examples, trainings, other libraries, programs in processes of their own.
test-slow *arguments:
    {{python}} -m pytest -q -n auto -m slow {{arguments}}

# Random calls, compared with formulas in float64.
fuzz *arguments="--minutes 10":
    {{python}} tests/fuzz.py {{arguments}}

# CUDA's programs, compiled and replayed without a GPU.
cuda-programs *arguments:
    .ci/cuda-programs {{arguments}}

# Style, format, types.
lint:
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/pyright --pythonpath {{python}}

# The site, as you write it.
docs:
    .venv/bin/mkdocs serve

# How we compare with everything else on this machine: five minutes.
bench *arguments="--device cpu --suite quick":
    {{python}} -m benchmarks {{arguments}}

# What to run first on a machine with a GPU.
first-light minutes="25":
    {{python}} -m benchmarks.first_light --device cuda --minutes {{minutes}}
