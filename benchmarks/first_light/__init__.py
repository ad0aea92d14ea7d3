"""What a GPU should tell on the day when there is one: `python -m benchmarks.first_light`."""
