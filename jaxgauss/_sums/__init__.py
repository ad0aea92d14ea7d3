"""What users call, and its derivatives: sums, their logarithms, sharded, streamed. Knows engines by what they sum."""
